"""What each part of the evidence is worth: the default ranker again without it, on real bugs.

    python experiments/ablation.py --cases DIR [--checkouts DIR] [--cache DIR] [--model NAME] [--out FILE]

takes the recordings of experiments/localization.py (the same --cache) and makes those that are missing. Each line
leaves out one kind of evidence, or all that a part of xlocal gives, or keeps one alone; `paper's set` is the paper's
choice of functions (deleted, or named in the issue) in the order of the text; `rates of other repositories` measures
the ranker's table anew for each case, on the cases of the other repositories alone. --model adds two lines with an
encoder: its similarities beside the text's, and in its place. The change of the mean reciprocal rank comes with its
95 % bootstrap interval over the cases: one that holds 0 says nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from methods import run_program
from outcomes import AT, SAMPLES
from rates import rates
from rich.table import Table
from trials import Trial, open_trials, parser_of
from xlocal.ranking import closer
from xlocal.ranking.lexical import standardised
from xlocal.ranking.rank import FloatArray, evidence_scores, fuse

DEFAULT = "fused"
CLOSER_LOOK = frozenset(closer.KINDS)


Variant = Callable[[Trial], int | None]


def without(*kinds: str) -> Variant:
    """The default ranker on suspects that lost all evidence of `kinds`."""

    def place(trial: Trial) -> int | None:
        left = [replace(s, evidence=tuple(e for e in s.evidence if e.kind not in kinds)) for s in trial.suspects]
        return trial.place(fuse(left, trial.text))

    return place


def foreign_rates(trials: Sequence[Trial]) -> Variant:
    """The default ranker with the rates of kinds measured on the other repositories' cases alone."""
    of = {
        repository: rates(trial for trial in trials if trial.repository != repository)
        for repository in {trial.repository for trial in trials}
    }
    return lambda trial: trial.place(fuse(trial.suspects, trial.text, rates=of[trial.repository]))


def paper_set(trial: Trial) -> int | None:
    """Deleted or named functions alone, in the order of the text."""
    kept = [i for i, suspect in enumerate(trial.suspects) if suspect.has("deleted", "named-in-issue")]
    return trial.place(trial.text, kept)


def beside(trial: Trial) -> int | None:
    """The encoder's similarities added to the text's scores, both in deviations from their means."""
    return trial.place(fuse(trial.suspects, trial.text + standardised(trial.similar)))


def instead(trial: Trial) -> int | None:
    """The encoder's similarities in place of the text's scores."""
    return trial.place(fuse(trial.suspects, standardised(trial.similar)))


def variants(trials: Sequence[Trial]) -> dict[str, Variant]:
    """Every line of the table, by its name."""
    kinds = sorted({evidence.kind for trial in trials for s in trial.suspects for evidence in s.evidence})
    found: dict[str, Variant] = {
        DEFAULT: lambda trial: trial.place(fuse(trial.suspects, trial.text)),
        "text alone": lambda trial: trial.place(trial.text),
        "evidence alone": lambda trial: trial.place(evidence_scores(trial.suspects)),
        "paper's set, by the text": paper_set,
        "without the closer look": without(*CLOSER_LOOK),
        "without calls and edits": without(*(set(kinds) - CLOSER_LOOK - {"named-in-issue"})),
        "rates of other repositories": foreign_rates(trials),
        **{f"without {kind}": without(kind) for kind in kinds},
    }
    if all(len(trial.similar) for trial in trials):
        found |= {"with the encoder beside the text": beside, "with the encoder instead of the text": instead}
    return found


@dataclass(frozen=True, slots=True)
class Line:
    """One variant: `any_at` by k and `mrr` as means; `change` of the mean reciprocal rank, `low` to `high` with 95 %;
    `better` and `worse` count the cases whose first true function stands higher or lower than by default."""

    name: str
    any_at: dict[int, float]
    mrr: float
    change: float
    low: float
    high: float
    better: int
    worse: int


def line_of(name: str, places: Sequence[int | None], usual: Sequence[int | None]) -> Line:
    """The figures of one variant beside the default's, case by case."""
    now, then = _reciprocal(places), _reciprocal(usual)
    drawn = np.random.default_rng(0).integers(len(now), size=(SAMPLES, len(now)))
    low, high = np.percentile((now - then)[drawn].mean(axis=1), [2.5, 97.5])
    hits = {k: sum(place is not None and place <= k for place in places) / len(places) for k in AT}
    change = float((now - then).mean())
    return Line(name, hits, float(now.mean()), change, float(low), float(high), *(int(n) for n in _moved(now, then)))


def _moved(now: FloatArray, then: FloatArray) -> tuple[int, int]:
    return int((now > then).sum()), int((now < then).sum())


def _reciprocal(places: Iterable[int | None]) -> FloatArray:
    return np.array([1 / place if place else 0.0 for place in places])


def table_of(lines: Sequence[Line], count: int) -> Table:
    """All lines, shares in percent."""
    table = Table(title=f"What each part is worth, {count} cases (%)")
    table.add_column("ranker")
    for name in (*(f"any@{k}" for k in AT), "MRR", "change of MRR", "95 %", "better", "worse"):
        table.add_column(name, justify="right")
    for line in lines:
        hits = [f"{100 * line.any_at[k]:.0f}" for k in AT]
        interval = "" if line.name == DEFAULT else f"{line.low:+.3f} to {line.high:+.3f}"
        change = "" if line.name == DEFAULT else f"{line.change:+.3f}"
        table.add_row(line.name, *hits, f"{line.mrr:.3f}", change, interval, str(line.better), str(line.worse))
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit status is 2 for wrong input."""
    return run_program(_main, argv)


def _main(argv: Sequence[str] | None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", metavar="NAME", help="an encoder: a folder, or a name on the hub")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all figures as JSON")
    given = parser.parse_args(argv)
    console, trials = open_trials(given, model=given.model)
    if not trials:
        return
    places = {name: [place(trial) for trial in trials] for name, place in variants(trials).items()}
    lines = [line_of(name, found, places[DEFAULT]) for name, found in places.items()]
    console.print(table_of(lines, len(trials)))
    if given.out:
        document = {"schema": 1, "cases": [trial.id for trial in trials], "places": places}
        given.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
