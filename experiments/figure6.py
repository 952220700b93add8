"""Figure 6: how many patches resolve, and how many are the gold patch but for comments and empty lines.

python experiments/figure6.py xlocal=runs/full other=other.jsonl --report other=other.run.json --mirrors DIR
"""

from __future__ import annotations

import io
import sys
import tokenize
from collections.abc import Mapping, Sequence

from methods import Method, Study, arguments, markdown, percent, publish, run_program, study
from plots import bars
from xlocal.swe_pipeline.issue import Issue
from xlocal.swe_pipeline.localized import reader_of
from xlocal.swe_pipeline.touched import ReadFile, patched
from xlocal.tracer.errors import PatchError

_SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit status is 2 for wrong input."""
    return run_program(_main, argv)


def _main(argv: Sequence[str] | None) -> None:
    work = study(arguments(__doc__ or "").parse_args(argv))
    n = len(work.issues)
    rows = []
    series: dict[str, list[float]] = {"% resolved": [], "% exact match": []}
    for method in work.methods:
        exact = exact_matches(work, method)
        resolved = len(work.resolved(method)) if method.resolved is not None else 0
        rows.append([method.name, percent(resolved, n) if method.resolved is not None else "-", percent(exact, n)])
        series["% resolved"].append(100 * resolved / n)
        series["% exact match"].append(100 * exact / n)
    plot = bars("Likeness to the human patches", [method.name for method in work.methods], series)
    publish("figure6", markdown(("Method", "%Resolved", "%Exact match"), rows), plot, work.out)


def exact_matches(work: Study, method: Method) -> int:
    """How many patches of a method come to the same files as the gold patch, but for comments and empty lines."""
    return sum(is_exact(work, issue, method.patches.get(issue.id)) for issue in work.issues)


def is_exact(work: Study, issue: Issue, patch: str | None) -> bool:
    """Whether a patch comes to the same code as the gold patch. One that does not apply does not."""
    if not (patch or "").strip():
        return False
    read = reader_of(issue, mirrors=work.mirrors, root=work.root)
    try:
        theirs = patched(patch or "", read)
    except PatchError:
        return False
    return changes(theirs, read) == changes(patched(work.dataset.gold[issue.id].patch, read), read)


def changes(files: Mapping[str, bytes | None], read: ReadFile) -> dict[str, object]:
    """The files whose code differs from the base's, as code."""
    now = {path: code(path, content) for path, content in files.items()}
    return {path: text for path, text in now.items() if text != code(path, read(path))}


def code(path: str, content: bytes | None) -> object:
    """What a file says without comments and empty lines; None for no file."""
    if content is None:
        return None
    if path.endswith(".py"):
        try:
            tokens = tokenize.tokenize(io.BytesIO(content).readline)
            return [(token.type, token.string.rstrip()) for token in tokens if token.type not in _SILENT]
        except (tokenize.TokenError, SyntaxError):
            pass  # of another Python, or broken: compared line by line
    return [line.rstrip() for line in content.splitlines() if line.strip() and not line.lstrip().startswith(b"#")]


if __name__ == "__main__":
    sys.exit(main())
