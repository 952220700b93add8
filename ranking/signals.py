"""What the difference of two call trees says about each function: one finding per function and kind."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xlocal.ranking.diff import TreeDiff
from xlocal.ranking.evidence import Evidence
from xlocal.ranking.observation import Observation
from xlocal.ranking.source import SourceIndex
from xlocal.tracer.calltree import CallTree, Function, IntArray
from xlocal.tracer.trace import UncaughtException

# Python before 3.10 gives the name alone, later the qualified one.
_REFUSED = re.compile(r"([\w.<>]+)\(\) ((?:got an unexpected|got multiple values|missing|takes)\b.*)", re.DOTALL)
MOST_NAMESAKES = 3


class Finding(NamedTuple):
    """One observation before it is weighed: `strength` in 0..1 compares findings of one kind."""

    strength: float
    detail: str


Findings = dict[str, dict[Function, Finding]]
Edges = Counter[tuple[Function, Function]]


def findings(buggy: Observation, reference: Observation, difference: TreeDiff, index: SourceIndex) -> Findings:
    """Every kind of finding that one pair of runs gives, by kind and function; noise is left out."""
    noisy = buggy.noisy | reference.noisy
    found: Findings = {
        **_alone(buggy, reference),
        **difference_findings(difference, noisy),
        "count": dict(_counts(buggy.tree, reference.tree)),
        "exception": dict(_exceptions(buggy.tree, reference.tree)),
        "traceback": dict(_traceback(buggy, reference, index)),
    }
    return without_noise(found, noisy)


def without_noise(found: Findings, noisy: Set[Function]) -> Findings:
    """The findings about functions that behave alike in all runs of a script. The frames of the exception that ended
    the buggy run stay: they are what happened."""
    return {
        kind: flagged if kind == "traceback" else {f: finding for f, finding in flagged.items() if f not in noisy}
        for kind, flagged in found.items()
    }


def weigh(found: Findings, executed: int) -> dict[Function, list[Evidence]]:
    """Evidence from findings: each kind weighs by its rarity among the `executed` functions of this trace.

    A kind that flags one function weighs 1 (times the finding's strength), one that flags all of them next to
    nothing: log((executed + 1) / flagged) / log(executed + 1).
    """
    evidence: dict[Function, list[Evidence]] = {}
    for kind, flagged in found.items():
        rarity = 1.0 if kind == "traceback" else _rarity(len(flagged), executed)
        for function, finding in flagged.items():
            weight = round(max(rarity * finding.strength, 0.001), 4)
            evidence.setdefault(function, []).append(Evidence(kind, weight, finding.detail))
    return evidence


def strongest(each: Iterable[Mapping[Function, list[Evidence]]]) -> dict[Function, tuple[Evidence, ...]]:
    """Over several references the best of each kind, not the sum; heaviest first."""
    best: dict[Function, dict[str, Evidence]] = {}
    for evidence in each:
        for function, items in evidence.items():
            kinds = best.setdefault(function, {})
            for item in items:
                if item.kind not in kinds or item.weight > kinds[item.kind].weight:
                    kinds[item.kind] = item
    return {f: tuple(sorted(kinds.values(), key=lambda e: (-e.weight, e.kind))) for f, kinds in best.items()}


def _rarity(flagged: int, executed: int) -> float:
    if not flagged:
        return 0.0
    return max(math.log((executed + 1) / flagged) / math.log(executed + 1), 0.0) if executed else 1.0


def times(count: int) -> str:
    """`once`, `twice`, `5 times`."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _alone(buggy: Observation, reference: Observation) -> Findings:
    """Functions that one of the scripts calls in all its runs and the other in none."""
    here, there = buggy.tree.counts(), reference.tree.counts()
    only_buggy = {f: Finding(1.0, f"runs {times(n)}, only in the buggy run") for f, n in here.items() if f not in there}
    only_reference = {
        f: Finding(1.0, f"runs {times(n)} in the reference run, never in the buggy one")
        for f, n in there.items()
        if f not in here
    }
    return {
        "only-buggy": {f: finding for f, finding in only_buggy.items() if f in buggy.steady},
        "only-reference": {f: finding for f, finding in only_reference.items() if f in reference.steady},
    }


def difference_findings(difference: TreeDiff, noisy: Set[Function] = frozenset()) -> Findings:
    """What the edits between two call trees say, by kind and function, without those inside an edited call of a
    function in `noisy`: that call came by chance, and so did all that it called."""
    buggy, reference = difference.buggy, difference.reference
    here, there = _edges(buggy), _edges(reference)
    moved = difference.moved >= 0
    came = np.zeros(len(reference), np.bool_)
    came[difference.moved[moved]] = True
    chance = _by_chance(buggy, difference.deleted, noisy), _by_chance(reference, difference.inserted, noisy)
    deleted = difference.deleted[~(moved | chance[0])[difference.deleted]]
    inserted = difference.inserted[~(came | chance[1])[difference.inserted]]
    moved &= ~(chance[0] | chance[1][difference.moved])
    return {
        "deleted": dict(_named(buggy, deleted, "{} of its calls has no counterpart in the reference run")),
        "inserted": dict(_named(reference, inserted, "{} of its calls happens only in the reference run")),
        "moved": dict(
            _named(
                buggy,
                np.flatnonzero(moved).astype(np.int32),
                "{} of its calls happens at another place in the reference run",
            )
        ),
        "parent-of-deleted": dict(_callers(difference, deleted, (here, there))),
        "parent-of-inserted": dict(_missing_callees(difference, inserted, (there, here))),
    }


def _by_chance(tree: CallTree, edited: IntArray, noisy: Set[Function]) -> NDArray[np.bool_]:
    """Which edited nodes are calls of `noisy` functions or have one above them with edited nodes alone between, shape
    (n,)."""
    chance = np.zeros(len(tree), np.bool_)
    labels = np.array([function in noisy for function in tree.functions] or [False])
    if not labels.any():
        return chance
    chance[edited] = labels[tree.label[edited]]
    for node, above in zip(edited.tolist(), tree.parent[edited].tolist(), strict=True):
        chance[node] |= chance[above]
    return chance


def _named(tree: CallTree, nodes: IntArray, text: str) -> Iterator[tuple[Function, Finding]]:
    calls = np.bincount(tree.label[1:], minlength=len(tree.functions))
    for label, count in Counter(tree.label[nodes].tolist()).items():
        share = count / max(int(calls[label]), 1)
        yield tree.functions[label], Finding(0.5 + 0.5 * share, _plural(text, count, int(calls[label])))


def _plural(text: str, count: int, of: int) -> str:
    if count == of == 1:
        return text.replace("{} of its calls", "its only call")
    if count == of:
        return (
            text.replace("{} of its calls", f"all {count} of its calls")
            .replace("has no", "have no")
            .replace("happens", "happen")
        )
    text = text.replace("{}", f"{count} of {of}").replace("of its calls", "calls" if of > 1 else "call")
    return text if count == 1 else text.replace("has no", "have no").replace("happens", "happen")


def _tops(tree: CallTree, nodes: IntArray, match: IntArray) -> IntArray:
    """The edited nodes whose caller has a partner: where the difference begins."""
    return nodes[match[tree.parent[nodes]] >= 0]


def _callers(difference: TreeDiff, deleted: IntArray, edges: tuple[Edges, Edges]) -> Iterator[tuple[Function, Finding]]:
    buggy = difference.buggy
    tops = _tops(buggy, deleted, difference.match)
    pairs = [(int(buggy.label[buggy.parent[node]]), buggy.functions[buggy.label[node]]) for node in tops.tolist()]
    yield from _of_callers(
        [(buggy.functions[caller], callee) for caller, callee in pairs if caller >= 0],
        edges,
        ("calls {}, which it does not in the reference run", "{} have no counterpart in the reference run"),
        exact=difference.exact,
    )


def _missing_callees(
    difference: TreeDiff, inserted: IntArray, edges: tuple[Edges, Edges]
) -> Iterator[tuple[Function, Finding]]:
    buggy, reference = difference.buggy, difference.reference
    tops = _tops(reference, inserted, difference.back)
    callers = buggy.label[difference.back[reference.parent[tops]]].tolist()
    callees = [reference.functions[label] for label in reference.label[tops].tolist()]
    yield from _of_callers(
        [(buggy.functions[caller], callee) for caller, callee in zip(callers, callees, strict=True) if caller >= 0],
        edges,
        ("does not call {}, which it does in the reference run", "{} in the reference run have no counterpart here"),
        exact=difference.exact,
    )


def _of_callers(
    calls: Iterable[tuple[Function, Function]],
    edges: tuple[Edges, Edges],
    texts: tuple[str, str],
    *,
    exact: bool,
) -> Iterator[tuple[Function, Finding]]:
    """One finding for each caller of calls that the other run lacks: by the first text where it never makes such a
    call there, else by the second with their number. `edges` are of the run with the calls and of the other."""
    by_caller: dict[Function, Counter[Function]] = {}
    for caller, callee in calls:
        by_caller.setdefault(caller, Counter())[callee] += 1
    here, there = edges
    for caller, callees in by_caller.items():
        new = Counter({callee.qualname: n for callee, n in callees.items() if not there[caller, callee]})
        # A bound pairs calls as it comes: as many calls in both runs tell nothing then.
        more = Counter({c: n for c, n in callees.items() if exact or here[caller, c] != there[caller, c]})
        if new:
            yield caller, Finding(1.0, texts[0].format(_listed(new)))
        elif more:
            (callee, count), *others = sorted(more.items(), key=lambda item: (-item[1], item[0]))
            if here[caller, callee] == there[caller, callee]:
                yield caller, Finding(1.0, f"calls {callee.qualname} in another order than in the reference run")
                continue
            named = f"{count} of its {here[caller, callee]} calls of {callee.qualname}"
            text = texts[1].format(named + (f" and {_others(sum(n for _, n in others))}" if others else ""))
            yield caller, Finding(1.0, text if count > 1 or others else text.replace("have no", "has no"))


def _others(count: int) -> str:
    return f"{count} other{'s' if count > 1 else ''}"


def _edges(tree: CallTree) -> Edges:
    """How often each function calls each other one directly."""
    if len(tree) < 2:
        return Counter()
    # One number for each pair: sorting these is far quicker than sorting pairs.
    width = len(tree.functions)
    called = tree.label[tree.parent[1:]].astype(np.int64) * width + tree.label[1:]
    pairs, counts = np.unique(called[called >= 0], return_counts=True)
    return Counter(
        {
            (tree.functions[pair // width], tree.functions[pair % width]): count
            for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
        }
    )


def _listed(names: Counter[str]) -> str:
    shown = [name for name, _ in sorted(names.items(), key=lambda item: (-item[1], item[0]))[:2]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _counts(buggy: CallTree, reference: CallTree) -> Iterator[tuple[Function, Finding]]:
    there = reference.counts()
    for function, count in buggy.counts().items():
        other = there.get(function, count)
        if other != count:
            ratio = abs(math.log2(count / other))
            yield (
                function,
                Finding(0.5 + min(ratio, 3.0) / 6, f"called {times(count)}, but {times(other)} in the reference run"),
            )


def _exceptions(buggy: CallTree, reference: CallTree) -> Iterator[tuple[Function, Finding]]:
    """Functions that exceptions left more often in the buggy run: the one that raised before those it passed."""
    here, there = _raised(buggy), _raised(reference)
    found: dict[Function, Finding] = {}
    for (function, name, origin), count in sorted(here.items()):
        if count > there.get((function, name, origin), 0):
            shown = "an exception" if name == "?" else name.rpartition(".")[2]
            times_there = there.get((function, name, origin), 0)
            where = (
                "only in the buggy run"
                if not times_there
                else f"{times(count)}, but {times(times_there)} in the reference run"
            )
            finding = Finding(1.0 if origin else 0.5, f"{'raises' if origin else 'is left by'} {shown} {where}")
            if function not in found or found[function].strength < finding.strength:
                found[function] = finding
    yield from found.items()


def _raised(tree: CallTree) -> Counter[tuple[Function, str, bool]]:
    """How often each function was left by each type of exception, apart for those where it began."""
    left = np.flatnonzero(tree.raised >= 0)
    passed = np.zeros(len(tree), np.bool_)
    below = left[tree.raised[tree.parent[left]] == tree.raised[left]]
    passed[tree.parent[below]] = True
    left = left[tree.label[left] >= 0]
    return Counter(
        (tree.functions[tree.label[node]], tree.exceptions[tree.raised[node]], not passed[node])
        for node in left.tolist()
    )


def _traceback(buggy: Observation, reference: Observation, index: SourceIndex) -> Iterator[tuple[Function, Finding]]:
    """Frames of the exception that ended the buggy script, unless the reference ended by the very same one."""
    if _origin(buggy.uncaught) != _origin(reference.uncaught):
        yield from traceback_findings(buggy.uncaught, index)
        yield from refused_calls(buggy.uncaught, index)


def traceback_findings(uncaught: Iterable[UncaughtException], index: SourceIndex) -> Iterator[tuple[Function, Finding]]:
    """Functions of the project in the tracebacks of exceptions, the nearest to the raise first and strongest."""
    seen: set[Function] = set()
    for error in uncaught:
        located = [(index.locate(*frame[:3]), frame[3]) for frame in error.frames]
        inside = [(function, line) for function, line in located if function is not None]
        name = error.type.rpartition(".")[2]
        for distance, (function, line) in enumerate(reversed(inside)):
            if function not in seen:
                seen.add(function)
                above = (
                    f"{distance} call{'s' if distance > 1 else ''} above the raise of" if distance else "where it meets"
                )
                yield function, Finding(1 / (1 + distance), f"in the traceback at line {line}, {above} {name}")


def refused_calls(uncaught: Iterable[UncaughtException], index: SourceIndex) -> Iterator[tuple[Function, Finding]]:
    """The function whose arguments a TypeError refuses: the call never began, so that neither a frame nor a call shows
    it. Nothing where the message fits more than a few functions of the project."""
    for error in uncaught:
        match = _REFUSED.match(error.message or "") if error.type == "TypeError" else None
        if match is None:
            continue
        qualname, reason = match[1].replace(".<locals>", ""), match[2]
        name = qualname.rpartition(".")[2]
        found = list(index.named([name]))
        exact = [function for function in found if function.qualname == qualname]
        for function in (exact or found) if len(exact or found) <= MOST_NAMESAKES else ():
            yield function, Finding(1.0, f"was called with arguments that it does not take: {reason}")


def _origin(uncaught: tuple[UncaughtException, ...]) -> tuple[str, object] | None:
    return (uncaught[0].type, uncaught[0].frames[-1:]) if uncaught else None
