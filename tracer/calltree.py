"""The call tree: one node per call, in preorder, as read-only columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, NamedTuple, TypeVar, cast

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
    the call (-1: returned), `thread` counts the threads of all processes from 0.
    A generator resumed many times is one node.
    """

    functions: tuple[Function, ...]
    exceptions: tuple[str, ...]
    label: IntArray
    parent: IntArray
    size: IntArray
    raised: IntArray
    thread: IntArray

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
        thread: Sequence[int] | IntArray | None = None,
    ) -> CallTree:
        """Build from preorder columns (see the class); computes `size` and freezes every array."""
        label_ = np.ascontiguousarray(label, dtype=np.int32)
        parent_ = np.ascontiguousarray(parent, dtype=np.int32)
        raised_ = np.full(len(label_), -1, np.int32) if raised is None else np.ascontiguousarray(raised, np.int32)
        thread_ = np.zeros(len(label_), np.int32) if thread is None else np.ascontiguousarray(thread, np.int32)
        size = subtree_sizes(parent_)
        for column in (label_, parent_, size, raised_, thread_):
            column.flags.writeable = False
        return cls(tuple(functions), tuple(exceptions), label_, parent_, size, raised_, thread_)

    def counts(self) -> dict[Function, int]:
        """How often each function was called; those never called are left out."""
        calls = np.bincount(self.label[1:], minlength=len(self.functions))
        return {self.functions[label]: int(calls[label]) for label in np.flatnonzero(calls)}

    def outline(self) -> str:
        """The tree as indented qualnames, one call a line: for small trees, in tests and examples."""
        depth = depths(self.parent)
        names = [self.functions[label].qualname for label in self.label[1:]]
        return "\n".join("  " * (int(d) - 1) + name for d, name in zip(depth[1:], names, strict=True))


Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled_above(length: int) -> Callable[[Loop], Loop]:
    """Compile a loop over arrays with numba when its first argument has at least `length` entries.

    Below that, plain Python is quicker than loading the compiled loop.
    """

    def decorate(loop: Loop) -> Loop:
        @cache
        def compiled() -> Callable[..., Any]:
            from numba import njit

            jitted: Callable[..., Any] = njit(cache=True)(loop)
            return jitted

        @wraps(loop)
        def choose(first: Any, *rest: Any) -> Any:
            return (compiled() if len(first) >= length else loop)(first, *rest)

        return cast(Loop, choose)

    return decorate


def subtree_sizes(parent: IntArray) -> IntArray:
    """Sizes of all subtrees of a tree whose parents precede their children, shape `(n,)`; linear time."""
    return _sizes(np.array(parent, np.int32))


def depths(parent: IntArray) -> IntArray:
    """Depth of every node (node 0 has 0), shape `(n,)`; parents precede their children."""
    return _depths(np.array(parent, np.int32))


@compiled_above(100_000)
def _sizes(parent: IntArray) -> IntArray:
    size = np.ones(len(parent), np.int32)
    for node in range(len(parent) - 1, 0, -1):
        size[parent[node]] += size[node]
    return size


@compiled_above(100_000)
def _depths(parent: IntArray) -> IntArray:
    depth = np.zeros(len(parent), np.int32)
    for node in range(1, len(parent)):
        depth[node] = depth[parent[node]] + 1
    return depth


def preorder(parent: IntArray) -> tuple[IntArray, IntArray]:
    """Bring nodes whose parents precede them into preorder, siblings in their present order.

    Returns the permutation (new position -> old node) and the parents renumbered, both of shape (n,).
    """
    position = _position(np.array(parent, np.int32), subtree_sizes(parent))
    order = np.empty(len(parent), np.int32)
    order[position] = np.arange(len(parent), dtype=np.int32)
    above = parent[order]
    return order, np.where(above < 0, -1, position[np.maximum(above, 0)]).astype(np.int32)


@compiled_above(100_000)
def _position(parent: IntArray, size: IntArray) -> IntArray:
    position = np.zeros(len(parent), np.int32)
    free = np.ones(len(parent), np.int32)  # where a node's next child goes
    for node in range(1, len(parent)):
        position[node] = free[parent[node]]
        free[parent[node]] += size[node]
        free[node] = position[node] + 1
    return position
