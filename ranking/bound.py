"""A good mapping found fast: the upper bound which starts, and where the budget ends replaces, the exact search."""

# Compiled loops take arrays and numbers one by one, and calls inside them are not free.
# ruff: noqa: PLR0912, PLR0917

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from xlocal.ranking.compiled import compiled
from xlocal.ranking.kernel import Longs, reach
from xlocal.ranking.reduce import Side, classes, depths_of
from xlocal.tracer.calltree import IntArray

SKETCH = 16  # label counts are kept modulo this many buckets
TABLE = 40_000  # cells of one sibling alignment; longer lists of siblings are compared as strings
LONGEST = 400  # edits between two lists of siblings, beyond which both are halved


class Tree(NamedTuple):
    """A tree in preorder with what `align_forests` asks of its subtrees."""

    label: IntArray
    size: IntArray
    kind: IntArray
    sketch: IntArray


def top_down(a: Side, b: Side, *, work: float) -> IntArray:
    """A mapping from the roots down, siblings aligned by what they seem to share; shape `(len(a),)`, -1: deleted.

    Near-linear for similar trees; after `work` alignment cells the rest stays unmatched.
    """
    kind = classes(np.concatenate((a.label, b.label)), np.concatenate((a.size, b.size)))
    one = Tree(a.label, a.size, kind[: len(a)], sketches(a.label, a.size))
    two = Tree(b.label, b.size, kind[len(a) :], sketches(b.label, b.size))
    return align_forests(one, two, int(work))


def by_parentheses(a: Side, b: Side, *, limit: int, work: float) -> tuple[IntArray, int]:
    """The pairs whose start and end are both aligned by a shortest edit script of the traversals' open/close marks.

    Alignments keep the order of starts and of ends, so the pairs keep order and ancestry. Also the script's length,
    half of which is a lower bound for the distance without renames; the mapping is empty when that is only bounded,
    because it exceeds `limit` or `work` letters were compared.
    """
    open_a, close_a, text_a = marks(a)
    open_b, close_b, text_b = marks(b)
    aligned, distance, found = common(text_a, text_b, limit, int(work))
    if not found:
        return np.empty(0, np.int32), distance
    owner = np.full(len(text_b) + 1, -1, np.int32)
    owner[open_b] = np.arange(len(b), dtype=np.int32)
    pair = owner[aligned[open_a]]
    closed = np.where(pair >= 0, close_b[pair], -1)
    return np.where(closed == aligned[close_a], pair, -1).astype(np.int32), distance


def marks(side: Side) -> tuple[IntArray, IntArray, IntArray]:
    """Positions of each node's start and end, and the text of 2n marks (label and direction)."""
    start = 2 * np.arange(len(side), dtype=np.int32) - depths_of(side.size)
    end = start + 2 * side.size - 1
    text = np.empty(2 * len(side), np.int32)
    text[start] = 2 * side.label + 2
    text[end] = 2 * side.label + 3
    return start, end, text


@compiled
def common(a: IntArray, b: IntArray, limit: int, work: int) -> tuple[IntArray, int, bool]:
    """Positions in b aligned with each letter of a by a shortest script of insertions and deletions (-1: none).

    Also its length and True, or what `reach` says when it does not get there. Memory: 8 * limit**2 bytes.
    """
    n, m, zero = len(a), len(b), limit + 1
    pair = np.full(n, -1, np.int32)
    table = np.full((limit + 1, 2 * limit + 3), -1, np.int32)
    distance, found = reach(a, b, limit, work, False, table)
    if not found:
        return pair, distance, False
    i, j = n, m
    for d in range(distance, -1, -1):
        k = j - i
        begin = 0
        if d > 0:
            begin = max(table[d - 1, zero + k - 1], table[d - 1, zero + k + 1] + 1)
        # Slide back along equal letters to where this diagonal was entered.
        while i > max(begin, 0) and j > 0 and a[i - 1] == b[j - 1]:
            i, j = i - 1, j - 1
            pair[i] = j
        if d > 0:
            above = table[d - 1, zero + k + 1]
            if above >= 0 and 0 < i <= above + 1:
                i -= 1
            else:
                j -= 1
    return pair, distance, True


@compiled
def sketches(label: IntArray, size: IntArray) -> IntArray:
    """Label counts of every subtree, modulo SKETCH labels; shape `(n, SKETCH)`."""
    count = np.zeros((len(label), SKETCH), np.int32)
    for x in range(len(label) - 1, -1, -1):
        count[x, label[x] % SKETCH] += 1
        c = x + 1
        while c < x + size[x]:
            for s in range(SKETCH):
                count[x, s] += count[c, s]
            c += size[c]
    return count


@compiled
def shared(p: IntArray, x: int, q: IntArray, y: int) -> int:
    """How many labels two sketches (rows x and y) may have in common."""
    total = 0
    for s in range(SKETCH):
        total += min(p[x, s], q[y, s])
    return total


@compiled
def copy(source: IntArray, first: int, last: int, into: IntArray, at: int) -> int:
    """`into[at:] = source[first:last]`, downwards only where they overlap; returns the position after it."""
    for i in range(last - first):
        into[at + i] = source[first + i]
    return at + last - first


@compiled
def pair_trees(match: IntArray, x: int, y: int, size: int) -> None:
    """Match equal subtrees node by node."""
    for c in range(size):
        match[x + c] = y + c


@compiled
def enter(size: IntArray, forest: IntArray, count: int, at: int, spare: IntArray) -> int:
    """Replace the tree at position `at` of a forest by its children; returns the number of roots then."""
    copy(forest, at + 1, count, spare, 0)
    after = children(size, forest[at], forest, at)
    return copy(spare, 0, count - at - 1, forest, after)


@compiled
def largest(size: IntArray, forest: IntArray, count: int) -> int:
    """Position of the first largest tree."""
    at = 0
    for i in range(1, count):
        if size[forest[i]] > size[forest[at]]:
            at = i
    return at


@compiled
def in_common(p: IntArray, fa: IntArray, count_a: int, q: IntArray, fb: IntArray, count_b: int) -> int:
    """How many labels two forests may have in common, by their sketches."""
    common_labels = 0
    for s in range(SKETCH):
        of_a = of_b = 0
        for i in range(count_a):
            of_a += p[fa[i], s]
        for j in range(count_b):
            of_b += q[fb[j], s]
        common_labels += min(of_a, of_b)
    return common_labels


@compiled
def children(size: IntArray, x: int, into: IntArray, at: int) -> int:
    """Write the children of x into `into[at:]`; returns the position after them."""
    c = x + 1
    while c < x + size[x]:
        into[at] = c
        at += 1
        c += size[c]
    return at


@compiled
def strip_ends(a: Tree, b: Tree, fa: IntArray, p: int, fb: IntArray, q: int, match: IntArray) -> tuple[int, int]:
    """Match equal first and equal last trees of two forests, and take them out; returns the numbers of roots left."""
    first = 0
    while first < min(p, q) and a.kind[fa[first]] == b.kind[fb[first]]:
        pair_trees(match, fa[first], fb[first], a.size[fa[first]])
        first += 1
    while min(p, q) > first and a.kind[fa[p - 1]] == b.kind[fb[q - 1]]:
        p, q = p - 1, q - 1
        pair_trees(match, fa[p], fb[q], a.size[fa[p]])
    if first:
        p, q = copy(fa, first, p, fa, 0), copy(fb, first, q, fb, 0)
    return p, q


@compiled
def align_roots(a: Tree, b: Tree, fa: IntArray, p: int, fb: IntArray, q: int, best: Longs, pair: IntArray) -> int:
    """Align roots of equal labels for the largest sum of labels that their trees may share; returns that sum.

    `best` has room for the `(p + 1) * (q + 1)` cells; `pair[:p]` receives positions in `fb` (-1: none).
    """
    width = q + 1
    for j in range(width):
        best[j] = 0
    for i in range(1, p + 1):
        x = fa[i - 1]
        best[i * width] = 0
        for j in range(1, width):
            y = fb[j - 1]
            value = max(best[(i - 1) * width + j], best[i * width + j - 1])
            if a.label[x] == b.label[y]:
                gain = a.size[x] if a.kind[x] == b.kind[y] else shared(a.sketch, x, b.sketch, y)
                value = max(value, best[(i - 1) * width + j - 1] + gain)
            best[i * width + j] = value
        pair[i - 1] = -1
    i, j = p, q
    while i and j:
        value = best[i * width + j]
        if value == best[i * width + j - 1]:
            j -= 1
        elif value == best[(i - 1) * width + j]:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pair[i] = j
    total: int = best[p * width + q]
    return total


@compiled
def push(tasks: Longs, pool: IntArray, side: int, forest: IntArray, first: int, last: int) -> None:
    """Put roots `forest[first:last]` on a pool, and where they start on the stack; row 0 holds the heights."""
    top = tasks[0, side + 2]
    tasks[tasks[0, 0], side] = top
    tasks[0, side + 2] = copy(forest, first, last, pool, top)


@compiled
def push_pieces(
    tasks: Longs, pool_a: IntArray, pool_b: IntArray, fa: IntArray, p: int, fb: IntArray, q: int, pair: IntArray
) -> None:
    """Put the aligned pairs of roots and the gaps between them on the stack."""
    i = j = 0
    while i < p and j < q:
        e = i
        while e < p and pair[e] < 0:
            e += 1
        if i == 0 and e == p:
            return  # nothing is aligned
        f = pair[e] if e < p else q
        if e > i and f > j:
            tasks[0, 0] += 1
            push(tasks, pool_a, 0, fa, i, e)
            push(tasks, pool_b, 1, fb, j, f)
        if e < p:
            tasks[0, 0] += 1
            push(tasks, pool_a, 0, fa, e, e + 1)
            push(tasks, pool_b, 1, fb, f, f + 1)
        i, j = e + 1, f + 1


@compiled
def align_forests(a: Tree, b: Tree, work: int) -> IntArray:
    """The loop of `top_down`: a stack of pairs of forests, each a list of roots."""
    n, m = len(a.label), len(b.label)
    match = np.full(n, -1, np.int32)
    pool_a, pool_b = np.empty(n + 1, np.int32), np.empty(m + 1, np.int32)
    fa, fb, spare = np.empty(n + 1, np.int32), np.empty(m + 1, np.int32), np.empty(max(n, m) + 1, np.int32)
    pair = np.empty(n + 1, np.int32)
    best = np.zeros(TABLE + 1, np.int64)
    # Row t: where task t starts in the two pools; row 0: number of tasks, -, heights of the pools.
    tasks = np.zeros((n + m + 4, 4), np.int64)
    pool_a[0] = pool_b[0] = 0
    tasks[0, 0] = tasks[0, 2] = tasks[0, 3] = 1
    while tasks[0, 0]:
        task = tasks[0, 0]
        p = copy(pool_a, tasks[task, 0], tasks[0, 2], fa, 0)
        q = copy(pool_b, tasks[task, 1], tasks[0, 3], fb, 0)
        tasks[0, 0], tasks[0, 2], tasks[0, 3] = task - 1, tasks[task, 0], tasks[task, 1]
        while True:
            p, q = strip_ends(a, b, fa, p, fb, q, match)
            small = (p + 1) * (q + 1) <= TABLE
            work -= (p + 1) * (q + 1) if small else p + q
            if p == 0 or q == 0 or work < 0:
                break
            if p == 1 and q == 1 and a.label[fa[0]] == b.label[fb[0]]:
                match[fa[0]] = fb[0]
                p, q = children(a.size, fa[0], fa, 0), children(b.size, fb[0], fb, 0)
                continue
            if small:
                gain = align_roots(a, b, fa, p, fb, q, best, pair)
                x, y = largest(a.size, fa, p), largest(b.size, fb, q)
                # Much in common, yet not among equal roots: enter the largest tree, giving up its root.
                tallest = max(a.size[fa[x]], b.size[fb[y]])
                if tallest > 1 and 2 * gain < in_common(a.sketch, fa, p, b.sketch, fb, q):
                    if a.size[fa[x]] == tallest:
                        p = enter(a.size, fa, p, x, spare)
                    else:
                        q = enter(b.size, fb, q, y, spare)
                    continue
            else:
                kinds_a, kinds_b = np.empty(p, np.int32), np.empty(q, np.int32)
                for i in range(p):
                    kinds_a[i] = a.kind[fa[i]]
                for j in range(q):
                    kinds_b[j] = b.kind[fb[j]]
                limit = min(LONGEST, p + q)
                aligned, _, found = common(kinds_a, kinds_b, limit, 50 * (p + q))
                if not found:
                    # No alignment in sight: halve both lists, and leave the halves to later turns.
                    for first_a, last_a, first_b, last_b in ((0, p // 2, 0, q // 2), (p // 2, p, q // 2, q)):
                        tasks[0, 0] += 1
                        push(tasks, pool_a, 0, fa, first_a, last_a)
                        push(tasks, pool_b, 1, fb, first_b, last_b)
                    break
                copy(aligned, 0, p, pair, 0)
            push_pieces(tasks, pool_a, pool_b, fa, p, fb, q, pair)
            break
    return match
