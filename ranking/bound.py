"""A good mapping found fast: the upper bound which starts, and where the budget ends replaces, the exact search."""

from __future__ import annotations

import numpy as np

from xlocal.ranking.compiled import compiled
from xlocal.ranking.kernel import reach
from xlocal.ranking.reduce import Side, classes, depths_of
from xlocal.tracer.calltree import IntArray

SKETCH = 16  # label counts are kept modulo this many buckets
TABLE = 40_000  # cells of one sibling alignment; longer lists of siblings are compared as strings
LONGEST = 400  # edits between two lists of siblings, beyond which both are halved


def top_down(a: Side, b: Side, *, work: float) -> IntArray:
    """A mapping from the roots down, siblings aligned by what they seem to share; shape `(len(a),)`, -1: deleted.

    Near-linear for similar trees; after `work` alignment cells the rest stays unmatched.
    """
    kind = classes(np.concatenate((a.label, b.label)), np.concatenate((a.size, b.size)))
    return align_forests(a.label, a.size, kind[: len(a)], b.label, b.size, kind[len(a) :], int(work))


def by_parentheses(a: Side, b: Side, *, limit: int) -> tuple[IntArray, int]:
    """The pairs whose start and end are both aligned by a shortest edit script of the traversals' open/close marks.

    Alignments keep the order of starts and of ends, so the pairs keep order and ancestry. Also returns half the
    script's length, a lower bound for the distance without renames (None of both: empty array, `limit` exceeded).
    """
    open_a, close_a, text_a = marks(a)
    open_b, close_b, text_b = marks(b)
    aligned, distance = common(text_a, text_b, limit)
    if distance > limit:
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
def common(a: IntArray, b: IntArray, limit: int) -> tuple[IntArray, int]:
    """Positions in b aligned with each letter of a by a shortest script of insertions and deletions (-1: none).

    Also its length; when it is larger than `limit` nothing is aligned. Memory: 8 * limit**2 bytes.
    """
    n, m, zero = len(a), len(b), limit + 1
    pair = np.full(n, -1, np.int32)
    table = np.full((limit + 1, 2 * limit + 3), -1, np.int32)
    distance = reach(a, b, limit, False, table)
    if distance > limit:
        return pair, distance
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
            if table[d - 1, zero + k + 1] + 1 >= i and i > 0 and table[d - 1, zero + k + 1] >= 0:
                i -= 1
            else:
                j -= 1
    return pair, distance


@compiled
def sketches(label: IntArray, size: IntArray) -> IntArray:
    """Label counts of every subtree, modulo SKETCH labels; shape `(n, SKETCH)`."""
    count = np.zeros((len(label), SKETCH), np.int32)
    for x in range(len(label) - 1, -1, -1):
        count[x, label[x] % SKETCH] += 1
        c = x + 1
        while c < x + size[x]:
            count[x] += count[c]
            c += size[c]
    return count


@compiled
def shared(p: IntArray, q: IntArray) -> int:
    """How many labels two sketches may have in common."""
    total = 0
    for s in range(SKETCH):
        total += min(p[s], q[s])
    return total


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
def align_forests(
    label_a: IntArray,
    size_a: IntArray,
    kind_a: IntArray,
    label_b: IntArray,
    size_b: IntArray,
    kind_b: IntArray,
    work: int,
) -> IntArray:
    """The loop of `top_down`: a stack of pairs of forests, each a list of roots."""
    n, m = len(label_a), len(label_b)
    match = np.full(n, -1, np.int32)
    sketch_a, sketch_b = sketches(label_a, size_a), sketches(label_b, size_b)
    pool_a, pool_b = np.empty(n + 1, np.int32), np.empty(m + 1, np.int32)
    fa, fb = np.empty(n + 1, np.int32), np.empty(m + 1, np.int32)
    tasks = np.empty((n + m + 4, 2), np.int64)  # first positions in the pools
    pool_a[0], pool_b[0] = 0, 0
    tasks[0] = 0
    count, top_a, top_b = 1, 1, 1
    best = np.zeros(TABLE + 1, np.int64)
    while count:
        count -= 1
        p, q = top_a - tasks[count, 0], top_b - tasks[count, 1]
        fa[:p] = pool_a[tasks[count, 0] : top_a]
        fb[:q] = pool_b[tasks[count, 1] : top_b]
        top_a, top_b = tasks[count, 0], tasks[count, 1]
        while p and q:
            # Equal trees at both ends, then a pair of equal single roots: safe (see reduce.strip).
            first = 0
            while first < min(p, q) and kind_a[fa[first]] == kind_b[fb[first]]:
                for c in range(size_a[fa[first]]):
                    match[fa[first] + c] = fb[first] + c
                first += 1
            while min(p, q) > first and kind_a[fa[p - 1]] == kind_b[fb[q - 1]]:
                p, q = p - 1, q - 1
                for c in range(size_a[fa[p]]):
                    match[fa[p] + c] = fb[q] + c
            fa[: p - first] = fa[first:p].copy()
            fb[: q - first] = fb[first:q].copy()
            p, q = p - first, q - first
            if p == 0 or q == 0:
                break
            if p == 1 and q == 1 and label_a[fa[0]] == label_b[fb[0]]:
                match[fa[0]] = fb[0]
                p, q = children(size_a, fa[0], fa, 0), children(size_b, fb[0], fb, 0)
                continue
            work -= (p + 1) * (q + 1) if (p + 1) * (q + 1) <= TABLE else p + q
            if work < 0:
                break
            pair = np.full(p, -1, np.int32)
            if (p + 1) * (q + 1) <= TABLE:
                width = q + 1
                best[:width] = 0
                for i in range(1, p + 1):
                    x = fa[i - 1]
                    best[i * width] = 0
                    for j in range(1, q + 1):
                        y = fb[j - 1]
                        value = max(best[(i - 1) * width + j], best[i * width + j - 1])
                        if label_a[x] == label_b[y]:
                            gain = size_a[x]
                            if kind_a[x] != kind_b[y]:
                                gain = shared(sketch_a[x], sketch_b[y])
                            value = max(value, best[(i - 1) * width + j - 1] + gain)
                        best[i * width + j] = value
                total_a, total_b = np.zeros(SKETCH, np.int32), np.zeros(SKETCH, np.int32)
                largest, of_a = 0, True
                for i in range(p):
                    total_a += sketch_a[fa[i]]
                    if size_a[fa[i]] > size_a[fa[largest]]:
                        largest = i
                other = 0
                for j in range(q):
                    total_b += sketch_b[fb[j]]
                    if size_b[fb[j]] > size_b[fb[other]]:
                        other = j
                if size_b[fb[other]] > size_a[fa[largest]]:
                    largest, of_a = other, False
                # Much in common, yet not among equal roots: enter the largest tree, giving up its root.
                if 2 * best[p * width + q] < shared(total_a, total_b):
                    if of_a and size_a[fa[largest]] > 1:
                        rest = fa[largest + 1 : p].copy()
                        at = children(size_a, fa[largest], fa, largest)
                        fa[at : at + len(rest)] = rest
                        p = at + len(rest)
                        continue
                    if not of_a and size_b[fb[largest]] > 1:
                        rest = fb[largest + 1 : q].copy()
                        at = children(size_b, fb[largest], fb, largest)
                        fb[at : at + len(rest)] = rest
                        q = at + len(rest)
                        continue
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
            else:
                kinds_a, kinds_b = kind_a[fa[:p]], kind_b[fb[:q]]
                pair, distance = common(kinds_a, kinds_b, min(LONGEST, p + q))
                if distance > LONGEST:
                    # No alignment in sight: halve both lists, and leave the halves to later turns.
                    pool_a[top_a : top_a + p] = fa[:p]
                    pool_b[top_b : top_b + q] = fb[:q]
                    tasks[count] = top_a, top_b
                    tasks[count + 1] = top_a + p // 2, top_b + q // 2
                    count += 2
                    top_a, top_b = top_a + p, top_b + q
                    break
            i = j = 0
            while i < p or j < q:
                # A gap: roots without a partner, up to the next pair.
                e = i
                while e < p and pair[e] < 0:
                    e += 1
                f = pair[e] if e < p else q
                if e > i and f > j and (i > 0 or j > 0 or e < p or f < q):
                    tasks[count] = top_a, top_b
                    pool_a[top_a : top_a + e - i] = fa[i:e]
                    pool_b[top_b : top_b + f - j] = fb[j:f]
                    count, top_a, top_b = count + 1, top_a + e - i, top_b + f - j
                if e < p:
                    tasks[count] = top_a, top_b
                    pool_a[top_a], pool_b[top_b] = fa[e], fb[f]
                    count, top_a, top_b = count + 1, top_a + 1, top_b + 1
                    i, j = e + 1, f + 1
                else:
                    i, j = p, q
            break
    return match
