"""What came of the cases of the localization benchmark: summaries of it, as plain values and as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean, median

import metrics
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

AT = (1, 5, 10, 20)
SAMPLES = 2000  # of the bootstrap


@dataclass(frozen=True, slots=True)
class Held:
    """One kind of evidence in one case: how many executed functions hold it, and whether a right one does."""

    flagged: int
    right: bool


@dataclass(frozen=True, slots=True)
class Unranked:
    """Why a ranker gave no ranking; `everywhere`: for want of a model, in all cases alike."""

    reason: str
    everywhere: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one case: whole `rankings`, as `path::qualname`, and why other rankers gave none (`unranked`).

    `executed` counts the functions of the buggy run, `cost` the edits between the runs (a bound unless `exact`).
    """

    id: str
    repository: str
    kind: str
    true_functions: tuple[str, ...]
    executed: int
    cost: int
    exact: bool
    warnings: tuple[str, ...]
    kinds: dict[str, Held]
    rankings: dict[str, tuple[str, ...]]
    unranked: dict[str, Unranked]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A script compared with itself: `cost` of the tree difference and the functions that seem to differ."""

    id: str
    cost: int
    functions: tuple[str, ...]

    @property
    def differences(self) -> int:
        """0 when the runs are alike."""
        return max(self.cost, len(self.functions))


@dataclass(frozen=True, slots=True)
class Skipped:
    """A case that gave no result, and why."""

    id: str
    reason: str


def working(outcomes: Sequence[Outcome], rankers: Sequence[str]) -> list[str]:
    """The rankers that ranked a case and lacked no model in any."""
    lacking = {name for outcome in outcomes for name, why in outcome.unranked.items() if why.everywhere}
    return [name for name in rankers if name not in lacking and any(name in outcome.rankings for outcome in outcomes)]


def summarize(outcomes: Sequence[Outcome], ranker: str) -> dict[str, float]:
    """any@k and all@k for each k of `AT`, and MRR, over the outcomes that `ranker` ranked; `n` counts them."""
    ranked = [(outcome.rankings[ranker], outcome.true_functions) for outcome in outcomes if ranker in outcome.rankings]
    if not ranked:
        return {"n": 0}
    return {
        "n": len(ranked),
        **{f"any@{k}": fmean(metrics.any_at(k, *pair) for pair in ranked) for k in AT},
        **{f"all@{k}": fmean(metrics.all_at(k, *pair) for pair in ranked) for k in AT},
        "mrr": fmean(metrics.reciprocal_rank(*pair) for pair in ranked),
    }


def summarize_kinds(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """For each kind of evidence: in how many cases it occurs and how often it holds a true function (`holds`).

    `flagged` is the median number of functions that hold it, `executed` that of functions executed, both over the
    cases where it occurs.
    """
    summary = {}
    for kind in sorted({kind for outcome in outcomes for kind in outcome.kinds}):
        cases = [outcome for outcome in outcomes if kind in outcome.kinds]
        summary[kind] = {
            "n": len(cases),
            "holds": sum(outcome.kinds[kind].right for outcome in cases),
            "flagged": median(outcome.kinds[kind].flagged for outcome in cases),
            "executed": median(outcome.executed for outcome in cases),
        }
    return summary


def by_repository(outcomes: Sequence[Outcome], ranker: str) -> dict[str, dict[str, float]]:
    """`summarize` per repository."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.repository].append(outcome)
    return {repository: summarize(group, ranker) for repository, group in sorted(groups.items())}


@dataclass(frozen=True, slots=True)
class Spread:
    """How far a mean may be off: bootstrap intervals (95 %) over the cases, and over whole `repositories`, whose cases
    resemble one another; and the least and greatest mean when one repository is left out."""

    mean: float
    by_case: tuple[float, float]
    by_repository: tuple[float, float]
    without_one: tuple[float, float]


def spread(outcomes: Sequence[Outcome], ranker: str, value: Callable[[Sequence[str], Sequence[str]], float]) -> Spread:
    """The spread of the mean of `value(ranking, true functions)` over the outcomes that `ranker` ranked.

    2,000 samples from a fixed seed. The outcomes must hold at least one that was ranked.
    """
    groups: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        if ranker in outcome.rankings:
            groups[outcome.repository].append(float(value(outcome.rankings[ranker], outcome.true_functions)))
    every = np.array([each for group in groups.values() for each in group])
    chance = np.random.default_rng(0)
    cases = every[chance.integers(len(every), size=(SAMPLES, len(every)))].mean(axis=1)
    sums = np.array([sum(group) for group in groups.values()])
    sizes = np.array([len(group) for group in groups.values()])
    drawn = chance.integers(len(groups), size=(SAMPLES, len(groups)))
    clusters = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    left = (sums.sum() - sums) / np.maximum(sizes.sum() - sizes, 1) if len(groups) > 1 else every.mean(keepdims=True)
    return Spread(float(every.mean()), _middle(cases), _middle(clusters), (float(left.min()), float(left.max())))


def _middle(samples: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(samples, [2.5, 97.5])
    return float(low), float(high)


def spreads(outcomes: Sequence[Outcome], ranker: str) -> dict[str, Spread]:
    """`spread` of any@k for each k of `AT`, and of MRR; empty when `ranker` ranked none."""
    if not any(ranker in outcome.rankings for outcome in outcomes):
        return {}
    found = {f"any@{k}": spread(outcomes, ranker, partial(metrics.any_at, k)) for k in AT}
    return {**found, "mrr": spread(outcomes, ranker, metrics.reciprocal_rank)}


def spread_table(outcomes: Sequence[Outcome], ranker: str) -> Table:
    """One line per figure, in percent."""
    table = Table(title=f"How sure the figures are, {ranker} (%)")
    table.add_column("figure")
    for name in ("mean", "95 % by case", "95 % by repository", "one repository left out"):
        table.add_column(name, justify="right")
    for name, found in spreads(outcomes, ranker).items():
        pairs = (found.by_case, found.by_repository, found.without_one)
        table.add_row(name, f"{100 * found.mean:.0f}", *(f"{100 * low:.0f} to {100 * high:.0f}" for low, high in pairs))
    return table


def ranking_table(title: str, first: str, rows: dict[str, dict[str, float]]) -> Table:
    """One line per ranker or repository, shares in percent."""
    table = Table(title=title)
    table.add_column(first)
    columns = ["n", *(f"any@{k}" for k in AT), *(f"all@{k}" for k in AT), "mrr"]
    for name in columns:
        table.add_column("MRR" if name == "mrr" else name, justify="right")
    for name, row in rows.items():
        shown = [f"{row[c]:.3f}" if c == "mrr" else f"{100 * row[c]:.0f}" for c in columns[1:]] if row["n"] else []
        table.add_row(name, f"{row['n']:.0f}", *shown)
    return table


def case_table(outcomes: Sequence[Outcome], rankers: Sequence[str]) -> Table:
    """Per case the place of the first right suspect under each ranker."""
    table = Table(title="Place of the first true function")
    table.add_column("case")
    for name in ("executed", "difference", *rankers):
        table.add_column(name, justify="right")
    for outcome in outcomes:
        places = [metrics.first_right(outcome.rankings.get(name, ()), outcome.true_functions) for name in rankers]
        difference = f"{'' if outcome.exact else '<= '}{outcome.cost}"
        table.add_row(outcome.id, str(outcome.executed), difference, *(str(place or "-") for place in places))
    return table


def kind_table(outcomes: Sequence[Outcome]) -> Table:
    """How often each kind of evidence holds a true function, and how many it flags."""
    table = Table(title="Kinds of evidence")
    table.add_column("kind")
    for name in ("cases with it", "holds a true function", "median flagged", "of executed"):
        table.add_column(name, justify="right")
    for kind, row in summarize_kinds(outcomes).items():
        table.add_row(kind, *(f"{row[name]:g}" for name in ("n", "holds", "flagged", "executed")))
    return table


def self_table(results: Sequence[Repeated]) -> Table:
    """Each script against itself."""
    table = Table(title="Each script against itself")
    table.add_column("case")
    table.add_column("edits", justify="right")
    table.add_column("functions with evidence", justify="right")
    table.add_column("such as")
    for result in results:
        table.add_row(result.id, str(result.cost), str(len(result.functions)), ", ".join(result.functions[:3]))
    return table


def report(outcomes: Sequence[Outcome], rankers: Sequence[str], skipped: Sequence[Skipped]) -> dict[str, object]:
    """All figures as plain values."""
    shown = working(outcomes, rankers)
    return {
        "schema": 1,
        "rankers": {name: summarize(outcomes, name) for name in shown},
        "spread": {name: {k: asdict(found) for k, found in spreads(outcomes, name).items()} for name in shown},
        "kinds": summarize_kinds(outcomes),
        "repositories": {name: by_repository(outcomes, name) for name in shown},
        "cases": [asdict(outcome) for outcome in outcomes],
        "skipped": [asdict(one) for one in skipped],
    }
