"""The second look: which calls to see closely, and what their lines and values say about each function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from xlocal.ranking.diff import TreeDiff
from xlocal.ranking.evidence import CallView, Counted, FunctionView
from xlocal.ranking.observation import Observation
from xlocal.ranking.signals import Finding, Findings, times
from xlocal.tracer.calltree import CallTree, Function, IntArray
from xlocal.tracer.closeup import CUT, UNKNOWN, CallKey, CallRecord, Closeup, Focus, Value

MOST_CALLS = 40_000  # seen closely in one run
MOST_PAIRS = 3  # of one function, kept to be shown
CAPS = (150, 40, 10, 2)  # calls of one function, the first that keeps a run within MOST_CALLS


class Chosen(NamedTuple):
    """The calls of one run to be seen closely: what to tell the probe, and which node each call is."""

    focus: Focus
    keys: dict[int, CallKey]  # node of the call tree -> call


def choose(bad: Observation, good: Observation, difference: TreeDiff) -> tuple[set[int], set[int]]:
    """The nodes of both runs of a pair that are worth a second look: of every function that both called, the calls
    without a partner and those next to an edit first, and the partners of all that are chosen."""
    both = bad.tree.counts().keys() & good.tree.counts().keys()
    near_bad = _near_edits(bad.tree, difference.match)
    near_good = _near_edits(good.tree, difference.back)
    for cap in CAPS:
        nodes = set(_sample(bad, both, near_bad, cap))
        others = set(_sample(good, both, near_good, cap))
        others |= {int(difference.match[node]) for node in nodes if difference.match[node] >= 0}
        nodes |= {int(difference.back[node]) for node in others if difference.back[node] >= 0}
        if max(len(nodes), len(others)) <= MOST_CALLS:
            break
    return nodes, others


def _near_edits(tree: CallTree, partner: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Calls without a partner, and their callers, shape (n,)."""
    near = partner < 0
    callers = tree.parent[np.flatnonzero(near)]
    near[callers[callers >= 0]] = True
    return near


def _sample(
    seen: Observation, functions: Set[Function], near: np.ndarray[tuple[int], np.dtype[np.bool_]], cap: int
) -> Iterator[int]:
    """At most `cap` calls of each function: near edits first, then from the start and the end of the run."""
    wanted = np.array([function in functions for function in seen.tree.functions] or [False])
    eligible = np.flatnonzero((seen.tree.label >= 0) & wanted[seen.tree.label] & seen.visible)
    order = np.argsort(seen.tree.label[eligible], kind="stable")
    groups = np.split(eligible[order], np.flatnonzero(np.diff(seen.tree.label[eligible][order])) + 1)
    for group in groups:
        if len(group) <= cap:
            yield from group.tolist()
            continue
        close = group[near[group]][: cap // 2]
        rest = cap - len(close)
        yield from {*close.tolist(), *group[: rest - rest // 3].tolist(), *group[len(group) - rest // 3 :].tolist()}


def chosen_calls(seen: Observation, nodes: Iterable[int]) -> Chosen:
    """What to tell the probe of the chosen nodes of one run; those that a second pass cannot find are left out."""
    numbers: dict[int, int] = {}
    indices: dict[int, set[int]] = {}
    keys: dict[int, CallKey] = {}
    for node in sorted(nodes):
        thread, code = seen.threads[seen.tree.thread[node]], int(seen.code[node])
        if thread is None or not seen.visible[node]:
            continue
        number = numbers.setdefault(code, len(numbers))
        indices.setdefault(code, set()).add(int(seen.index[node]))
        keys[node] = CallKey(number, thread, int(seen.index[node]))
    focus: list[tuple[str, int, str, list[tuple[int, int]]]] = [
        (*seen.codes[code][:3], _ranges(sorted(indices[code]))) for code in numbers
    ]
    return Chosen(focus, keys)


def unsteady(seen: Observation, chosen: Chosen, closeup: Closeup) -> set[Function]:
    """The functions of which repeats of the second pass saw a call unlike: which of their calls is which is chance."""
    lost = (node for node, key in chosen.keys.items() if key not in closeup.calls)
    return {seen.tree.functions[seen.tree.label[node]] for node in lost}


def _ranges(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Sorted numbers as half-open ranges."""
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return ranges


@dataclass(frozen=True, slots=True)
class Pair:
    """Two calls that are partners, seen closely; nodes of their trees."""

    node: int
    partner: int
    function: Function
    bad: CallRecord
    good: CallRecord


@dataclass(slots=True)
class _Lines:
    """The lines of one function over all its calls seen closely, with how often each ran."""

    bad: dict[int, int] = field(default_factory=dict)
    good: dict[int, int] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)


def pairs(
    bad: Observation, difference: TreeDiff, chosen: tuple[Chosen, Chosen], seen: tuple[Closeup, Closeup]
) -> Iterator[Pair]:
    """The partners that both second passes saw, in the order of the buggy run."""
    for node, key in chosen[0].keys.items():
        partner = int(difference.match[node])
        one, other = (
            seen[0].calls.get(key),
            seen[1].calls.get(chosen[1].keys.get(partner, key)) if partner >= 0 else None,
        )
        if one is not None and other is not None:
            yield Pair(node, partner, bad.tree.functions[bad.tree.label[node]], one, other)


def value_findings(
    bad: Observation,
    good: Observation,
    difference: TreeDiff,
    chosen: tuple[Chosen, Chosen],
    seen: tuple[Closeup, Closeup],
) -> tuple[Findings, list[FunctionView]]:
    """Findings from lines and values, by kind and function (docs/how_it_works.md tells the kinds), and what to show
    of each function that was seen in both runs."""
    found: Findings = {kind: {} for kind in KINDS}
    lines = _lines((bad, good), (difference.match, difference.back), chosen, seen)
    calls = bad.tree.counts(), good.tree.counts()
    for function, taken in lines.items():
        _judge_lines(function, taken, found, _sampled(taken, calls[0][function], calls[1][function]))
    matched = list(pairs(bad, difference, chosen, seen))
    pairs_of, holding = Counter(pair.function for pair in matched), Counter[tuple[str, Function]]()
    for pair in matched:
        for kind, finding in _judge(pair):
            _keep(found[kind], pair.function, finding)
            holding[kind, pair.function] += 1
    for (kind, function), count in holding.items():
        if count < pairs_of[function]:
            strength, detail = found[kind][function]
            found[kind][function] = Finding(strength, f"{detail} ({count} of {pairs_of[function]} calls seen)")
    for function, finding in _writers(bad, matched, chosen[0], seen[0]):
        _keep(found["writer"], function, finding)
    return found, list(_views(bad, good, lines, matched))


KINDS = (
    "line", "line-count", "argument", "return", "exit-state", "origin", "absorber", "carrier", "writer",
)  # fmt: skip


def _keep(flagged: dict[Function, Finding], function: Function, finding: Finding) -> None:
    """The strongest finding of a function stays; of equals the first in time."""
    if function not in flagged or flagged[function].strength < finding.strength:
        flagged[function] = finding


def _lines(
    observations: tuple[Observation, Observation],
    partners: tuple[IntArray, IntArray],
    chosen: tuple[Chosen, Chosen],
    seen: tuple[Closeup, Closeup],
) -> dict[Function, _Lines]:
    """The lines of each function in both runs; of a call that one of the two second passes lost, not its partner's
    either, for one without the other would look like a difference."""
    total: dict[Function, _Lines] = {}
    for side, name in enumerate(("bad", "good")):
        tree, other = observations[side].tree, 1 - side
        for node, key in chosen[side].keys.items():
            record = seen[side].calls.get(key)
            partner = chosen[other].keys.get(int(partners[side][node]))
            if record is None or (partner is not None and partner not in seen[other].calls):
                continue
            taken = total.setdefault(tree.functions[tree.label[node]], _Lines())
            taken.seen[name] += 1
            counts = getattr(taken, name)
            for line, count in record.lines.items():
                counts[line] = counts.get(line, 0) + count
    return {function: taken for function, taken in total.items() if taken.bad and taken.good}


def _sampled(taken: _Lines, here: int, there: int) -> str:
    """Says which calls a statement about lines rests on, where that is not all of them."""
    parts = [("buggy", taken.seen["bad"], here), ("reference", taken.seen["good"], there)]
    told = [f"{seen} of {calls} in the {run} run" for run, seen, calls in parts if seen < calls]
    return f", in the calls that were seen ({', '.join(told)})" if told else ""


def _judge_lines(function: Function, taken: _Lines, found: Findings, sampled: str) -> None:
    only_bad, only_good = taken.bad.keys() - taken.good.keys(), taken.good.keys() - taken.bad.keys()
    if only_bad or only_good:
        found["line"][function] = Finding(1.0, _line_text(only_bad, only_good) + sampled)
    elif taken.bad != taken.good:
        differing = [line for line in taken.bad if taken.bad[line] != taken.good[line]]
        line = max(differing, key=lambda each: (abs(taken.bad[each] - taken.good[each]), -each))
        text = f"ran line {line} {times(taken.bad[line])}, but {times(taken.good[line])} in the reference run"
        found["line-count"][function] = Finding(1.0, text + sampled)


def _line_text(only_bad: Iterable[int], only_good: Iterable[int]) -> str:
    took, missed = span_text(only_bad), span_text(only_good)
    if took and missed:
        return f"took {took} in the buggy run, but {missed} in the reference run"
    return f"took {took} only in the buggy run" if took else f"took {missed} only in the reference run"


def span_text(lines: Iterable[int]) -> str:
    """`line 5`, `lines 3-5, 9`; '' for none. At most four spans are named."""
    spans = _ranges(sorted(lines))
    if not spans:
        return ""
    named = ", ".join(str(start) if stop - start == 1 else f"{start}-{stop - 1}" for start, stop in spans[:4])
    more = f" and {len(spans) - 4} more" if len(spans) > 4 else ""
    single = len(spans) == 1 and spans[0][1] - spans[0][0] == 1
    return f"line{'' if single else 's'} {named}{more}"


def same(left: Value, right: Value) -> bool | None:
    """Whether two values are alike; None when one of them is not known."""
    if UNKNOWN in (left.digest, right.digest) or (left.digest == right.digest and left.digest.endswith(UNKNOWN)):
        return None
    return left.digest == right.digest


def differing(left: Mapping[str, Value], right: Mapping[str, Value], *, own: bool) -> tuple[list[str], bool]:
    """Names whose values differ (of `self` and its attributes if `own`, else of the arguments), and whether all the
    others are known to be alike."""
    names = [name for name in left if (name == "self" or name.startswith("self.")) == own]
    verdicts = {name: same(left[name], right[name]) if name in right else False for name in names}
    if own:
        for name in right:
            if name.startswith("self.") and name not in left:
                verdicts[name] = False
    return [name for name, alike in verdicts.items() if alike is False], None not in verdicts.values()


def _judge(pair: Pair) -> Iterator[tuple[str, Finding]]:
    bad, good = pair.bad, pair.good
    arguments, known = differing(bad.before, good.before, own=False)
    state, state_known = differing(bad.before, good.before, own=True)
    out, lines = same(bad.out, good.out), bad.lines == good.lines
    fails = bad.error != good.error
    outcome = _outcome(pair) if (out is False or fails) else None
    if arguments:
        yield "argument", Finding(1.0, f"was given {_values(bad.before, good.before, arguments)}")
        if outcome is not None:
            yield "carrier", Finding(1.0, f"differs in what it is given ({arguments[0]}) and {outcome}")
        elif out and not fails and _leaves_alike(pair):
            seen = ", as far as it was seen" if pair.bad.out.digest.endswith(CUT) else ""
            yield "absorber", Finding(1.0, f"was given another value of {arguments[0]}, with the same outcome{seen}")
    if outcome is not None:
        yield "return", Finding(1.0, outcome)
    if known and state_known and bad.before and not arguments and not state:
        same_given = "called with the same arguments in both runs"
        if any(value.digest.endswith(CUT) for value in bad.before.values()):
            same_given += ", as far as they were seen"
        if not lines:
            only_bad, only_good = bad.lines.keys() - good.lines.keys(), good.lines.keys() - bad.lines.keys()
            how = _line_text(only_bad, only_good) if only_bad or only_good else "ran its lines another number of times"
            yield "origin", Finding(1.0, f"{same_given}, {how}")
        elif outcome is not None:
            yield "origin", Finding(0.9, f"{same_given}, {outcome}")
        changed = _exit_state(pair)
        if changed:
            text = f"{same_given}, left {changed[0]} as {_both(bad.after, good.after, changed[0])}"
            yield "exit-state", Finding(1.0, text)
    elif not state:
        changed = _exit_state(pair)
        if changed:
            text = f"left {changed[0]} as {_both(bad.after, good.after, changed[0])}"
            yield "exit-state", Finding(0.7, text)


def _outcome(pair: Pair) -> str:
    if pair.bad.error != pair.good.error:
        here, there = pair.bad.error, pair.good.error
        if here and there:
            return f"raised {here.rpartition('.')[2]}, but {there.rpartition('.')[2]} in the reference run"
        return f"raised {here.rpartition('.')[2]} only in the buggy run" if here else f"did not raise {there} here"
    how = "" if pair.bad.out.preview.startswith("yielded ") else "returned "
    return how + _apart(pair.bad.out.preview, pair.good.out.preview)


def _leaves_alike(pair: Pair) -> bool:
    """Whether a call with the same result in both runs shows no other effect: it returns something, and what it was
    given is known to be alike after it where it was before."""
    sides = [(pair.bad.before, pair.good.before), (pair.bad.after, pair.good.after)]
    for own in (True, False):
        (given, _), (left, known) = (differing(*side, own=own) for side in sides)
        if not known or not set(left) <= set(given):
            return False
    return pair.bad.out.preview != "None"


def _exit_state(pair: Pair) -> list[str]:
    """Attributes of `self`, then arguments, that were alike on entry and differ on exit; `self` as a whole last."""
    names = [name for own in (True, False) for name in differing(pair.bad.after, pair.good.after, own=own)[0]]
    given = [name for own in (True, False) for name in differing(pair.bad.before, pair.good.before, own=own)[0]]
    fresh = (name for name in names if name not in given)
    return sorted(fresh, key=lambda name: (name == "self", not name.startswith("self."), name))


def _values(left: Mapping[str, Value], right: Mapping[str, Value], names: Sequence[str]) -> str:
    name = names[0]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{name}={_both(left, right, name)}{more}"


def _both(left: Mapping[str, Value], right: Mapping[str, Value], name: str) -> str:
    return _apart(*(values[name].preview if name in values else "unset" for values in (left, right)))


def _apart(here: str, there: str) -> str:
    """Two values that differ, in words."""
    if here == there:
        return f"{cut(here)}, which differs from the reference run beyond what is shown"
    here, there = cut_apart(here, there, 32)
    return f"{here}, but {there} in the reference run"


def cut_apart(here: str, there: str, size: int) -> tuple[str, str]:
    """Two different texts, each cut to `size` characters so that their first difference is seen."""
    least = min(len(here), len(there))
    at = next((place for place in range(least) if here[place] != there[place]), least)
    start = 0
    if max(len(here), len(there)) > size and at > size - 8:
        start = at - size // 2
        # From a word on, such as the name of the attribute that differs.
        start = here.find(" ", start, at) + 1 or start
    return _part(here, start, size), _part(there, start, size)


def _part(text: str, start: int, size: int) -> str:
    head = "..." if start else ""
    room = size - len(head)
    rest = text[start:]
    return head + (rest if len(rest) <= room else rest[: room - 3] + "...")


def cut(text: str, size: int = 32) -> str:
    """The beginning of a text, at most `size` characters."""
    return _part(text, 0, size)


def _views(
    bad: Observation, good: Observation, lines: Mapping[Function, _Lines], matched: Sequence[Pair]
) -> Iterator[FunctionView]:
    """What differs is shown, and of calls alike the first."""
    by_function: dict[Function, list[tuple[int, Pair]]] = {}
    for pair in matched:
        by_function.setdefault(pair.function, []).append((-_telling(pair), pair))
    numbers = (_numbers(bad.tree), _numbers(good.tree))
    for function, taken in lines.items():
        best = sorted(by_function.get(function, ()), key=lambda item: (item[0], item[1].node))[:MOST_PAIRS]
        shown = [pair for score, pair in best if score < 0] or [pair for _, pair in best[:1]]
        yield FunctionView(
            function=function,
            reference=good.role,
            lines=(_counted(taken.bad), _counted(taken.good)),
            pairs=tuple(
                (
                    _view(pair.bad, pair.good, int(numbers[0][pair.node])),
                    _view(pair.good, pair.bad, int(numbers[1][pair.partner])),
                )
                for pair in shown
            ),
        )


def _telling(pair: Pair) -> int:
    """How much a pair of calls tells: most when only the outcome differs, next when lines or results do."""
    arguments, _ = differing(pair.bad.before, pair.good.before, own=False)
    state, _ = differing(pair.bad.before, pair.good.before, own=True)
    outcome = pair.bad.error != pair.good.error or same(pair.bad.out, pair.good.out) is False
    lines = pair.bad.lines != pair.good.lines
    return (4 if (outcome or lines) and not arguments and not state else 0) + 2 * lines + outcome + bool(arguments)


def _numbers(tree: CallTree) -> IntArray:
    """For each node how manieth call of its function it is, from 1, shape (n,)."""
    order = np.argsort(tree.label, kind="stable")
    label = tree.label[order]
    starts = np.flatnonzero(np.r_[True, label[1:] != label[:-1]])
    numbers = np.empty(len(tree), np.int32)
    numbers[order] = np.arange(len(tree)) - np.repeat(starts, np.diff(np.r_[starts, len(tree)])) + 1
    return numbers


def _view(record: CallRecord, partner: CallRecord, number: int) -> CallView:
    changed = {
        name: value.preview
        for name, value in record.after.items()
        if name != "self" and (name not in record.before or record.before[name].digest != value.digest)
    }
    given = {name: value.preview for name, value in record.before.items()}
    returned = "" if record.error else record.out.preview
    return CallView(
        number,
        tuple(given.items()),
        tuple(changed.items()),
        returned,
        record.error,
        _counted(record.lines),
        tuple(_alike(record, partner, changed, _unlike)),
        tuple(_alike(record, partner, changed, _unsure)),
    )


def _alike(
    record: CallRecord, partner: CallRecord, changed: Iterable[str], test: Callable[[Value, Value], bool]
) -> Iterator[str]:
    """The values of two calls that look alike as far as they are kept and that `test` is true of, as CallView names
    them."""
    sides = [("", name, record.before, partner.before) for name in record.before]
    sides += [("then ", name, record.after, partner.after) for name in changed]
    for prefix, name, here, there in sides:
        if name in there and here[name].preview == there[name].preview and test(here[name], there[name]):
            yield prefix + name
    out, other = record.out, partner.out
    if not record.error and not partner.error and out.preview == other.preview and test(out, other):
        yield "outcome"


def _unlike(here: Value, there: Value) -> bool:
    return same(here, there) is False


def _unsure(here: Value, there: Value) -> bool:
    return same(here, there) is None or (same(here, there) is True and here.digest.endswith(CUT))


def _counted(lines: Mapping[int, int]) -> Counted:
    return tuple(sorted(lines.items()))


def _writers(
    bad: Observation, matched: Sequence[Pair], chosen: Chosen, closeup: Closeup
) -> Iterator[tuple[Function, Finding]]:
    """The last call that set an attribute whose value differs when a method, given equal arguments, first diverges."""
    blamed = next(_first_divergences(matched), None)
    if blamed is None:
        return
    pair, names = blamed
    node_of = {key: node for node, key in chosen.keys.items()}
    for name in names[:3]:
        value = pair.bad.before.get(name)
        wrote = -1  # the last to end that set it, then the innermost call within that one
        for key, record in reversed(list(closeup.calls.items())):
            node = node_of.get(key, len(bad.tree))
            if value is None or node >= pair.node or record.owner != pair.bad.owner or node < wrote:
                continue
            after, before = record.after.get(name), record.before.get(name)
            if after is not None and after.digest == value.digest and (before is None or before.digest != value.digest):
                wrote = node
        if wrote >= 0 and value is not None:
            text = f"last set {name} to {cut(value.preview)}, which differs when {pair.function.qualname} diverges"
            yield bad.tree.functions[bad.tree.label[wrote]], Finding(1.0, text)


def _first_divergences(matched: Sequence[Pair]) -> Iterator[tuple[Pair, list[str]]]:
    for pair in matched:
        arguments, known = differing(pair.bad.before, pair.good.before, own=False)
        state, _ = differing(pair.bad.before, pair.good.before, own=True)
        names = [name for name in state if name != "self"]
        diverges = pair.bad.lines != pair.good.lines or same(pair.bad.out, pair.good.out) is False
        if names and known and not arguments and (diverges or pair.bad.error != pair.good.error):
            yield pair, names
