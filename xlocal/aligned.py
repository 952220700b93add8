"""Two call trees as one: a row for each pair of matched calls and for each call of one run alone, as a tree of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xlocal.ranking.diff import TreeDiff, shared_labels
from xlocal.ranking.reduce import depths_of
from xlocal.tracer.calltree import CallTree, Function, IntArray, compiled_above

# What a row is: in both runs alike, in one run alone, moved, or in both but left by another exception.
SAME, GONE, NEW, MOVED_FROM, MOVED_TO, ENDED = range(6)
ONLY_BUGGY, ONLY_REFERENCE = (GONE, MOVED_FROM), (NEW, MOVED_TO)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A tree of rows in preorder, row 0 the run itself; columns of shape (n,).

    `left` and `right` are the nodes of the buggy and the reference tree (-1: none), `size` counts the rows of a
    subtree, `kind` is one of SAME to ENDED, `label` indexes `functions` (-1: row 0). `raised_left` and `raised_right`
    index `exceptions` (-1: returned, or not there). Where the two runs cross (a call encloses others in one run alone),
    the outer call encloses here what either has inside, so that the rows form one tree.
    """

    functions: tuple[Function, ...]
    exceptions: tuple[str, ...]
    left: IntArray
    right: IntArray
    size: IntArray
    kind: IntArray
    label: IntArray
    raised_left: IntArray
    raised_right: IntArray

    def __len__(self) -> int:
        return len(self.left)

    @property
    def differs(self) -> NDArray[np.bool_]:
        """Which rows are not alike in both runs, shape (n,)."""
        return np.asarray(self.kind != SAME)

    @property
    def depth(self) -> IntArray:
        """Depth of each row (row 0 has 0), shape (n,)."""
        return depths_of(self.size)


def align(difference: TreeDiff) -> Rows:
    """The rows of a difference: in the order of both runs, calls of the buggy run before those of the reference.

    Linear in the calls of both trees.
    """
    buggy, reference, match, back = difference.buggy, difference.reference, difference.match, difference.back
    row_of_left, row_of_right = _positions(match, back)
    count = len(buggy) + int((back < 0).sum())
    left, right = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    left[row_of_left] = np.arange(len(buggy), dtype=np.int32)
    right[row_of_right] = np.arange(len(reference), dtype=np.int32)
    end = np.zeros(count, np.int32)
    end[row_of_left] = row_of_left[np.arange(len(buggy)) + buggy.size - 1]
    end[row_of_right] = np.maximum(end[row_of_right], row_of_right[np.arange(len(reference)) + reference.size - 1])
    names = _shared_functions(buggy, reference)
    label_left, label_right = shared_labels(buggy, reference)
    label = np.where(left >= 0, label_left[left], label_right[right]).astype(np.int32)
    endings = _endings(buggy, reference, left, right)
    return Rows(
        functions=names,
        exceptions=endings.exceptions,
        left=left,
        right=right,
        size=_nested(end),
        kind=_kinds(difference, left, right, endings),
        label=label,
        raised_left=endings.left,
        raised_right=endings.right,
    )


def _positions(match: IntArray, back: IntArray) -> tuple[IntArray, IntArray]:
    """The row of each node of both trees: between two matched pairs the buggy run's own calls come first."""
    new_before = np.concatenate(([0], np.cumsum(back < 0)))
    # Of a call of the buggy run alone: as many as before the matched call that precedes it.
    ahead = np.maximum.accumulate(np.where(match >= 0, new_before[match], 0))
    row_of_left = (np.arange(len(match)) + ahead).astype(np.int32)
    # Of a call of the reference alone: the matched call that follows it, in the buggy run.
    following = np.minimum.accumulate(np.where(back >= 0, back, len(match))[::-1])[::-1]
    row_of_right = np.where(back >= 0, row_of_left[np.maximum(back, 0)], following + new_before[:-1])
    return row_of_left, row_of_right.astype(np.int32)


@compiled_above(100_000)
def _nested(end: IntArray) -> IntArray:
    """Sizes of rows whose subtrees reach to row `end`: an outer one grows where an inner one would reach beyond it."""
    end = end.copy()
    above = np.zeros(len(end), np.int32)
    top = 0
    for row in range(1, len(end)):
        while end[top] < row:
            top = above[top]
        above[row] = top
        outer = top
        while end[outer] < end[row]:
            end[outer] = end[row]
            outer = above[outer]
        top = row
    return (end - np.arange(len(end)) + 1).astype(np.int32)


def _shared_functions(buggy: CallTree, reference: CallTree) -> tuple[Function, ...]:
    """Functions as `shared_labels` numbers them."""
    return tuple(dict.fromkeys((*buggy.functions, *reference.functions)))


class _Endings(NamedTuple):
    exceptions: tuple[str, ...]
    left: IntArray
    right: IntArray


def _endings(buggy: CallTree, reference: CallTree, left: IntArray, right: IntArray) -> _Endings:
    """The exceptions that left each row's calls, numbered alike for both runs."""
    names = tuple(dict.fromkeys((*buggy.exceptions, *reference.exceptions)))
    number = {name: place for place, name in enumerate(names)}
    columns = []
    for tree, nodes in ((buggy, left), (reference, right)):
        table = np.array([*(number[name] for name in tree.exceptions), -1], np.int32)
        columns.append(np.where(nodes >= 0, table[tree.raised[nodes]], -1).astype(np.int32))
    return _Endings(names, *columns)


def _kinds(difference: TreeDiff, left: IntArray, right: IntArray, endings: _Endings) -> IntArray:
    came = np.zeros(len(difference.reference), np.bool_)
    came[difference.moved[difference.moved >= 0]] = True
    both = (left >= 0) & (right >= 0)
    kind = np.full(len(left), SAME, np.int32)
    kind[both & (endings.left != endings.right)] = ENDED
    kind[right < 0] = np.where(difference.moved[left[right < 0]] >= 0, MOVED_FROM, GONE)
    kind[left < 0] = np.where(came[right[left < 0]], MOVED_TO, NEW)
    return kind
