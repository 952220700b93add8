"""Texts to vectors: a transformer encoder (UniXcoder by default) behind a small Protocol, and a cache on disk.

UniXcoder is Guo et al., "UniXcoder: Unified Cross-Modal Pre-training for Code Representation" (ACL 2022); its
encoder-only mode and the pooling over all real tokens follow the authors' reference usage. torch and transformers
are imported only when a text is not in the cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from xlocal.tracer.errors import ModelError, Warned

Vectors = NDArray[np.float32]
Warn = Callable[[Warned], None]

DEFAULT_MODEL = "microsoft/unixcoder-base"
# The authors' default; UniXcoder's positions would allow 1024.
MAX_TOKENS = 512
# Padded tokens of one batch: what keeps a CPU's cache, or a GPU, busy without running out of memory.
_BUDGET = {"cpu": 4_096, "cuda": 65_536}
_ENCODER_ONLY = "<encoder-only>"
_PACKAGES = ("torch", "transformers", "huggingface_hub")
_FILES = ("*.json", "*.txt", "*.safetensors", "pytorch_model.bin", "*.model")


class Encoder(Protocol):
    """Turns texts into vectors."""

    @property
    def identity(self) -> str:
        """Names the model and everything that changes its vectors; a key of the cache."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """L2-normalised vectors, shape `(len(texts), dimension)`; equal texts have equal vectors."""


def load_encoder(
    model: str = DEFAULT_MODEL,
    *,
    cache: Path | None = None,
    device: str | None = None,
    warn: Warn = lambda _: None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Encoder:
    """An encoder with a cache: `model` is a local folder or a hub id, `cache` a folder (default: the user's).

    Raises ModelError when the weights, or the packages that find them, are not here.
    """
    folder = find_model(model)
    inner = TransformerEncoder(folder, device=device, warn=warn, progress=progress)
    return CachedEncoder(inner, cache or default_cache(), warn=warn)


def default_cache() -> Path:
    """Where vectors are kept when no folder is given."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "xlocal" / "vectors"


def find_model(model: str) -> Path:
    """Folder that holds a model: itself, the hub's copy on this disk, or a fresh download of it.

    Raises ModelError, which says what is missing and what to do.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"{model} holds no config.json; give the folder of a transformers model")
        return folder
    if folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ModelError(f"there is no model folder {model}")
    _require("huggingface_hub")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    for local in (True, False):
        try:
            found = Path(snapshot_download(model, local_files_only=local, allow_patterns=list(_FILES)))
        except (OSError, ValueError, HfHubHTTPError) as error:
            reason = str(error).split("\n", 1)[0]
        else:
            # The hub's copy may be a download that was cut short.
            if any(found.glob("*.safetensors")) or (found / "pytorch_model.bin").exists():
                return found
            reason = "its local copy holds no weights"
    raise ModelError(
        f"the weights of {model} are neither on this disk nor to be had from the hub ({reason}); "
        "go online once, or give the folder of a copy with --model"
    )


def _require(*packages: str) -> None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise ModelError(
            f"encoders need {' and '.join(missing)}; pip install 'xlocal[unixcoder]'. They also need the weights of a "
            "model, which come from the hub or from a folder named with --model DIR"
        )


class TransformerEncoder:
    """Mean-pooled last hidden states of a transformers model, L2-normalised.

    A model whose vocabulary has `<encoder-only>` is read as UniXcoder (`<s> <encoder-only> </s> text </s>`), any
    other as its tokenizer says. Texts are cut at `max_tokens`, and the number of cut texts is reported once. `device`
    is a torch device (default: a GPU when there is one); bf16 is used where the device has it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: str | None = None,
        max_tokens: int = MAX_TOKENS,
        warn: Warn = lambda _: None,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        self._folder = folder
        self._device = device
        self._max_tokens = max_tokens
        self._warn = warn
        self._progress = progress
        self._loaded: tuple[Any, Any, list[int], int] | None = None

    @property
    def identity(self) -> str:
        """Digest of the model's files (contents of the small ones, size and date of the weights) and of the limit."""
        digest = hashlib.blake2b(f"v1 {self._max_tokens}".encode(), digest_size=16)
        for path in sorted(self._folder.iterdir()):
            if path.suffix in {".json", ".txt", ".model"} and path.stat().st_size < 1 << 24:
                digest.update(path.name.encode() + path.read_bytes())
            elif path.suffix in {".safetensors", ".bin"}:
                # Links of the hub's cache point at files named by content; a date alone would miss a swap.
                state = path.stat()
                digest.update(f"{path.name} {path.resolve().name} {state.st_size} {state.st_mtime_ns}".encode())
        return digest.hexdigest()

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the texts, shape `(len(texts), hidden size)`; `(0, 0)` for none."""
        if not texts:
            return np.zeros((0, 0), np.float32)
        tokenizer, model, prefix, limit = self._load()
        import torch

        unique = sorted(set(texts))
        tokens = self._tokens(tokenizer, unique, prefix, limit)
        vectors: dict[str, Vectors] = {}
        with torch.inference_mode():
            for batch in _batches([len(ids) for ids in tokens], _BUDGET[model.device.type]):
                pooled = _pool(model, [tokens[i] for i in batch], tokenizer.pad_token_id or 0)
                vectors.update(zip([unique[i] for i in batch], pooled, strict=True))
                self._progress(len(vectors), len(unique))
        return np.stack([vectors[text] for text in texts])

    def _tokens(self, tokenizer: Any, texts: list[str], prefix: list[int], limit: int) -> list[list[int]]:
        room = limit - len(prefix) - 1 if prefix else limit
        read = tokenizer(texts, add_special_tokens=not prefix, truncation=True, max_length=room)["input_ids"]
        cut = sum(len(ids) >= room for ids in read)
        if cut:
            said = f"{cut} of {len(texts)} texts fill the encoder's {limit} tokens; only their beginning is read"
            self._warn(Warned("text-truncated", said))
        return [[*prefix, *ids, tokenizer.sep_token_id] for ids in read] if prefix else list(read)

    def _load(self) -> tuple[Any, Any, list[int], int]:
        """(tokenizer, model, UniXcoder's prefix or nothing, token limit), loaded once."""
        if self._loaded is None:
            _require(*_PACKAGES)
            import torch
            from safetensors import SafetensorError
            from transformers import AutoModel, AutoTokenizer
            from transformers.utils import logging

            device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
            verbosity = logging.get_verbosity()
            # A missing pooler or an unused head is expected here: neither takes part.
            logging.set_verbosity_error()
            logging.disable_progress_bar()
            try:
                tokenizer = AutoTokenizer.from_pretrained(str(self._folder))
                model = AutoModel.from_pretrained(str(self._folder))
            except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, UnpicklingError) as error:
                reason = str(error).split("\n", 1)[0]
                raise ModelError(f"the model in {self._folder} cannot be loaded: {reason}") from error
            finally:
                logging.set_verbosity(verbosity)
            model = model.to(device=device, dtype=_dtype(torch, device)).eval()
            mode = tokenizer.get_vocab().get(_ENCODER_ONLY)
            prefix = [] if mode is None else [tokenizer.cls_token_id, mode, tokenizer.sep_token_id]
            self._loaded = tokenizer, model, prefix, min(self._max_tokens, _positions(model.config))
        return self._loaded


def _positions(config: Any) -> int:
    """Most tokens that the model has positions for; RoBERTa counts its own from the padding id on."""
    positions = int(getattr(config, "max_position_embeddings", MAX_TOKENS))
    return positions - (config.pad_token_id or 0) - 1 if config.model_type == "roberta" else positions


def _dtype(torch: Any, device: str) -> Any:
    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    # Without these instructions bf16 is emulated, and slower than float32.
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    native = any(getattr(torch.cpu, probe, bool)() for probe in probes)
    return torch.bfloat16 if native and device == "cpu" else torch.float32


def _batches(lengths: list[int], budget: int) -> Iterator[list[int]]:
    """Indices grouped by length, longest first; a batch's padded size (its longest x its count) keeps to `budget`."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _pool(model: Any, tokens: list[list[int]], pad: int) -> Vectors:
    """Mean of the last hidden state over real tokens, L2-normalised in float32, shape `(len(tokens), hidden)`."""
    import torch

    width = max(map(len, tokens))
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in tokens], device=model.device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in tokens], device=model.device)
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    pooled: Vectors = torch.nn.functional.normalize(mean, dim=1).cpu().numpy()
    return pooled


class CachedEncoder:
    """An encoder that keeps vectors on disk, one SQLite file per identity of its model.

    A file that cannot be read or written costs a warning (slug `vector-cache`) and the encoding, never the ranking.
    """

    def __init__(self, inner: Encoder, folder: Path, *, warn: Warn = lambda _: None) -> None:
        self._inner = inner
        self._folder = folder
        self._warn = warn

    @property
    def identity(self) -> str:
        """The identity of the encoder within."""
        return self._inner.identity

    def encode(self, texts: Sequence[str]) -> Vectors:
        """As the encoder within; only texts that are not in the cache reach it."""
        keys = {text: hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts}
        path = self._folder / f"{self.identity}.sqlite"
        known = self._read(path, list(keys.values()))
        missing = sorted(text for text, key in keys.items() if key not in known)
        if missing:
            fresh = dict(zip((keys[text] for text in missing), self._inner.encode(missing), strict=True))
            self._write(path, fresh)
            known |= fresh
        return np.stack([known[keys[text]] for text in texts]) if texts else np.zeros((0, 0), np.float32)

    def _read(self, path: Path, keys: list[bytes]) -> dict[bytes, Vectors]:
        if not path.exists():
            return {}
        found: dict[bytes, Vectors] = {}
        try:
            with closing(sqlite3.connect(path, timeout=30)) as database:
                for key in keys:
                    for vector, check in database.execute("SELECT vector, sum FROM vectors WHERE key = ?", (key,)):
                        if _checksum(vector) != check:
                            raise sqlite3.DatabaseError("a vector is damaged")
                        found[key] = np.frombuffer(vector, np.float32)
        except (sqlite3.Error, ValueError, TypeError) as error:
            self._warn(Warned("vector-cache", f"the vector cache {path} cannot be read ({error}); it is made anew"))
            _discard(path)
            return {}
        return found

    def _write(self, path: Path, vectors: dict[bytes, Vectors]) -> None:
        rows = [(key, vector.tobytes(), _checksum(vector.tobytes())) for key, vector in vectors.items()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # One transaction: a process that is killed leaves all of it or nothing.
            with closing(sqlite3.connect(path, timeout=30)) as database, database:
                database.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB, sum BLOB)")
                database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            self._warn(Warned("vector-cache", f"the vector cache {path} cannot be written ({error})"))


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _discard(path: Path) -> None:
    for name in (path, path.with_name(path.name + "-journal")):
        try:
            name.unlink(missing_ok=True)
        except OSError:
            continue  # said above; writing will say the rest
