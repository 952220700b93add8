"""Figure 5: resolve rate by the complexity of the gold patch: its hunks, the functions it touches, its changed lines.

    python experiments/figure5.py xlocal=runs/full --mirrors DIR --out plots

Functions are counted as definitions, new ones included; of SWE-bench Lite the paper counts 7, 230 and 63 instances
with none, one and two to five, this program 7, 236 and 57 (`--functions enclosing`: 7, 229 and 64).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from methods import arguments, markdown, percent, publish, run_program, study
from plots import bars
from xlocal.swe_pipeline.touched import COUNTINGS, Counting, Touched

Bin = tuple[str, Callable[[int], bool]]
HUNKS: tuple[Bin, ...] = (
    ("1 hunk", lambda n: n == 1),
    ("2 hunks", lambda n: n == 2),
    ("3 or more hunks", lambda n: n >= 3),
)
FUNCTIONS: tuple[Bin, ...] = (
    ("no function", lambda n: n == 0),
    ("1 function", lambda n: n == 1),
    ("2 or more functions", lambda n: n >= 2),
)
LINES: tuple[Bin, ...] = (
    ("1-4 lines", lambda n: n <= 4),
    ("5-10 lines", lambda n: 5 <= n <= 10),
    ("11 or more lines", lambda n: n > 10),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit status is 2 for wrong input."""
    return run_program(_main, argv)


def _main(argv: Sequence[str] | None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--functions", choices=COUNTINGS, default="innermost", help="which functions a patch touches")
    given = parser.parse_args(argv)
    work = study(given)
    measured = {issue.id: complexity(work.gold(issue), given.functions) for issue in work.issues}
    rows, groups = [], []
    series: dict[str, list[float]] = {method.name: [] for method in work.methods}
    for place, bins in enumerate((HUNKS, FUNCTIONS, LINES)):
        for name, fits in bins:
            members = {one for one, counts in measured.items() if fits(counts[place])}
            solved = [len(work.resolved(method) & members) for method in work.methods]
            rows.append([name, len(members), *(percent(count, len(members)) for count in solved)])
            groups.append(f"{name.replace(' or more', '+').split(' ')[0]} {('h', 'f', 'l')[place]} ({len(members)})")
            for method, count in zip(work.methods, solved, strict=True):
                series[method.name].append(100 * count / len(members) if members else 0.0)
    table = markdown(("Gold patch", "instances", *(f"{m.name} %" for m in work.methods)), rows)
    publish("figure5", table, bars("Resolved by hunks (h), functions (f) and lines (l)", groups, series), work.out)


def complexity(gold: Touched, counting: Counting) -> tuple[int, int, int]:
    """Hunks, functions and changed lines of a patch."""
    return gold.hunks, gold.definitions[COUNTINGS.index(counting)], gold.added + gold.removed


if __name__ == "__main__":
    sys.exit(main())
