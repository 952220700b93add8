"""Table 1: resolve rate, cost, tokens, and precision, recall and F1 of files and of functions, for each method.

python experiments/table1.py xlocal=runs/full other=other.jsonl --report other=other.run.json --mirrors DIR
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean

from methods import Method, Study, arguments, counted, markdown, percent, publish, run_program, study
from metrics import CONVENTIONS, Convention, Scores, score
from plots import bars
from xlocal.swe_pipeline.touched import COUNTINGS, Counting

HEADS = (
    "Method",
    "%Resolved",
    "Cost",
    "Tokens",
    *(f"{what} {m}" for what in ("File", "Func.") for m in ("P", "R", "F1")),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit status is 2 for wrong input."""
    return run_program(_main, argv)


def _main(argv: Sequence[str] | None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--convention", choices=CONVENTIONS, default="paper")
    parser.add_argument("--functions", choices=COUNTINGS, default="existing", help="which functions a patch touches")
    given = parser.parse_args(argv)
    work = study(given)
    found = {method.name: localization(work, method, given.convention, given.functions) for method in work.methods}
    rows = [row(work, method, *found[method.name]) for method in work.methods]
    files, functions = next(iter(found.values()))
    note = (
        f"\n{counted(len(work.issues), 'instance')}; convention {given.convention}, functions {given.functions}: "
        f"scored over {counted(files.n, 'instance')} for files and {functions.n} for functions "
        f"({functions.excluded} touch no such function)."
    )
    series = {name: [100 * scores.f1 for scores in pair] for name, pair in found.items()}
    publish(
        "table1",
        markdown(HEADS, rows) + "\n" + note,
        bars("F1 of localization", ("files", "functions"), series),
        work.out,
    )


def localization(work: Study, method: Method, convention: Convention, counting: Counting) -> tuple[Scores, Scores]:
    """Scores of a method over files and over functions."""
    files, functions = [], []
    for issue in work.issues:
        true, predicted = work.gold(issue), work.touched(issue, method.patches.get(issue.id))
        files.append((predicted.files, true.files))
        functions.append((predicted.functions(counting), true.functions(counting)))
    return score(files, convention=convention), score(functions, convention=convention)


def row(work: Study, method: Method, files: Scores, functions: Scores) -> list[str]:
    """One method's line; a dash for what is not known."""
    n = len(work.issues)
    resolved = "-"
    if method.resolved is not None:
        count = len(work.resolved(method))
        resolved = f"{percent(count, n)} ({count})"
    cost = f"{fmean(method.dollars.values()):.2f}" if method.dollars else "-"
    tokens = f"{fmean(method.tokens.values()) / 1000:.1f}k" if method.tokens else "-"
    values = [value for scores in (files, functions) for value in (scores.precision, scores.recall, scores.f1)]
    return [method.name, resolved, cost, tokens, *(f"{100 * value:.1f}" for value in values)]


if __name__ == "__main__":
    sys.exit(main())
