"""What the calls alone tell of a function in one run: who calls it, whom it calls, and which exceptions leave it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xlocal.ranking.observation import Observation
from xlocal.report import plain, short_name
from xlocal.tracer.calltree import CallTree, Function

NAMED = 5  # functions of a list that are named


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A function in the run `role`: its calls, the callers with how many of these each made (None: the script itself),
    its callees with how often it calls them, and the exceptions that left it; the most frequent first."""

    role: str
    calls: int
    callers: tuple[tuple[Function | None, int], ...]
    callees: tuple[tuple[Function | None, int], ...]
    raised: tuple[tuple[str, int], ...]

    def sentences(self) -> Iterator[str]:
        """The same in words."""
        run = "the buggy run" if self.role == "buggy" else self.role
        yield f"{_times(self.calls)} called in {run}, by {_listed(self.callers, self.calls)}."
        if self.callees:
            yield f"It calls {_listed(self.callees, 0)}."
        if not self.raised:
            yield "Every call returned."
        elif self.raised == ((self.raised[0][0], self.calls),):
            every = "The call was" if self.calls == 1 else f"All {self.calls:,} calls were"
            yield f"{every} left by {_exception(self.raised[0][0])}."
        else:
            left = ", ".join(f"{count:,} by {_exception(name)}" for name, count in self.raised)
            yield f"Of its {self.calls:,} calls exceptions left {left}."


def _times(count: int) -> str:
    return {1: "Once", 2: "Twice"}.get(count, f"{count:,} times")


def _exception(name: str) -> str:
    return short_name(name).replace("?", "an exception")


def _listed(functions: tuple[tuple[Function | None, int], ...], calls: int) -> str:
    """Names with numbers; a single caller of all `calls` needs no number."""
    if len(functions) == 1 and functions[0][1] == calls:
        return _name(functions[0][0])
    named = ", ".join(f"{_name(function)} ({count:,})" for function, count in functions[:NAMED])
    return named + (f" and {len(functions) - NAMED:,} more" if len(functions) > NAMED else "")


def _name(function: Function | None) -> str:
    return plain(function.qualname) if function else "the script itself"


class Calls:
    """The edges of one run's call tree, for many questions."""

    def __init__(self, seen: Observation) -> None:
        self._role, self._tree = seen.role, seen.tree
        self._number = {function: label for label, function in enumerate(seen.tree.functions)}
        self._edges, self._times = _edges(seen.tree)
        left = seen.tree.raised >= 0
        self._left, self._by = seen.tree.label[left], seen.tree.raised[left]

    def of(self, function: Function) -> Surroundings | None:
        """What the run tells of a function; None when it did not call it."""
        label = self._number.get(function)
        if label is None or not (callers := self._named(self._edges[:, 1] == label, 0)):
            return None
        return Surroundings(
            role=self._role,
            calls=sum(count for _, count in callers),
            callers=callers,
            callees=self._named(self._edges[:, 0] == label, 1),
            raised=self._raised(label),
        )

    def _named(self, chosen: NDArray[np.bool_], end: int) -> tuple[tuple[Function | None, int], ...]:
        found = zip(self._edges[chosen, end].tolist(), self._times[chosen].tolist(), strict=True)
        named = [(self._tree.functions[label] if label >= 0 else None, count) for label, count in found]
        return tuple(sorted(named, key=lambda item: (-item[1], item[0] or ("", ""))))

    def _raised(self, label: int) -> tuple[tuple[str, int], ...]:
        numbers, times = np.unique(self._by[self._left == label], return_counts=True)
        named = [(self._tree.exceptions[n], count) for n, count in zip(numbers.tolist(), times.tolist(), strict=True)]
        return tuple(sorted(named, key=lambda item: (-item[1], item[0])))


def _edges(
    tree: CallTree,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels of caller and callee, shape (n, 2), and how often each such call was made, shape (n,)."""
    span = len(tree.functions) + 1
    key = (tree.label[tree.parent[1:]].astype(np.int64) + 1) * span + tree.label[1:] + 1
    found, times = np.unique(key, return_counts=True)
    return np.stack([found // span - 1, found % span - 1], axis=1), times
