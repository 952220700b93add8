"""The call tree: one node per call, in preorder, as read-only columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]


class Function(NamedTuple):
    """A function's identity: `path` under the project's root with forward slashes, `qualname` without `<locals>`."""

    path: str
    qualname: str

    def __str__(self) -> str:
        return f"{self.path}::{self.qualname}"


@dataclass(frozen=True, slots=True, eq=False)
class CallTree:
    """An ordered tree of calls.

    Node 0 is the run itself (label -1); every other node is one call. All arrays have one entry per node, in
    preorder: `label` indexes `functions` (-1: no function), `parent` is a node (-1 for node 0), `size` counts the
    nodes of the subtree including its root, `raised` indexes `exceptions` with the type of the exception that left
    the call (-1: returned).
    A generator resumed many times is one node.
    """

    functions: tuple[Function, ...]
    exceptions: tuple[str, ...]
    label: IntArray
    parent: IntArray
    size: IntArray
    raised: IntArray

    def __len__(self) -> int:
        return len(self.label)

    @classmethod
    def from_nested(cls, nested: Sequence[Any]) -> CallTree:
        """Build a tree from nested sequences: `["main", ["f", ["g"]], ["h"]]` is main calling f (which calls g) and h.

        The outermost sequence is a list of calls under node 0. Meant for tests and examples; each name becomes
        `Function("m.py", name)`.
        """
        names: dict[str, int] = {}
        labels, parents = [-1], [-1]
        stack: list[tuple[Any, int]] = [(call, 0) for call in reversed(nested)]
        while stack:
            call, parent = stack.pop()
            node = len(labels)
            labels.append(names.setdefault(str(call[0]), len(names)))
            parents.append(parent)
            stack.extend((child, node) for child in reversed(call[1:]))
        return cls.from_columns(
            functions=tuple(Function("m.py", name) for name in names),
            exceptions=(),
            label=labels,
            parent=parents,
        )

    @classmethod
    def from_columns(
        cls,
        *,
        functions: Sequence[Function],
        exceptions: Sequence[str],
        label: Sequence[int] | IntArray,
        parent: Sequence[int] | IntArray,
        raised: Sequence[int] | IntArray | None = None,
    ) -> CallTree:
        """Build from preorder columns (see the class); computes `size` and freezes every array."""
        label_ = np.ascontiguousarray(label, dtype=np.int32)
        parent_ = np.ascontiguousarray(parent, dtype=np.int32)
        raised_ = np.full(len(label_), -1, np.int32) if raised is None else np.ascontiguousarray(raised, np.int32)
        size = subtree_sizes(parent_)
        for column in (label_, parent_, size, raised_):
            column.flags.writeable = False
        return cls(tuple(functions), tuple(exceptions), label_, parent_, size, raised_)


def subtree_sizes(parent: IntArray) -> IntArray:
    """Sizes of all subtrees of a tree in preorder, shape `(n,)`; linear time, no recursion."""
    depth = depths(parent)
    size = np.ones(len(parent), np.int32)
    order = np.argsort(-depth, kind="stable")
    bounds = np.flatnonzero(np.diff(depth[order])) + 1
    for level in np.split(order, bounds):
        inner = level[parent[level] >= 0]
        np.add.at(size, parent[inner], size[inner])
    return size


def depths(parent: IntArray) -> IntArray:
    """Depth of every node (node 0 has 0), shape `(n,)`; parents precede children."""
    depth = [0] * len(parent)
    for node, above in enumerate(parent.tolist()):
        if above >= 0:
            depth[node] = depth[above] + 1
    return np.asarray(depth, np.int32)
