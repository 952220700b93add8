"""Calls summed up by the path of functions that leads to them, for a flame view of both runs in one picture."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xlocal.aligned import Rows
from xlocal.tracer.calltree import IntArray, depths

DEEPEST = 120  # levels that are summed up
MOST_FRAMES = 3000


class Flame(NamedTuple):
    """Frames, parents first, columns of shape (n,): `parent` is a frame (-1: the run itself, frame 0), `label` indexes
    the rows' functions.

    `buggy` and `reference` count the frame's own calls in each run; `width` counts the rows inside it and itself,
    `edits` how many of them differ. `left_out` counts frames that were too small to keep or too deep.
    """

    parent: IntArray
    label: IntArray
    buggy: IntArray
    reference: IntArray
    width: IntArray
    edits: IntArray
    left_out: int


def flame(rows: Rows, *, most: int = MOST_FRAMES) -> Flame:
    """The frames of the rows; of more than `most` the widest and those with the most differences."""
    whole = _summed(rows)
    if len(whole.parent) <= most:
        return whole
    depth = depths(whole.parent)
    # A frame is never wider or richer in differences than its parent, so that a prefix of either order is a tree.
    widest = np.lexsort((depth, -whole.width))[: most * 2 // 3]
    richest = np.lexsort((depth, -whole.edits))[: most - len(widest)]
    return _kept(whole, np.union1d(widest, richest))


def _summed(rows: Rows) -> Flame:
    depth = rows.depth
    frame = np.zeros(len(rows), np.int64)
    parents, labels = [np.array([-1])], [np.array([-1])]
    count, above = 1, _parents(depth)
    order = np.argsort(depth, kind="stable")
    starts = np.searchsorted(depth[order], np.arange(1, min(int(depth.max(initial=0)), DEEPEST) + 2))
    for start, stop in pairwise(starts.tolist()):
        nodes = order[start:stop]
        key = frame[above[nodes]] * (len(rows.functions) + 1) + rows.label[nodes]
        found, place = np.unique(key, return_inverse=True)
        frame[nodes] = count + place
        parents.append(found // (len(rows.functions) + 1))
        labels.append(found % (len(rows.functions) + 1))
        count += len(found)
    seen = depth <= DEEPEST
    parent = np.concatenate(parents).astype(np.int32)

    def own(flag: NDArray[np.bool_]) -> IntArray:
        return np.bincount(frame[flag & seen], minlength=count).astype(np.int32)

    return Flame(
        parent=parent,
        label=np.concatenate(labels).astype(np.int32),
        buggy=own(rows.left >= 0),
        reference=own(rows.right >= 0),
        width=_with_inner(parent, own(np.ones(len(rows), np.bool_))),
        edits=_with_inner(parent, own(rows.differs)),
        left_out=int((~seen).sum()),
    )


def _parents(depth: IntArray) -> IntArray:
    """The row above each row: the last one before it that is a level higher, shape (n,)."""
    above = np.zeros(len(depth), np.int32)
    order = np.lexsort((np.arange(len(depth)), depth))
    level = depth[order]
    for d in range(1, min(int(depth.max(initial=0)), DEEPEST) + 1):
        here = order[np.searchsorted(level, d) : np.searchsorted(level, d, "right")]
        higher = order[np.searchsorted(level, d - 1) : np.searchsorted(level, d - 1, "right")]
        above[here] = higher[np.searchsorted(higher, here) - 1]
    return above


def _with_inner(parent: IntArray, own: IntArray) -> IntArray:
    """Each frame's number together with those of all frames inside it; parents precede their children."""
    total = own.astype(np.int64)
    for frame in range(len(parent) - 1, 0, -1):
        total[parent[frame]] += total[frame]
    return total.astype(np.int32)


def _kept(whole: Flame, frames: NDArray[np.int64]) -> Flame:
    place = np.full(len(whole.parent), -1, np.int32)
    place[frames] = np.arange(len(frames), dtype=np.int32)
    parent = np.where(whole.parent[frames] < 0, -1, place[whole.parent[frames]]).astype(np.int32)
    return Flame(
        parent=parent,
        label=whole.label[frames],
        buggy=whole.buggy[frames],
        reference=whole.reference[frames],
        width=whole.width[frames],
        edits=whole.edits[frames],
        left_out=whole.left_out + len(whole.parent) - len(frames),
    )
