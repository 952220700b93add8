"""The numeric loops of the exact tree edit distance: string bounds, the banded search, the full search, their traces.

Trees are given as an `Order`; a cell (i, j) stands for the prefixes of i and j nodes. Sources: Zhang & Shasha 1989 (the
recurrence), Touzet 2005 (limiting it to a band), Ukkonen 1985 and Myers 1986 (furthest-reaching diagonals).
docs/difference.md explains what is ours.
"""

# Compiled loops take arrays and numbers one by one, and calls inside them are not free.
# ruff: noqa: PLR0912, PLR0917

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xlocal.ranking.compiled import compiled
from xlocal.tracer.calltree import IntArray

Longs = NDArray[np.int64]


class Order(NamedTuple):
    """A tree in postorder, or mirrored: in reversed preorder. One entry per node in each column.

    `left`: first node of the subtree in this order; `kind`: equal numbers for equal subtrees, over both trees; `slot`:
    the same numbered densely within this tree; `up`: the parent of a first child, else -1; `other`: position in
    the order of the other end (preorder, or mirrored: reversed postorder).
    """

    label: IntArray
    left: IntArray
    kind: IntArray
    slot: IntArray
    up: IntArray
    other: IntArray


class Band(NamedTuple):
    """The cells of the banded search: for the prefix of i nodes, `low[i] <= j <= high[i]`, kept from `base[i]` on.

    `low_other`, `high_other`: the same for the order of the other end. An empty row has `high < low`.
    """

    low: IntArray
    high: IntArray
    base: Longs
    low_other: IntArray
    high_other: IntArray


FAR = 1 << 29  # no mapping; twice this still fits 32 bits


@compiled
def reach(a: IntArray, b: IntArray, limit: int, work: int, paper: bool, table: IntArray) -> tuple[int, bool]:
    """Edit distance of two strings, and True; or a lower bound and False when it exceeds `limit` or takes too long.

    Without `paper` only insertions and deletions count; `work` bounds the letters compared. A `table` of shape
    `(limit + 1, 2 * limit + 3)` receives at `[d, limit + 1 + k]` the largest i such that the prefixes of i and i + k
    letters are within d (-1: none); an empty table is left alone.
    """
    n, m, zero = len(a), len(b), limit + 1
    last = np.full(2 * limit + 3, -1, np.int32)
    row = last.copy()
    answer = -1
    for d in range(limit + 1):
        for k in range(max(-d, -n), min(d, m) + 1):
            i = 0 if d == 0 else max(last[zero + k], last[zero + k - 1])
            if d > 0 and last[zero + k + 1] >= 0:
                i = max(i, last[zero + k + 1] + 1)
            if paper and d > 0 and last[zero + k] >= 0:
                i = max(i, last[zero + k] + 1)
            i = min(i, n, m - k)
            work += i
            while i < n and i + k < m and a[i] == b[i + k]:
                i += 1
            work -= i + 1
            row[zero + k] = i
        if table.size:
            table[d] = row
        if answer < 0 and abs(m - n) <= d and row[zero + m - n] >= n:
            answer = d
            if not table.size:
                break
        if work < 0:
            return max(d + 1, answer), False
        last, row = row, last
        row[:] = last
    return (answer, True) if answer >= 0 else (limit + 1, False)


@compiled
def windows(n: int, m: int, limit: int, ahead: IntArray, behind: IntArray) -> tuple[IntArray, IntArray]:
    """For each prefix of i letters the least and the largest j such that distance through (i, j) is within `limit`.

    `ahead` and `behind` are tables of `reach` for the strings and for the reversed strings.
    """
    low, high = np.full(n + 1, m + 1, np.int32), np.full(n + 1, -1, np.int32)
    zero = ahead.shape[1] // 2
    for k in range(max(-limit, -n), min(limit, m) + 1):
        opposite = m - n - k
        if abs(opposite) > limit:
            continue
        first = max(0, -k)
        for d in range(limit + 1):
            end = ahead[d, zero + k]
            rest = behind[limit - d, zero + opposite]
            if rest >= 0:
                for i in range(max(first, n - rest), end + 1):
                    low[i] = min(low[i], i + k)
                    high[i] = max(high[i], i + k)
            first = max(first, end + 1)
    return low, high


@compiled
def jump_cost(same_kind: bool, same_label: bool, more_a: int, more_b: int, paper: bool) -> int:
    """Distance of two subtrees where it needs no search: -1 where it does, FAR where it need not be known.

    `more_a`, `more_b`: their sizes less 1. (Numbers, not trees: handing trees on costs more than the work here.)
    """
    if same_kind:
        return 0
    if not same_label and not paper:
        return FAR
    if same_label and more_a == 0:
        return more_b
    if same_label and more_b == 0:
        return more_a
    return -1


@compiled
def forest_full(a: Order, b: Order, x: int, y: int, paper: bool, known: NDArray[np.int32], forest: IntArray) -> None:
    """Zhang and Shasha's table for subtrees x and y into `forest`, row-major with `size(y) + 1` columns.

    Distances of pairs on both left paths go to `known[slot, slot]`.
    """
    label_a, left_a, kind_a, slot_a = a.label, a.left, a.kind, a.slot
    label_b, left_b, kind_b, slot_b = b.label, b.left, b.kind, b.slot
    start, begin = left_a[x], left_b[y]
    width = np.int64(y - begin + 2)
    for j in range(width):
        forest[j] = j
    for i in range(start, x + 1):
        row = (i - start + 1) * width
        up = row - width
        source = (left_a[i] - start) * width - begin
        on_path = left_a[i] == start
        label = label_a[i]
        best = i - start + 1
        forest[row] = best
        for j in range(begin, y + 1):
            c = j - begin + 1
            best = min(best, forest[up + c]) + 1
            if paper or label_b[j] == label:
                if on_path and left_b[j] == begin:
                    best = min(best, forest[up + c - 1] + (label_b[j] != label))
                    known[slot_a[i], slot_b[j]] = best
                else:
                    cost = jump_cost(
                        kind_a[i] == kind_b[j], label_a[i] == label_b[j], i - left_a[i], j - left_b[j], paper
                    )
                    if cost < 0:
                        cost = known[slot_a[i], slot_b[j]]
                    best = min(best, forest[source + left_b[j]] + cost)
            forest[row + c] = best


@compiled
def heads(a: Order, paper: bool) -> IntArray:
    """One node for each kind of subtree that hangs off a left path, small before large; the root is the last.

    Leaves are left out where their distances need no search.
    """
    n = len(a.left)
    seen = np.zeros(n, np.bool_)
    found = np.empty(n, np.int32)
    count = 0
    for x in range(n):
        if a.up[x] < 0 and not seen[a.slot[x]] and (paper or a.left[x] < x):
            seen[a.slot[x]] = True
            found[count] = x
            count += 1
    return found[:count]


@compiled
def extents(
    a: Order, b: Order, x: int, tops: IntArray, paper: bool, mark: IntArray, end_a: IntArray, end_b: IntArray
) -> int:
    """For each head of the other tree, the largest nodes of both left paths whose distance must be searched.

    Fills `end_a`, `end_b` (-1: none), shape `(len(tops),)`; returns the number of cells which that takes. `mark` has an
    entry of -1 for each label, before and after.
    """
    cells = 0
    start = a.left[x]
    i = start
    while i >= 0:
        if i > start:  # a leaf's distances need no search, see jump_cost
            mark[a.label[i] + 1] = i
        i = a.up[i]
    for t in range(len(tops)):
        end_a[t], end_b[t] = -1, -1
        begin = b.left[tops[t]]
        if paper:
            end_a[t], end_b[t] = x, tops[t]
        else:
            j = b.up[begin]
            while j >= 0:
                i = mark[b.label[j] + 1]
                if i >= 0:
                    end_a[t], end_b[t] = max(end_a[t], i), j
                j = b.up[j]
        if end_a[t] >= 0:
            cells += np.int64(end_a[t] - start + 2) * (end_b[t] - begin + 2)
    i = start
    while i >= 0:
        mark[a.label[i] + 1] = -1
        i = a.up[i]
    return cells


@compiled
def predict_full(a: Order, b: Order, heads_a: IntArray, heads_b: IntArray, paper: bool) -> Longs:
    """Cells of the full search, shape `(len(heads_a),)`."""
    end_a, end_b = np.empty(len(heads_b), np.int32), np.empty(len(heads_b), np.int32)
    mark = np.full(max(a.label.max(), b.label.max()) + 2, -1, np.int32)
    cells = np.zeros(len(heads_a), np.int64)
    for s in range(len(heads_a)):
        cells[s] = extents(a, b, heads_a[s], heads_b, paper, mark, end_a, end_b)
    return cells


@compiled
def search_full(
    a: Order, b: Order, heads_a: IntArray, heads_b: IntArray, paper: bool, known: NDArray[np.int32], forest: IntArray
) -> None:
    """All distances `known[slot, slot]` of the left paths of these heads; called for small heads first."""
    end_a, end_b = np.empty(len(heads_b), np.int32), np.empty(len(heads_b), np.int32)
    mark = np.full(max(a.label.max(), b.label.max()) + 2, -1, np.int32)
    for s in range(len(heads_a)):
        extents(a, b, heads_a[s], heads_b, paper, mark, end_a, end_b)
        for t in range(len(heads_b)):
            # The pair of the roots is left to the trace, which fills its table anyway.
            if end_a[t] >= 0 and not (end_a[t] == len(a.label) - 1 and end_b[t] == len(b.label) - 1):
                forest_full(a, b, end_a[t], end_b[t], paper, known, forest)


@compiled
def pair_equal(a: Order, b: Order, i: int, j: int, match: IntArray) -> None:
    """Match equal subtrees node by node."""
    for c in range(i - a.left[i] + 1):
        match[i - c] = j - c


@compiled
def trace_full(a: Order, b: Order, paper: bool, known: NDArray[np.int32], forest: IntArray) -> IntArray:
    """The matched node of b for each node of a (-1: deleted), shape `(len(a),)`; keeps pairs where costs tie."""
    label_a, left_a, kind_a, slot_a = a.label, a.left, a.kind, a.slot
    label_b, left_b, kind_b, slot_b = b.label, b.left, b.kind, b.slot
    n, m = len(label_a), len(label_b)
    match = np.full(n, -1, np.int32)
    stack_a, stack_b = np.empty(n, np.int32), np.empty(n, np.int32)
    stack_a[0], stack_b[0] = n - 1, m - 1
    top = 1
    while top:
        top -= 1
        x, y = stack_a[top], stack_b[top]
        forest_full(a, b, x, y, paper, known, forest)
        start, begin = left_a[x], left_b[y]
        width = np.int64(y - begin + 2)
        i, j = x, y
        while i >= start and j >= begin:
            cell = (i - start + 1) * width + j - begin + 1
            value = forest[cell]
            if paper or label_a[i] == label_b[j]:
                if left_a[i] == start and left_b[j] == begin:
                    if forest[cell - width - 1] + (label_a[i] != label_b[j]) == value:
                        match[i] = j
                        i, j = i - 1, j - 1
                        continue
                else:
                    cost = jump_cost(
                        kind_a[i] == kind_b[j], label_a[i] == label_b[j], i - left_a[i], j - left_b[j], paper
                    )
                    search = cost < 0
                    if search:
                        cost = known[slot_a[i], slot_b[j]]
                    if forest[(left_a[i] - start) * width + left_b[j] - begin] + cost == value:
                        if search:
                            stack_a[top], stack_b[top] = i, j
                            top += 1
                        elif kind_a[i] == kind_b[j]:
                            pair_equal(a, b, i, j, match)
                        else:
                            match[i] = j
                        i, j = left_a[i] - 1, left_b[j] - 1
                        continue
            if forest[cell - width] + 1 == value:
                i -= 1
            else:
                j -= 1
    return match


@compiled
def extents_band(
    a: Order, b: Order, band: Band, start: int, paper: bool, end_a: IntArray, end_b: IntArray
) -> tuple[int, int]:
    """For each first leaf of b, the largest nodes whose distance must be searched, for the left path from leaf `start`.

    Those are the pairs of subtrees that start and end within the band, in both orders. Fills `end_a`, `end_b` (shape
    `(len(b),)`, -1 before) at the leaves of the returned range (first, last).
    """
    label_a, left_a, kind_a, other_a = a.label, a.left, a.kind, a.other
    label_b, left_b, kind_b, other_b = b.label, b.left, b.kind, b.other
    low_other, high_other = band.low_other, band.high_other
    low, high = band.low[start], band.high[start]
    first, last = len(label_b), -1
    i = start
    while i >= 0:
        p = other_a[i]
        end = p + i - start + 1
        for j in range(max(band.low[i + 1], 1) - 1, band.high[i + 1]):
            leaf = left_b[j]
            if label_a[i] != label_b[j] and not paper:
                continue
            if leaf < low or leaf > high or other_b[j] < low_other[p] or other_b[j] > high_other[p]:
                continue
            if not low_other[end] <= other_b[j] + j - leaf + 1 <= high_other[end]:
                continue
            same = label_a[i] == label_b[j]
            if jump_cost(kind_a[i] == kind_b[j], same, i - left_a[i], j - leaf, paper) < 0:
                end_a[leaf], end_b[leaf] = i, max(end_b[leaf], j)
                first, last = min(first, leaf), max(last, leaf)
        i = a.up[i]
    return first, last


@compiled
def predict_band(a: Order, b: Order, band: Band, paper: bool, most: int) -> Longs:
    """Cells of the banded search for each node that starts a left path (0 for others), shape `(len(a),)`.

    Stops early, with the first entries unset, when the sum passes `most`.
    """
    n, m = len(a.label), len(b.label)
    end_a, end_b = np.full(m, -1, np.int32), np.full(m, -1, np.int32)
    cells = np.zeros(n, np.int64)
    total = 0
    for start in range(n - 1, -1, -1):
        if a.left[start] != start:
            continue
        first, last = extents_band(a, b, band, start, paper, end_a, end_b)
        for leaf in range(first, last + 1):
            if end_a[leaf] >= 0:
                rows = np.int64(band.base[end_a[leaf] + 2] - band.base[start + 1])
                square = np.int64(end_a[leaf] - start + 1) * np.int64(end_b[leaf] - leaf + 1)
                cells[start] += rows if rows < square else square
                end_a[leaf], end_b[leaf] = -1, -1
        total += cells[start]
        if total > most:
            break
    return cells


@compiled
def forest_band(a: Order, b: Order, band: Band, x: int, y: int, paper: bool, known: IntArray, forest: IntArray) -> None:
    """`forest_full` within the band; distances go to `known` at the cell of the pair."""
    label_a, left_a, kind_a, lows = a.label, a.left, a.kind, band.low
    label_b, left_b, kind_b, highs = b.label, b.left, b.kind, band.high
    bases = band.base
    start, begin = left_a[x], left_b[y]
    low, high, shift = np.int64(begin), np.int64(y + 1), np.int64(0)  # of the row above
    for i in range(start, x + 1):
        low_up, high_up, shift_up = low, high, shift
        low, high = np.int64(lows[i + 1]), np.int64(highs[i + 1])
        shift = bases[i + 1] - low
        first = max(low, begin + 1)
        best: Any = i + 1 - start if first == begin + 1 else FAR  # numba's integers are not Python's
        source = left_a[i]
        on_path = source == start
        low_from, high_from, shift_from = lows[source], highs[source], bases[source] - lows[source]
        label = label_a[i]
        for c in range(first, 1 + min(int(high), y + 1)):
            if i == start:
                best = min(best, c - begin)
            elif low_up <= c <= high_up:
                best = min(best, forest[shift_up + c])
            best += 1
            j = c - 1
            same = label_b[j] == label
            if paper or same:
                d = left_b[j]
                if on_path and d == begin:
                    if i == start:
                        best = min(best, j - begin + (not same))
                    elif j == begin:
                        best = min(best, i - start + (not same))
                    elif low_up <= j <= high_up:
                        best = min(best, forest[shift_up + j] + (not same))
                    known[shift + c] = min(best, FAR)
                else:
                    cost = jump_cost(kind_a[i] == kind_b[j], same, i - source, j - d, paper)
                    if cost < 0:
                        cost = known[shift + c]
                    if on_path:
                        best = min(best, cost + d - begin)
                    elif d == begin:
                        best = min(best, cost + source - start)
                    elif low_from <= d <= high_from:
                        best = min(best, cost + forest[shift_from + d])
            best = min(best, FAR)
            forest[shift + c] = best


@compiled
def search_band(
    a: Order, b: Order, band: Band, after: int, until: int, paper: bool, known: IntArray, forest: IntArray
) -> None:
    """Fill `known` for the left paths that start at nodes `after - 1` down to `until`; called for late nodes first."""
    m = len(b.label)
    end_a, end_b = np.full(m, -1, np.int32), np.full(m, -1, np.int32)
    for start in range(after - 1, until - 1, -1):
        if a.left[start] != start:
            continue
        first, last = extents_band(a, b, band, start, paper, end_a, end_b)
        for leaf in range(last, first - 1, -1):
            if end_a[leaf] >= 0:
                forest_band(a, b, band, end_a[leaf], end_b[leaf], paper, known, forest)
                end_a[leaf], end_b[leaf] = -1, -1


@compiled
def band_cell(
    low: IntArray, high: IntArray, base: Longs, forest: IntArray, i: int, j: int, start: int, begin: int
) -> int:
    """The forest distance of nodes [start, i) and [begin, j); FAR outside the band."""
    if i == start:
        return j - begin
    if j == begin:
        return i - start
    if j < low[i] or j > high[i]:
        return FAR
    value: int = forest[base[i] + j - low[i]]
    return value


@compiled
def trace_band(a: Order, b: Order, band: Band, paper: bool, known: IntArray, forest: IntArray) -> IntArray:
    """`trace_full` for the banded search, whose distance of the roots must be below FAR."""
    label_a, left_a, kind_a = a.label, a.left, a.kind
    label_b, left_b, kind_b = b.label, b.left, b.kind
    low, high, base = band.low, band.high, band.base
    n, m = len(label_a), len(label_b)
    match = np.full(n, -1, np.int32)
    stack_a, stack_b = np.empty(n, np.int32), np.empty(n, np.int32)
    stack_a[0], stack_b[0] = n - 1, m - 1
    top = 1
    while top:
        top -= 1
        x, y = stack_a[top], stack_b[top]
        start, begin = left_a[x], left_b[y]
        forest_band(a, b, band, x, y, paper, known, forest)
        i, j = x, y
        while i >= start and j >= begin:
            value = band_cell(low, high, base, forest, i + 1, j + 1, start, begin)
            if paper or label_a[i] == label_b[j]:
                if left_a[i] == start and left_b[j] == begin:
                    cost = band_cell(low, high, base, forest, i, j, start, begin) + (label_a[i] != label_b[j])
                    if cost == value:
                        match[i] = j
                        i, j = i - 1, j - 1
                        continue
                else:
                    cost = jump_cost(
                        kind_a[i] == kind_b[j], label_a[i] == label_b[j], i - left_a[i], j - left_b[j], paper
                    )
                    search = cost < 0
                    if search:
                        cost = known[base[i + 1] + j + 1 - low[i + 1]]
                    if cost + band_cell(low, high, base, forest, left_a[i], left_b[j], start, begin) == value:
                        if search:
                            stack_a[top], stack_b[top] = i, j
                            top += 1
                        elif kind_a[i] == kind_b[j]:
                            pair_equal(a, b, i, j, match)
                        else:
                            match[i] = j
                        i, j = left_a[i] - 1, left_b[j] - 1
                        continue
            if band_cell(low, high, base, forest, i, j + 1, start, begin) + 1 == value:
                i -= 1
            else:
                j -= 1
    return match


@compiled
def spine(left: IntArray) -> IntArray:
    """For each node its parent where it is the first child, else -1."""
    up = np.full(len(left), -1, np.int32)
    last = np.full(len(left), -1, np.int32)
    for x in range(len(left)):
        if last[left[x]] >= 0:
            up[last[left[x]]] = x
        last[left[x]] = x
    return up
