"""Shrinks a pair of trees while keeping the optimum of their edit distance; docs/difference.md holds the proofs."""

# Compiled loops take arrays and numbers one by one, and calls inside them are not free.

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xlocal.ranking.compiled import compiled
from xlocal.tracer.calltree import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One tree in preorder, shape `(n,)` each: labels shared by both sides, subtree sizes, original node numbers."""

    label: IntArray
    size: IntArray
    node: IntArray

    def __len__(self) -> int:
        return len(self.label)

    def keep(self, kept: NDArray[np.bool_]) -> Side:
        """The tree without the other nodes, whose children go to their nearest kept ancestor."""
        before = np.concatenate(([0], np.cumsum(kept, dtype=np.int32)))
        start = np.flatnonzero(kept)
        size = before[start + self.size[start]] - before[start]
        return Side(self.label[kept], size.astype(np.int32), self.node[kept])


def depths_of(size: IntArray) -> IntArray:
    """Depth of each node of a preorder tree, from its subtree sizes."""
    n = len(size)
    start = np.arange(n)
    step = np.bincount(start + 1, minlength=n + 1) - np.bincount(start + size, minlength=n + 1)
    return np.cumsum(step[:n]).astype(np.int32)


def reduced(a: Side, b: Side, match: IntArray, *, paper: bool) -> tuple[Side, Side]:
    """What is left of two trees once all that is certain is settled; writes the certain pairs into `match`.

    Node 0 of both stays. A node that leaves without a pair is deleted (or inserted) in some optimal mapping.
    """
    while True:
        before = len(a) + len(b)
        kind = classes(np.concatenate((a.label, b.label)), np.concatenate((a.size, b.size)))
        pair = strip(a.label, a.size, kind[: len(a)], b.label, b.size, kind[len(a) :])
        settled = np.flatnonzero(pair >= 0)
        match[a.node[settled]] = b.node[pair[settled]]
        left = np.ones(len(b), np.bool_)
        left[pair[settled]] = False
        a, b = a.keep(pair < 0), b.keep(left)
        if not paper:
            a, b = a.keep(np.isin(a.label, b.label)), b.keep(np.isin(b.label, a.label))
        # A pass is linear, so it must earn its time: little gained means little left to gain.
        if before - len(a) - len(b) <= before // 100:
            return a, b


@compiled
def classes(label: IntArray, size: IntArray) -> IntArray:
    """Hash-consing: equal numbers for equal subtrees, shape `(n,)`; several trees may follow one another.

    Candidates found by hash are compared by label and children, so the answer is exact.
    """
    n = len(label)
    room = 16
    while room < 2 * n:
        room *= 2
    table = np.full(room, -1, np.int32)
    hashes = np.zeros(n, np.int64)
    kind = np.zeros(n, np.int32)
    count = 0
    for x in range(n - 1, -1, -1):
        h = np.int64(label[x]) * 1000003 + 7919
        c = x + 1
        while c < x + size[x]:
            h = (h ^ np.int64(kind[c])) * 6364136223846793005 + 1442695040888963407
            h ^= h >> 29
            c += size[c]
        h ^= h >> 17
        hashes[x] = h
        slot = h & (room - 1)
        while True:
            other = table[slot]
            if other < 0:
                table[slot] = x
                kind[x] = count
                count += 1
                break
            if hashes[other] == h and label[other] == label[x] and size[other] == size[x]:
                c, d = x + 1, other + 1
                while c < x + size[x] and kind[c] == kind[d]:
                    c += size[c]
                    d += size[d]
                if c >= x + size[x]:
                    kind[x] = kind[other]
                    break
            slot = (slot + 1) & (room - 1)
    return kind


@compiled
def parents(size: IntArray) -> IntArray:
    """Parent of each node of a preorder tree (-1 for the root)."""
    parent = np.full(len(size), -1, np.int32)
    for x in range(1, len(size)):
        above = x - 1
        while above + size[above] <= x:
            above = parent[above]
        parent[x] = above
    return parent


@compiled
def strip(
    label_a: IntArray, size_a: IntArray, kind_a: IntArray, label_b: IntArray, size_b: IntArray, kind_b: IntArray
) -> IntArray:
    """Pairs that some optimal mapping holds, below two matched roots; shape `(len(a),)`, -1 where undecided.

    Equal first trees and equal last trees are paired; two single trees with equal roots are entered.
    """
    pair = np.full(len(label_a), -1, np.int32)
    parent_a, parent_b = parents(size_a), parents(size_b)
    start_a, end_a, start_b, end_b = 1, len(label_a), 1, len(label_b)
    while start_a < end_a and start_b < end_b:
        if kind_a[start_a] == kind_b[start_b]:
            for i in range(size_a[start_a]):
                pair[start_a + i] = start_b + i
            start_a, start_b = start_a + size_a[start_a], start_b + size_b[start_b]
            continue
        last_a, last_b = end_a - 1, end_b - 1
        while parent_a[last_a] >= start_a:
            last_a = parent_a[last_a]
        while parent_b[last_b] >= start_b:
            last_b = parent_b[last_b]
        if kind_a[last_a] == kind_b[last_b]:
            for i in range(size_a[last_a]):
                pair[last_a + i] = last_b + i
            end_a, end_b = last_a, last_b
            continue
        single = last_a == start_a and last_b == start_b
        if not single or label_a[start_a] != label_b[start_b]:
            break
        pair[start_a] = start_b
        start_a, start_b = start_a + 1, start_b + 1
    return pair


@compiled
def moved_subtrees(kind_a: IntArray, size_a: IntArray, kind_b: IntArray, order: IntArray) -> IntArray:
    """For each node of forest a its copy in forest b, shape `(len(a),)`, -1: none; no node is used twice.

    Nodes of a choose in the given order, larger subtrees first; they take the earliest copy.
    """
    found = np.full(len(kind_a), -1, np.int32)
    used = np.zeros(len(kind_b), np.bool_)
    count = max(kind_a.max(), kind_b.max()) + 1
    first = np.full(count, -1, np.int32)
    following = np.full(len(kind_b), -1, np.int32)
    for y in range(len(kind_b) - 1, -1, -1):
        following[y] = first[kind_b[y]]
        first[kind_b[y]] = y
    for x in order:
        if found[x] >= 0:
            continue
        y = first[kind_a[x]]
        # Larger subtrees went first, so a subtree is wholly used or not at all.
        while y >= 0 and used[y]:
            y = following[y]
        first[kind_a[x]] = y
        if y >= 0:
            for c in range(size_a[x]):
                found[x + c] = y + c
                used[y + c] = True
    return found
