"""How often each kind of evidence is held by a right function: the table that the default ranker ships.

    python experiments/rates.py --cases DIR [--checkouts DIR] [--cache DIR]

Over the recordings of experiments/localization.py (the same --cache): of the cases in which some function holds a kind,
the share in which a right one does, as (held + 1) / (cases + 4), so that few cases claim little. The table goes into
`KIND_RATES` of ranking/rank.py, rounded; experiments/ablation.py says what it gives when no case of the repository at
hand took part in it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from methods import run_program
from rich.table import Table
from trials import Trial, open_trials, parser_of
from xlocal.ranking.rank import KIND_RATES


def rates(trials: Iterable[Trial]) -> dict[str, float]:
    """The rate of every kind that occurs, the greatest first."""
    held, seen = counts(trials)
    found = {kind: (held[kind] + 1) / (cases + 4) for kind, cases in seen.items()}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def counts(trials: Iterable[Trial]) -> tuple[Counter[str], Counter[str]]:
    """For each kind the number of cases in which a right function holds it, and in which any does."""
    held: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for trial in trials:
        holders = [{evidence.kind for evidence in suspect.evidence} for suspect in trial.suspects]
        seen.update(set().union(*holders))
        held.update(set().union(*(kinds for kinds, right in zip(holders, trial.right, strict=True) if right)))
    return held, seen


def table_of(trials: Sequence[Trial]) -> Table:
    """Each kind with its counts, its rate, and the rate that is shipped."""
    held, seen = counts(trials)
    table = Table(title=f"Rates over {len(trials)} cases")
    table.add_column("kind")
    for name in ("cases with it", "a right function holds it", "rate", "shipped"):
        table.add_column(name, justify="right")
    for kind, rate in rates(trials).items():
        shipped = f"{KIND_RATES[kind]:.2f}" if kind in KIND_RATES else ""
        table.add_row(kind, str(seen[kind]), str(held[kind]), f"{rate:.2f}", shipped)
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit status is 2 for wrong input."""
    return run_program(_main, argv)


def _main(argv: Sequence[str] | None) -> None:
    console, trials = open_trials(parser_of(__doc__).parse_args(argv))
    if trials:
        console.print(table_of(trials))


if __name__ == "__main__":
    sys.exit(main())
