"""Table 2: what each component adds: variants of a method, each against the first.

python experiments/table2.py vanilla=runs/vanilla localizer=runs/localizer full=runs/full --mirrors DIR
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from methods import arguments, markdown, publish, run_program, study
from metrics import CONVENTIONS
from plots import bars
from table1 import localization
from xlocal.swe_pipeline.touched import COUNTINGS


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit status is 2 for wrong input."""
    return run_program(_main, argv)


def _main(argv: Sequence[str] | None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--convention", choices=CONVENTIONS, default="paper")
    parser.add_argument("--functions", choices=COUNTINGS, default="existing", help="which functions a patch touches")
    given = parser.parse_args(argv)
    work = study(given)
    resolved = [100 * len(work.resolved(method)) / len(work.issues) for method in work.methods]
    scores = [localization(work, method, given.convention, given.functions)[1] for method in work.methods]
    f1 = [100 * score.f1 for score in scores]
    rows = [
        [method.name, against(resolved[place], resolved[0], place), against(f1[place], f1[0], place)]
        for place, method in enumerate(work.methods)
    ]
    names = [method.name for method in work.methods]
    plot = bars("Contribution of components", names, {"% resolved": resolved, "function F1": f1})
    publish("table2", markdown(("Method", "%Resolved (Δ)", "Func. F1 (Δ)"), rows), plot, work.out)


def against(value: float, first: float, place: int) -> str:
    """A value and, but for the first, how it differs from the first."""
    if place == 0:
        return f"{value:.1f}"
    arrow = "↑" if value > first else "↓" if value < first else "="
    return f"{value:.1f} ({arrow} {abs(value - first):.1f})"


if __name__ == "__main__":
    sys.exit(main())
