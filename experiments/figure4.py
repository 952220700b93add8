"""Figure 4: which instances the methods have in common: (a) resolved, (b) localized perfectly (function F1 of 1).

python experiments/figure4.py xlocal=runs/full other=other.jsonl --report other=other.run.json --mirrors DIR --out plots
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from methods import Method, Study, arguments, markdown, publish, run_program, study
from metrics import f1
from plots import exclusive, overlap
from xlocal.swe_pipeline.touched import COUNTINGS, Counting


def main(argv: Sequence[str] | None = None) -> int:
    """Print the overlaps; the exit status is 2 for wrong input."""
    return run_program(_main, argv)


def _main(argv: Sequence[str] | None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--functions", choices=COUNTINGS, default="existing", help="which functions a patch touches")
    given = parser.parse_args(argv)
    work = study(given)
    if all(method.resolved is not None for method in work.methods):
        show("figure4a", "Resolved instances", {m.name: work.resolved(m) for m in work.methods}, work)
    else:
        print("(a) is left out: what each method resolved is not known; give --report NAME=FILE", file=sys.stderr)
    localized = {method.name: perfect(work, method, given.functions) for method in work.methods}
    show("figure4b", "Perfectly localized instances", localized, work)


def show(name: str, title: str, sets: Mapping[str, frozenset[str]], work: Study) -> None:
    """Print and plot how sets overlap."""
    found = exclusive(sets)
    rows = [[" ∩ ".join(names), len(found[names])] for names in sorted(found, key=lambda n: (-len(found[n]), n))]
    totals = [[f"all of {method}", len(members)] for method, members in sets.items()]
    table = f"### {title}\n\n" + markdown(("in just these", "instances"), [*totals, *(row for row in rows if row[1])])
    publish(name, table + "\n", overlap(title, sets), work.out)


def perfect(work: Study, method: Method, counting: Counting) -> frozenset[str]:
    """Instances whose touched functions are just the true ones; those without true functions do not count."""
    found = set()
    for issue in work.issues:
        true = work.gold(issue).functions(counting)
        predicted = work.touched(issue, method.patches.get(issue.id)).functions(counting)
        if true and f1(predicted, true) == 1:
            found.add(issue.id)
    return frozenset(found)


if __name__ == "__main__":
    sys.exit(main())
