"""Metrics of fault localization, pure and in one place.

A function is `path::qualname`. A suspect is *right* when it names a true function or a function defined inside one
(`Outer.inner` is right for the true `Outer`). `k` counts places in the ranking, from 1.

Three conventions of scoring a set of predicted functions are in use, and their figures do not compare:

* `paper`: precision, recall and F1 per instance, then their plain (macro) means. An instance without true functions
  is left out and counted; an instance without prediction scores 0.
* `locagent`: an instance counts 1 when *all* its true functions are among the predicted (with a ranking: among the
  first k, "Acc@k"), else 0. Instances without true functions are left out.
* `orcaloca`: the match rate, counted as in `locagent`, but over all instances: one without true functions stays in the
  denominator and counts 0. Precision is given beside it, over the same instances.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, get_args

Convention = Literal["paper", "locagent", "orcaloca"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)


@dataclass(frozen=True, slots=True)
class Scores:
    """Means over `n` instances, each in 0..1; `excluded` instances had no true function and were left out.

    `accuracy` is the share of instances whose true functions were all predicted.
    """

    n: int
    excluded: int
    precision: float
    recall: float
    f1: float
    accuracy: float


def is_right(suspect: str, true: Iterable[str]) -> bool:
    """True when `suspect` is one of `true` or is defined inside one of them."""
    return any(_is_within(suspect, function) for function in true)


def first_right(ranking: Sequence[str], true: Iterable[str]) -> int | None:
    """The place (from 1) of the first right suspect, or None."""
    true = tuple(true)
    return next((place for place, suspect in enumerate(ranking, 1) if is_right(suspect, true)), None)


def any_at(k: int, ranking: Sequence[str], true: Iterable[str]) -> bool:
    """True when one of the first `k` suspects is right (the paper's Top-K)."""
    place = first_right(ranking[:k], true)
    return place is not None


def all_at(k: int, ranking: Sequence[str], true: Iterable[str]) -> bool:
    """True when each true function, of one or more, has a right suspect among the first `k`."""
    true = tuple(true)
    return bool(true) and recall(ranking[:k], true) == 1


def reciprocal_rank(ranking: Sequence[str], true: Iterable[str]) -> float:
    """1 over the place of the first right suspect; 0 when there is none."""
    place = first_right(ranking, true)
    return 1 / place if place else 0.0


def precision(predicted: Iterable[str], true: Iterable[str]) -> float:
    """Share of the predicted functions that are right; 0 when nothing was predicted."""
    predicted, true = set(predicted), tuple(true)
    return sum(is_right(one, true) for one in predicted) / len(predicted) if predicted else 0.0


def recall(predicted: Iterable[str], true: Iterable[str]) -> float:
    """Share of the true functions that a prediction names or lies inside; 0 when there are none."""
    predicted, true = set(predicted), set(true)
    return sum(any(_is_within(one, function) for one in predicted) for function in true) / len(true) if true else 0.0


def f1(predicted: Iterable[str], true: Iterable[str]) -> float:
    """Harmonic mean of precision and recall of one instance; 0 when both are 0."""
    predicted, true = set(predicted), set(true)
    p, r = precision(predicted, true), recall(predicted, true)
    return 2 * p * r / (p + r) if p + r else 0.0


def score(instances: Iterable[tuple[Iterable[str], Iterable[str]]], *, convention: Convention = "paper") -> Scores:
    """Mean scores of `(predicted, true)` pairs, one per instance (an empty `predicted`: nothing came back).

    Raises ValueError for a convention that is not one of `CONVENTIONS`.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"unknown convention {convention!r}: one of {', '.join(CONVENTIONS)}")
    pairs = [(frozenset(predicted), frozenset(true)) for predicted, true in instances]
    kept = pairs if convention == "orcaloca" else [pair for pair in pairs if pair[1]]
    if not kept:
        return Scores(0, len(pairs), 0.0, 0.0, 0.0, 0.0)
    return Scores(
        n=len(kept),
        excluded=len(pairs) - len(kept),
        precision=fmean(precision(*pair) for pair in kept),
        recall=fmean(recall(*pair) for pair in kept),
        f1=fmean(f1(*pair) for pair in kept),
        accuracy=fmean(recall(*pair) == 1 for pair in kept),
    )


def _is_within(suspect: str, function: str) -> bool:
    return suspect == function or suspect.startswith(function + ".")
