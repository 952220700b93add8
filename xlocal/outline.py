"""The tree of only the differences: changed calls, what they lie in, and how much was left out between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xlocal.aligned import ENDED, SAME, Rows
from xlocal.ranking.reduce import classes
from xlocal.tracer.calltree import IntArray

# What a line is: a call (or equal calls in a row), several lines that repeat, calls that are alike in both runs, frames
# of a long path, or what did not fit.
CALL, REPEAT, ALIKE, PATH, CUT = range(5)
LONGEST_PERIOD = 4
LONGEST_PATH = 12
KEPT_OF_PATH = 4
# Lines under one call; the first that keeps the outline within its size is used.
WIDEST = (10_000, 3000, 1000, 400, 100, 30, 10, 5, 3, 2, 1)


class Line(NamedTuple):
    """One line: `row` is the row it stands for (of a run of rows the first), `times` how often it repeats.

    `calls` counts the calls that it stands for with all inside, in the buggy and the reference run; `edits` how many
    of its rows differ.
    """

    what: int
    depth: int
    row: int
    times: int
    calls: tuple[int, int]
    edits: int


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """Lines in preorder. `whole` says that calls alike in both runs are there too, `hidden` counts the differing rows
    that did not fit."""

    lines: tuple[Line, ...]
    whole: bool
    hidden: int


def outline(rows: Rows, *, most: int, alike: bool = False) -> Outline:
    """The outline of at most about `most` lines. With `alike` the calls alike in both runs are listed too (below lines
    of the kind ALIKE) where everything fits.

    Where it does not fit, long lists of calls are cut first and then the end; CUT lines say how much is missing.
    """
    tree = _Tree.of(rows)
    if alike:
        lines = list(islice(_walk(tree, widest=most, alike=True), most + 1))
        if len(lines) <= most:
            return Outline(tuple(lines), whole=True, hidden=0)
    for widest in WIDEST:
        lines = list(islice(_walk(tree, widest=widest, alike=False), most + 1))
        if len(lines) <= most:
            break
    if len(lines) > most:
        rest = tree.line(CUT, lines[most].depth, (lines[most].row, len(rows)))
        lines = [*lines[:most], rest]
    return Outline(tuple(lines), whole=False, hidden=sum(line.edits for line in lines if line.what == CUT))


@dataclass(frozen=True, slots=True, eq=False)
class _Tree:
    """The rows with what the walk asks of them: running counts (one entry more than rows) and `same`, equal numbers
    for equal subtrees."""

    size: IntArray
    kind: IntArray
    same: IntArray
    edits: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Rows) -> _Tree:
        endings = len(rows.exceptions) + 1
        key = (rows.label.astype(np.int64) + 1) * (ENDED + 1) + rows.kind
        key = (key * endings + rows.raised_left + 1) * endings + rows.raised_right + 1
        _, label = np.unique(key, return_inverse=True)
        return cls(
            size=rows.size,
            kind=rows.kind,
            same=classes(label.astype(np.int32), rows.size),
            edits=_running(rows.differs),
            left=_running(rows.left >= 0),
            right=_running(rows.right >= 0),
        )

    def line(self, what: int, depth: int, span: tuple[int, int], *, times: int = 1) -> Line:
        """A line for the rows of `span` (the first, and one after the last)."""
        start, stop = span
        calls = (int(self.left[stop] - self.left[start]), int(self.right[stop] - self.right[start]))
        return Line(what, depth, start, times, calls, int(self.edits[stop] - self.edits[start]))

    def call(self, row: int, depth: int) -> Line:
        """The line of one call."""
        return self.line(CALL, depth, (row, self.after(row)))

    def after(self, row: int) -> int:
        """The first row behind the subtree of `row`."""
        return row + int(self.size[row])

    def children(self, row: int) -> Iterator[int]:
        """The rows directly inside a row."""
        child, end = row + 1, self.after(row)
        while child < end:
            yield child
            child = self.after(child)

    def edits_of(self, row: int) -> int:
        """How many rows of the subtree of `row` differ."""
        return int(self.edits[self.after(row)] - self.edits[row])

    def items(self, row: int) -> Iterator[_Item]:
        """The children of a row, equal ones in a row and short periods taken together."""
        starts = list(self.children(row))
        same = self.same[np.array(starts, np.int64)].tolist()
        at = 0
        while at < len(starts):
            period, times = _repeats(same, at)
            stop = at + period * times
            end = starts[stop] if stop < len(starts) else self.after(row)
            yield _Item(tuple(starts[at : at + period]), times, (starts[at], end))
            at = stop


class _Item(NamedTuple):
    """Consecutive siblings: `period` of them, `times` over; `span` as rows."""

    first: tuple[int, ...]
    times: int
    span: tuple[int, int]


def _running(flag: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(flag)))


def _repeats(same: list[int], at: int) -> tuple[int, int]:
    """The shortest period that repeats from `at` on, and how often; (1, 1) when none does."""
    for period in range(1, LONGEST_PERIOD + 1):
        stop = at + period
        while stop < len(same) and same[stop] == same[stop - period]:
            stop += 1
        if stop - at >= 2 * period:
            return period, (stop - at) // period
    return 1, 1


def _walk(tree: _Tree, *, widest: int, alike: bool) -> Iterator[Line]:
    """Lines in preorder, with an explicit stack since call trees are deep."""
    stack = [tree.call(0, 0)]
    short: set[int] = set()  # calls that are known to lie on no long path
    while stack:
        line = stack.pop()
        yield line
        if line.what != CALL or not (line.edits or alike):
            continue
        row, depth = line.row, line.depth
        if not alike and row not in short:
            way = _path(tree, row)
            if len(way) > LONGEST_PATH:
                *folded, last = _folded(tree, way, depth + 1)
                yield from folded
                stack.append(last)
                short.add(last.row)
                continue
            short.update(way)
        stack.extend(reversed(list(_inside(tree, row, depth + 1, widest, alike=alike, listed=not line.edits))))


def _path(tree: _Tree, row: int) -> list[int]:
    """The calls below `row` that each hold all the differences inside the one before and are alike themselves."""
    way: list[int] = []
    edits = int(tree.edits[tree.after(row)] - tree.edits[row + 1])
    while edits:
        child = next(child for child in tree.children(row) if tree.edits_of(child))
        if tree.kind[child] != SAME or tree.edits_of(child) != edits:
            break
        way.append(child)
        row = child
    return way


def _folded(tree: _Tree, way: list[int], depth: int) -> Iterator[Line]:
    """A long path: its first and last frames, and a line for those between."""
    for place, row in enumerate(way[:KEPT_OF_PATH]):
        yield tree.call(row, depth + place)
    count = len(way) - 2 * KEPT_OF_PATH
    yield tree.call(way[KEPT_OF_PATH], depth + KEPT_OF_PATH)._replace(what=PATH, times=count)
    for place, row in enumerate(way[-KEPT_OF_PATH:]):
        yield tree.call(row, depth + KEPT_OF_PATH + 1 + place)


def _inside(tree: _Tree, row: int, depth: int, widest: int, *, alike: bool, listed: bool) -> Iterator[Line]:
    """The lines directly inside a call; what they hold in turn is walked when they are given out."""
    shown = 0
    waiting: list[_Item] = []  # siblings alike in both runs
    items = list(tree.items(row))
    for place, item in enumerate(items):
        start, stop = item.span
        if not listed and tree.edits[stop] == tree.edits[start]:
            waiting.append(item)
            continue
        yield from _alike(tree, waiting, depth, alike=alike)
        waiting = []
        if shown >= widest and place < len(items) - 1:
            yield tree.line(CUT, depth, (start, tree.after(row)))
            return
        yield from _item(tree, item, depth)
        shown += len(item.first)
    yield from _alike(tree, waiting, depth, alike=alike)


def _alike(tree: _Tree, items: list[_Item], depth: int, *, alike: bool) -> Iterator[Line]:
    if items:
        line = tree.line(ALIKE, depth, (items[0].span[0], items[-1].span[1]))
        yield line._replace(times=sum(item.times * len(item.first) for item in items))
        if alike:
            for item in items:
                yield from _item(tree, item, depth + 1)


def _item(tree: _Tree, item: _Item, depth: int) -> Iterator[Line]:
    if len(item.first) == 1:
        yield tree.line(CALL, depth, item.span, times=item.times)
        return
    yield tree.line(REPEAT, depth, item.span, times=item.times)
    for row in item.first:
        yield tree.call(row, depth + 1)
