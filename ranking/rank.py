"""Rankers: suspects in, the same suspects in order of blame out.

Every ranker sorts its input first, so that no result depends on the order it came in. `fused` is the default;
`commits`, `proximity` and `paper` are those of the paper's Table 3 (`paper` is its embedding similarity ranker).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from xlocal.ranking import history, lexical
from xlocal.ranking.encoder import DEFAULT_MODEL, Encoder, load_encoder
from xlocal.ranking.evidence import RankedSuspect, Suspect
from xlocal.ranking.source import FunctionSource, SourceIndex
from xlocal.ranking.spectrum import spectrum_scores
from xlocal.ranking.text import Issue, named_functions
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import UsageError, Warned

FloatArray = NDArray[np.float64]

DEFAULT_RANKER = "fused"
# K of the paper's section 5.3.
PAPER_TOP = 20

# In what share of real bugs a right function holds evidence of a kind, where any function does. Measured on the visible
# cases by experiments/rates.py, which prints this table; kinds that those cases lack are set by hand.
KIND_RATES: Mapping[str, float] = MappingProxyType(
    {
        "traceback": 0.75,
        "return": 0.67,
        "deleted": 0.65,
        "named-in-issue": 0.52,
        "exception": 0.52,
        "argument": 0.52,
        "only-buggy": 0.49,
        "line": 0.48,
        "parent-of-inserted": 0.48,
        "carrier": 0.47,
        "parent-of-deleted": 0.33,
        "origin": 0.32,
        "count": 0.31,
        "inserted": 0.27,
        "line-count": 0.23,
        "exit-state": 0.18,
        "only-reference": 0.1,
        "absorber": 0.05,
        "moved": 0.03,
        "writer": 0.03,
        # Set by hand.
        "changed": 0.5,
        "spectrum": 0.3,
        "override": 0.05,
        "class-data": 0.05,
    }
)
# A kind that the table does not know.
OTHER_KINDS = 0.1
# What each further kind of evidence on the same function counts of the one before it: kinds go together, and a function
# that merely passes on what differs has many.
FADE = 0.35
# What any difference is worth beside its kind, in nats: nearly every right function of the visible cases shows some,
# and half of the others show none.
DIFFERS = 3.0
# Kinds that are no difference between the runs.
NOT_SEEN = frozenset({"named-in-issue", "override", "class-data"})
# Of the fused score: what one nat of evidence counts beside one deviation of the text's score.
EVIDENCE_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a ranker may look at beside the suspects.

    `repository` is the directory that paths start from (the git work tree), for `commits`. `paper` and `embedding`
    use `encoder`, else load `model` (a hub id or a folder; default UniXcoder) with the vector cache in the folder
    `cache`. `top` is the K that `paper` keeps; no other ranker cuts its list. `warn` is told of doubts about the data.
    """

    sources: SourceIndex
    issue: Issue | None = None
    repository: Path | None = None
    encoder: Encoder | None = None
    model: str | None = None
    cache: Path | None = None
    top: int = PAPER_TOP
    warn: Callable[[Warned], None] = lambda _: None

    def has_issue(self) -> bool:
        """True when there is an issue text with anything in it."""
        return self.issue is not None and bool(self.issue.text.strip())


class Ranker(Protocol):
    """Orders suspects. Functions that the buggy run did not execute come last, whatever their score."""

    @property
    def name(self) -> str:
        """What `--ranker` calls it."""

    def rank(self, suspects: Sequence[Suspect], context: Context) -> tuple[RankedSuspect, ...]:
        """The suspects with rank and score; UsageError when the context lacks what the ranker needs."""


Scorer = Callable[[Sequence[Suspect], Context], FloatArray]


@dataclass(frozen=True, slots=True)
class ScoreRanker:
    """A ranker that gives each suspect a score, after a choice of which suspects to rank at all."""

    name: str
    score: Scorer
    choose: Callable[[Sequence[Suspect], Context], list[Suspect]] = lambda suspects, _: list(suspects)
    cut: bool = False

    def rank(self, suspects: Sequence[Suspect], context: Context) -> tuple[RankedSuspect, ...]:
        """See Ranker. Ties are broken by path, line and qualname."""
        chosen = sorted(self.choose(suspects, context), key=_identity)
        scores = self.score(chosen, context).tolist() if chosen else []
        order = in_order(chosen, scores)
        kept = order[: context.top] if self.cut else order
        return tuple(RankedSuspect(rank, round(scores[i], 6), chosen[i]) for rank, i in enumerate(kept, start=1))


def in_order(suspects: Sequence[Suspect], scores: Sequence[float]) -> list[int]:
    """Indices of the suspects by falling score, unexecuted ones last; ties keep their order."""
    return sorted(range(len(suspects)), key=lambda i: (not suspects[i].executed, -scores[i], i))


def get_ranker(name: str = DEFAULT_RANKER) -> Ranker:
    """The ranker of a name; UsageError lists the names."""
    ranker = next((ranker for ranker in RANKERS if ranker.name == name), None)
    if ranker is None:
        raise UsageError(f"there is no ranker {name!r}; choose one of {', '.join(ranker_names())}")
    return ranker


def ranker_names() -> tuple[str, ...]:
    """Every name that `get_ranker` knows, the default first."""
    return tuple(ranker.name for ranker in RANKERS)


def _identity(suspect: Suspect) -> tuple[str, int, str]:
    return suspect.function.path, suspect.line, suspect.function.qualname


def _issue(name: str, context: Context) -> Issue:
    if context.issue is None or not context.has_issue():
        raise UsageError(f"the ranker {name!r} needs the text of an issue; give one with --issue FILE")
    return context.issue


def _sources(suspects: Iterable[Suspect], context: Context) -> list[FunctionSource]:
    """Source of each suspect; one whose file is not there keeps its name and path as text."""
    return [context.sources.source(suspect.function) or _nameless(suspect.function) for suspect in suspects]


def _nameless(function: Function) -> FunctionSource:
    *around, name = function.qualname.split(".")
    return FunctionSource(
        function=function,
        line=0,
        end_line=0,
        ranges=(),
        text="",
        name=name,
        class_names=tuple(around),
        docstring="",
        comments="",
        body="",
    )


def lexical_scores(suspects: Sequence[Suspect], context: Context) -> FloatArray:
    """BM25F of the issue against each suspect's source, in deviations from the mean (see `lexical`)."""
    return lexical.scores(_issue("lexical", context), _sources(suspects, context))


def evidence_scores(
    suspects: Sequence[Suspect],
    _context: Context | None = None,
    *,
    rates: Mapping[str, float] = KIND_RATES,
    without: frozenset[str] = frozenset(),
) -> FloatArray:
    """How much the evidence speaks against each function, shape `(n,)`, in nats, none negative.

    One kind is worth log(1 + rate x functions / holders), where `functions` counts those that the buggy run executed
    and `holders` those with this kind: how much likelier than by chance it points to the right function. Weaker
    findings of a kind count in proportion. The kinds of one function are summed, the strongest first, and each further
    one counts `FADE` of what the one before it does. A function that differs at all has `DIFFERS` more. Kinds of
    `without` are left out.
    """
    executed = sum(suspect.executed for suspect in suspects)
    each = [_by_kind(suspect, without) for suspect in suspects]
    holders = Counter(kind for kinds in each for kind in kinds)
    strongest = {kind: max(kinds.get(kind, 0.0) for kinds in each) for kind in holders}
    # The frames of a traceback are told apart by their distance from the raise, not by how many they are.
    holders["traceback"] = 1
    worth = {kind: rates.get(kind, OTHER_KINDS) * (executed + 1) / count for kind, count in holders.items()}
    return np.array(
        [
            _faded(math.log1p(worth[kind] * weight / strongest[kind]) for kind, weight in kinds.items() if weight > 0)
            + DIFFERS * (not kinds.keys() <= NOT_SEEN)
            for kinds in each
        ]
    )


def _by_kind(suspect: Suspect, without: frozenset[str]) -> dict[str, float]:
    """The greatest weight of each kind of evidence."""
    best: dict[str, float] = {}
    for item in suspect.evidence:
        if item.kind in without:
            continue
        best[item.kind] = max(item.weight, best.get(item.kind, 0.0))
    return best


def _faded(values: Iterable[float]) -> float:
    return sum(value * FADE**place for place, value in enumerate(sorted(values, reverse=True)))


def fused_scores(suspects: Sequence[Suspect], context: Context) -> FloatArray:
    """The text's score, in deviations from the mean, + 0.6 x the evidence's, in nats: a sum of log odds, roughly. That
    the issue names a function counts in the text's alone.

    Without an issue: the evidence alone, and where that ties the suspect nearer to the raise, called more rarely, and
    deeper in the tree.
    """
    return fuse(suspects, lexical_scores(suspects, context) if context.has_issue() else None)


def fuse(
    suspects: Sequence[Suspect], text: FloatArray | None, *, rates: Mapping[str, float] = KIND_RATES
) -> FloatArray:
    """`fused_scores` of suspects whose scores by the text, shape `(n,)`, are known; None without an issue."""
    if text is not None:
        # What the issue names is in the text's score; counted twice, it drowned what was seen.
        seen = evidence_scores(suspects, rates=rates, without=frozenset({"named-in-issue"}))
        return np.asarray(text - text.min(initial=0.0) + EVIDENCE_SHARE * seen)
    evidence = evidence_scores(suspects, rates=rates)
    keys = [(_nearness(suspect), -suspect.calls[0], suspect.depth) for suspect in suspects]
    place = {key: i for i, key in enumerate(sorted(set(keys)))}
    # Scores are rounded to six digits; the tie-break stays below a real difference of evidence.
    return np.round(evidence, 3) + np.array([place[key] for key in keys]) * (4e-4 / len(place))


def _nearness(suspect: Suspect) -> float:
    return max((item.weight for item in suspect.evidence if item.kind == "traceback"), default=0.0)


def commit_scores(suspects: Sequence[Suspect], context: Context) -> FloatArray:
    """Number of commits that touched each function in the year before HEAD (see `history.changes`)."""
    if context.repository is None:
        raise UsageError("the ranker 'commits' needs the project's git work tree; use a clone or another --ranker")
    changes = history.changes(_sources(suspects, context), context.repository, warn=context.warn)
    return np.array([changes[suspect.function] for suspect in suspects], np.float64)


def proximity_scores(suspects: Sequence[Suspect], context: Context) -> FloatArray:
    """Sum of three signals in 0..1: shares a file with a function or file that the issue names; runs below a named
    function; closeness to the root of the trace, 1 / (1 + depth)."""
    named = _named(suspects, context)
    files = {function.path for function in named} | _named_files(suspects, context)
    below = _descendants(named, suspects)
    return np.array(
        [
            (suspect.function.path in files)
            + (suspect.function in below or suspect.function in named)
            + (1 / (1 + suspect.depth) if suspect.depth >= 0 else 0.0)
            for suspect in suspects
        ]
    )


def _descendants(functions: Iterable[Function], suspects: Sequence[Suspect]) -> set[Function]:
    """Functions that ran below any of `functions`, by the calls of the buggy run."""
    callees = {suspect.function: suspect.callees for suspect in suspects}
    found: set[Function] = set()
    waiting = list(functions)
    while waiting:
        fresh = set(callees.get(waiting.pop(), ())) - found
        found |= fresh
        waiting.extend(fresh)
    return found


def _named(suspects: Iterable[Suspect], context: Context) -> set[Function]:
    """Suspects that the issue names, by evidence or by its text."""
    every = list(suspects)
    found = {suspect.function for suspect in every if suspect.has("named-in-issue")}
    if context.issue is not None:
        found |= named_functions(context.issue, [s.function for s in every], sources=context.sources).keys()
    return found


def _named_files(suspects: Iterable[Suspect], context: Context) -> set[str]:
    """Paths of suspects whose dotted module path, or whose file name, stands in the issue's names or frames."""
    if context.issue is None:
        return set()
    framed = {frame.path.replace("\\", "/").rpartition("/")[2] for frame in context.issue.frames}
    found = set()
    for path in {suspect.function.path for suspect in suspects}:
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".").removeprefix("src.")
        prefixes = (module, module + ".")
        if path.rpartition("/")[2] in framed or any(name.startswith(prefixes) for name in context.issue.names):
            found.add(path)
    return found


def _deleted_or_named(suspects: Sequence[Suspect], context: Context) -> list[Suspect]:
    """The paper's set S: functions of deleted nodes, and those that the issue names."""
    named = _named(suspects, context)
    return [suspect for suspect in suspects if suspect.has("deleted") or suspect.function in named]


def embedding_scores(suspects: Sequence[Suspect], context: Context) -> FloatArray:
    """Mean of two cosines: of the issue with the function's body, and with its name.

    The paper derives one score from both (section 4.3) without saying how; the mean is ours.
    """
    issue = _issue("paper", context)
    sources = _sources(suspects, context)
    encoder = context.encoder or load_encoder(context.model or DEFAULT_MODEL, cache=context.cache, warn=context.warn)
    texts = [issue.text, *(source.text or source.name for source in sources), *(source.name for source in sources)]
    vectors = encoder.encode(texts).astype(np.float64)
    body, name = np.split(vectors[1:] @ vectors[0], 2)
    return np.asarray((body + name) / 2)


RANKERS: tuple[Ranker, ...] = (
    ScoreRanker("fused", fused_scores),
    ScoreRanker("lexical", lexical_scores),
    ScoreRanker("evidence", evidence_scores),
    ScoreRanker("paper", embedding_scores, choose=_deleted_or_named, cut=True),
    ScoreRanker("embedding", embedding_scores),
    ScoreRanker("commits", commit_scores),
    ScoreRanker("proximity", proximity_scores),
    ScoreRanker("spectrum", spectrum_scores),
)
