"""The difference of two call trees: the calls of one run alone, by an optimal mapping wherever that is feasible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from xlocal.tracer.calltree import CallTree, Function, IntArray

if TYPE_CHECKING:
    from xlocal.ranking.exact import Best
    from xlocal.ranking.reduce import Side

Progress = Callable[[str, float], None]
BUDGET = 1.2e10  # cells of a dynamic programme: some tens of seconds
BOUND_WORK = 1e9  # alignment cells for the first upper bound
STRING_WORK = 3e8  # letters compared for each string distance, at worst
LONGEST_SCRIPT = 10_000  # edits of the script that suggests a mapping; its table takes 8 * limit**2 bytes


@dataclass(frozen=True, slots=True, eq=False)
class TreeDiff:
    """A mapping between two call trees and its cost (1 per deleted and per inserted node; with `paper` 1 per rename).

    `match[x]` is the reference node matched with buggy node x (-1: deleted), `back[y]` the reverse (-1: inserted).
    `moved[x]` is the inserted reference node where the deleted node x reappears, within an equal subtree (else -1).
    `lower <= optimum <= cost`; `exact` when they are equal.
    """

    buggy: CallTree
    reference: CallTree
    cost: int
    lower: int
    exact: bool
    match: IntArray
    back: IntArray
    moved: IntArray

    @property
    def deleted(self) -> IntArray:
        """Buggy nodes without a partner, in preorder."""
        return np.flatnonzero(self.match < 0).astype(np.int32)

    @property
    def inserted(self) -> IntArray:
        """Reference nodes without a partner, in preorder."""
        return np.flatnonzero(self.back < 0).astype(np.int32)

    @property
    def deleted_under(self) -> IntArray:
        """For each entry of `deleted` its nearest matched buggy ancestor."""
        return nearest_matched(self.buggy.parent, self.match)[self.deleted]

    @property
    def inserted_under(self) -> IntArray:
        """For each entry of `inserted` the buggy node matched with its nearest matched reference ancestor."""
        return self.back[nearest_matched(self.reference.parent, self.back)[self.inserted]]


def diff(
    buggy: CallTree,
    reference: CallTree,
    *,
    budget: float = BUDGET,
    paper: bool = False,
    progress: Progress | None = None,
) -> TreeDiff:
    """Compare two trees by ordered-tree edit distance; node 0 always matches node 0.

    Deleting and inserting a node cost 1; renaming is not allowed (`paper`: costs 1). `budget` bounds the exact search
    in cells of work (0: none); beyond it, and after Ctrl-C during that search, the best mapping so far comes back
    with `exact=False`. `progress` is called with a phase and the share of it that is done. The same trees always give
    the same mapping. Raises ValueError for an empty tree or a negative budget.
    """
    if not len(buggy) or not len(reference):
        raise ValueError("a call tree has at least the node of its run")
    if not budget >= 0:
        raise ValueError(f"budget must be 0 or more, not {budget}")
    report: Progress = progress or (lambda phase, share: None)
    label_a, label_b = shared_labels(buggy, reference)
    if np.array_equal(label_a, label_b) and np.array_equal(buggy.size, reference.size):
        same = np.arange(len(buggy), dtype=np.int32)
        return finished(buggy, reference, same, same.copy(), np.full(len(buggy), -1, np.int32), (0, 0))

    from xlocal.ranking.reduce import Side, reduced

    whole_a = Side(label_a, buggy.size, np.arange(len(buggy), dtype=np.int32))
    whole_b = Side(label_b, reference.size, np.arange(len(reference), dtype=np.int32))
    match = np.full(len(buggy), -1, np.int32)
    report("reduce", 0.0)
    a, b = reduced(whole_a, whole_b, match, paper=paper)
    best = solved(a, b, budget=budget, paper=paper, report=report)
    gone = best.lower - best.cost
    kept = best.pair >= 0
    match[a.node[kept]] = b.node[best.pair[kept]]
    back = np.full(len(reference), -1, np.int32)
    back[match[match >= 0]] = np.flatnonzero(match >= 0)
    from xlocal.ranking.exact import cost_of

    cost = cost_of(whole_a, whole_b, match)
    return finished(buggy, reference, match, back, moves(whole_a, whole_b, match, back), (cost, cost + gone))


def finished(
    buggy: CallTree, reference: CallTree, match: IntArray, back: IntArray, moved: IntArray, bounds: tuple[int, int]
) -> TreeDiff:
    """The result, its arrays read-only."""
    for column in (match, back, moved):
        column.flags.writeable = False
    cost, lower = bounds
    return TreeDiff(buggy, reference, cost, lower, cost == lower, match, back, moved)


def solved(a: Side, b: Side, *, budget: float, paper: bool, report: Progress) -> Best:
    """The best mapping of two reduced trees that the budget allows."""
    from xlocal.ranking import bound, exact

    report("bound", 0.0)
    pair = bound.top_down(a, b, work=BOUND_WORK)
    best = exact.Best(exact.cost_of(a, b, pair), label_bound(a.label, b.label, paper=paper), pair)
    try:
        tighten(a, b, best, paper=paper)
        if best.lower < best.cost and budget > 0:
            exact.improve(a, b, best, budget=budget, paper=paper, progress=report)
    except KeyboardInterrupt:
        report("interrupted", 1.0)
    return best


def tighten(a: Side, b: Side, best: Best, *, paper: bool) -> None:
    """Raise the lower bound by string distances, and try the mapping that the open/close marks suggest."""
    from xlocal.ranking import bound, exact, kernel

    for text_a, text_b in ((a.label, b.label), (postorder(a), postorder(b))):
        nothing = np.empty((0, 0), np.int32)
        distance, _ = kernel.reach(text_a, text_b, best.cost, int(STRING_WORK), paper, nothing)
        best.lower = max(best.lower, min(distance, best.cost))
    if best.lower < best.cost:
        # A longer script suggests little: its table would cost more than it gains.
        limit = min(2 * best.cost, LONGEST_SCRIPT, (len(a) + len(b)) // 4)
        pair, distance = bound.by_parentheses(a, b, limit=limit, work=STRING_WORK)
        if len(pair):
            best.offer(exact.cost_of(a, b, pair), pair)
        if not paper:
            best.lower = max(best.lower, min(-(-distance // 2), best.cost))
    if not paper:
        # Without renames the distance has the parity of the sizes' sum, as every mapping's cost.
        best.lower += (best.cost - best.lower) % 2


def postorder(side: Side) -> IntArray:
    """Labels in postorder."""
    from xlocal.ranking.reduce import depths_of

    label = np.empty(len(side), np.int32)
    label[np.arange(len(side)) - depths_of(side.size) + side.size - 1] = side.label
    return label


def label_bound(a: IntArray, b: IntArray, *, paper: bool) -> int:
    """A lower bound for the distance: labels that one tree holds more often."""
    count = max(a.max(), b.max()) + 2
    surplus = np.bincount(a + 1, minlength=count) - np.bincount(b + 1, minlength=count)
    more, less = int(surplus[surplus > 0].sum()), int(-surplus[surplus < 0].sum())
    return max(more, less) if paper else more + less


def shared_labels(buggy: CallTree, reference: CallTree) -> tuple[IntArray, IntArray]:
    """Labels of both trees numbered by one table of functions (node 0 stays -1)."""
    number: dict[Function, int] = {}
    columns = []
    for tree in (buggy, reference):
        table = [number.setdefault(function, len(number)) for function in tree.functions]
        columns.append(np.asarray([*table, -1], np.int32)[tree.label])
    return columns[0], columns[1]


def nearest_matched(parent: IntArray, match: IntArray) -> IntArray:
    """For each node itself where it is matched, else its nearest matched ancestor; by doubling jumps, no recursion."""
    nodes = np.arange(len(parent), dtype=np.int32)
    jump = np.where(match >= 0, nodes, parent).astype(np.int32)
    while True:
        further = jump[jump]
        if np.array_equal(further, jump):
            return jump
        jump = further


def moves(a: Side, b: Side, match: IntArray, back: IntArray) -> IntArray:
    """Pairs wholly deleted subtrees with equal wholly inserted ones, the largest first, in preorder where equal."""
    from xlocal.ranking.reduce import classes, moved_subtrees

    moved = np.full(len(a), -1, np.int32)
    gone_a, gone_b = wholly(a, match < 0), wholly(b, back < 0)
    lone_a, lone_b = a.keep(gone_a), b.keep(gone_b)
    if len(lone_a) and len(lone_b):
        kind = classes(np.concatenate((lone_a.label, lone_b.label)), np.concatenate((lone_a.size, lone_b.size)))
        order = np.argsort(-lone_a.size, kind="stable").astype(np.int32)
        found = moved_subtrees(kind[: len(lone_a)], lone_a.size, kind[len(lone_a) :], order)
        hit = found >= 0
        moved[lone_a.node[hit]] = lone_b.node[found[hit]]
    return moved


def wholly(side: Side, flag: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which subtrees carry the flag at every node."""
    before = np.concatenate(([0], np.cumsum(flag)))
    start = np.arange(len(side))
    return np.asarray(before[start + side.size] - before[start] == side.size)
