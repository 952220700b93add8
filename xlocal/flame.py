"""Calls summed up by the path of functions that leads to them in their own run, for a flame view of both runs in one
picture."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xlocal.aligned import Rows
from xlocal.ranking.diff import TreeDiff, shared_labels
from xlocal.tracer.calltree import CallTree, IntArray, depths

DEEPEST = 120  # levels that are summed up
MOST_FRAMES = 3000


class Flame(NamedTuple):
    """Frames, parents first, columns of shape (n,): `parent` is a frame (-1: the run itself, frame 0), `label` indexes
    the rows' functions.

    `buggy` and `reference` count the calls that each run made by the frame's path; where one of them is 0, so it is for
    every frame inside. `width` counts what is inside and the frame itself, calls in both runs once; `edits` counts
    those that differ. `left_out` counts frames that were too small to keep, and calls that lie too deep.
    """

    parent: IntArray
    label: IntArray
    buggy: IntArray
    reference: IntArray
    width: IntArray
    edits: IntArray
    left_out: int


def flame(difference: TreeDiff, rows: Rows, *, most: int = MOST_FRAMES) -> Flame:
    """The frames of a difference and its rows; of more than `most` the widest and those with the most differences."""
    whole = _summed(difference, rows)
    if len(whole.parent) <= most:
        return whole
    depth = depths(whole.parent)
    # A frame is never wider or richer in differences than its parent, so that a prefix of either order is a tree.
    widest = np.lexsort((depth, -whole.width))[: most * 2 // 3]
    richest = np.lexsort((depth, -whole.edits))[: most - len(widest)]
    return _kept(whole, np.union1d(widest, richest))


def _summed(difference: TreeDiff, rows: Rows) -> Flame:
    """Both trees one after the other, each call under the callers of its own run: the rows let a call of one run alone
    enclose those of the other, which no run did."""
    trees = difference.buggy, difference.reference
    first = len(difference.buggy)
    depth = np.concatenate([depths(tree.parent) for tree in trees])
    above = np.concatenate([trees[0].parent, trees[1].parent + first])
    label = np.concatenate(shared_labels(*trees))
    frame = np.zeros(len(depth), np.int64)
    parents, labels = [np.array([-1])], [np.array([-1])]
    count, functions = 1, len(rows.functions) + 1
    order = np.argsort(depth, kind="stable")
    starts = np.searchsorted(depth[order], np.arange(1, min(int(depth.max(initial=0)), DEEPEST) + 2))
    for start, stop in pairwise(starts.tolist()):
        nodes = order[start:stop]
        found, place = np.unique(frame[above[nodes]] * functions + label[nodes], return_inverse=True)
        frame[nodes] = count + place
        parents.append(found // functions)
        labels.append(found % functions)
        count += len(found)
    seen = depth <= DEEPEST
    parent = np.concatenate(parents).astype(np.int32)

    def own(flag: NDArray[np.bool_]) -> IntArray:
        return np.bincount(frame[flag & seen], minlength=count).astype(np.int32)

    here = np.arange(len(depth)) < first
    buggy, reference = own(here), own(~here)
    return Flame(
        parent=parent,
        label=np.concatenate(labels).astype(np.int32),
        buggy=buggy,
        reference=reference,
        width=_with_inner(parent, np.maximum(buggy, reference)),
        edits=_with_inner(parent, own(_differing(trees, rows))),
        left_out=int((~seen).sum()),
    )


def _differing(trees: tuple[CallTree, CallTree], rows: Rows) -> NDArray[np.bool_]:
    """Which calls of the trees, one after the other, differ; a pair that differs counts in the buggy run alone."""
    differs = np.zeros(len(trees[0]) + len(trees[1]), np.bool_)
    odd = rows.differs
    differs[rows.left[odd & (rows.left >= 0)]] = True
    differs[rows.right[odd & (rows.left < 0)] + len(trees[0])] = True
    return differs


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
