"""Pairs of small call trees, compared and ready to be shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from xlocal.ranking.diff import diff
from xlocal.ranking.observation import Observation
from xlocal.tracer.calltree import CallTree
from xlocal.tracer.command import Command
from xlocal.tracer.record import Recording

from xlocal.diff_view import Compared


def observed(tree: CallTree, role: str, noisy: Sequence[str] = ()) -> Observation:
    """What a recording of these calls would be seen as."""
    return Observation(
        recording=Recording(role, Command("x.py", "script", "/x.py", ("x.py",)), ()),
        tree=tree,
        codes=(),
        code=tree.label,
        index=tree.label,
        visible=tree.label >= 0,
        threads=("",) * (int(tree.thread.max()) + 1),
        noisy=frozenset(function for function in tree.functions if function.qualname in noisy),
        steady=frozenset(tree.functions),
        uncaught=(),
        outside=(),
        warnings=(),
    )


def compared(buggy: CallTree | Sequence[Any], reference: CallTree | Sequence[Any], *, noisy: Sequence[str] = (),
             budget: float = 1e9, role: str = "reference-1") -> Compared:  # fmt: skip
    """Two trees (or nested lists, as `CallTree.from_nested` takes them) with their difference."""
    trees = [tree if isinstance(tree, CallTree) else CallTree.from_nested(tree) for tree in (buggy, reference)]
    difference = diff(*trees, budget=budget)
    return Compared(observed(trees[0], "buggy", noisy), observed(trees[1], role, noisy), difference)


def raising(nested: Sequence[Any], name: str, exception: str = "pkg.Odd") -> CallTree:
    """The tree with every call of `name` left by an exception."""
    tree = CallTree.from_nested(nested)
    raised = [0 if label >= 0 and tree.functions[label].qualname == name else -1 for label in tree.label.tolist()]
    return CallTree.from_columns(
        functions=tree.functions, exceptions=(exception,), label=tree.label, parent=tree.parent, raised=raised
    )


NESTED = st.lists(
    st.recursive(st.sampled_from("abc").map(lambda name: [name]),
                 lambda inner: st.tuples(st.sampled_from("abc"), st.lists(inner, max_size=4)).map(lambda c: [c[0], *c[1]]),
                 max_leaves=12),
    max_size=4,
)  # fmt: skip
