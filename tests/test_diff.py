"""The difference of call trees against brute force and two published implementations, and what it promises besides."""

from __future__ import annotations

import functools
import random

import edist.ted
import numpy as np
import pytest
from apted import APTED, Config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xlocal.ranking.diff import TreeDiff, diff
from xlocal.tracer.calltree import CallTree, Function

quick = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def tree(label: list[int], parent: list[int], *, functions: int = 8) -> CallTree:
    return CallTree.from_columns(
        functions=[Function("m.py", f"f{i}") for i in range(functions)], exceptions=(), label=label, parent=parent
    )


@st.composite
def trees(draw: st.DrawFn, most: int = 14) -> CallTree:
    labels = draw(st.integers(1, 6))
    steps = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, labels - 1)), max_size=most))
    label, parent, path = [-1], [-1], [0]
    for up, name in steps:
        del path[max(1, len(path) - up) :]
        parent.append(path[-1])
        path.append(len(label))
        label.append(name)
    return tree(label, parent)


def random_tree(n: int, labels: int, seed: int, *, deeper: float = 0.5) -> CallTree:
    rng = random.Random(seed)
    label, parent, path = [-1], [-1], [0]
    while len(label) < n:
        while len(path) > 1 and rng.random() > deeper:
            path.pop()
        parent.append(path[-1])
        path.append(len(label))
        label.append(rng.randrange(labels))
    return tree(label, parent, functions=labels)


def without(original: CallTree, nodes: set[int]) -> CallTree:
    """The tree after deleting these nodes; their calls go to the caller."""
    number, label, parent = {-1: -1}, [], []
    for node in range(len(original)):
        above = number[int(original.parent[node])]
        if node in nodes:
            number[node] = above
        else:
            number[node] = len(label)
            label.append(int(original.label[node]))
            parent.append(above)
    return tree(label, parent, functions=len(original.functions))


def names(one: CallTree) -> list[str]:
    return [str(one.functions[i]) if i >= 0 else "run" for i in one.label]


def check(d: TreeDiff) -> None:
    """The mapping keeps order and ancestry, and costs what it says."""
    a, b = d.buggy, d.reference
    kept = np.flatnonzero(d.match >= 0)
    assert d.match[0] == 0
    assert d.back[d.match[kept]].tolist() == kept.tolist()
    assert np.count_nonzero(d.back >= 0) == len(kept)
    image = d.match[kept]
    assert (np.diff(image) > 0).all()
    assert ((kept < (kept + a.size[kept])[:, None]) == (image < (image + b.size[image])[:, None])).all()
    label_a, label_b = np.asarray(names(a)), np.asarray(names(b))
    renames = int(np.count_nonzero(label_a[kept] != label_b[image]))
    assert d.cost == len(a) + len(b) - 2 * len(kept) + renames
    assert d.lower <= d.cost
    assert d.exact == (d.lower == d.cost)


class Oracle(Config):  # type: ignore[misc]
    """APTED's costs; a rename costs 1, or as much as a deletion and an insertion."""

    def __init__(self, rename: int) -> None:
        self.cost = rename

    def rename(self, one: Node, two: Node) -> int:
        return 0 if one.name == two.name else self.cost

    def children(self, node: Node) -> list[Node]:
        return node.below


class Node:
    def __init__(self, name: str) -> None:
        self.name = name
        self.below: list[Node] = []


def nodes(one: CallTree) -> list[Node]:
    made = [Node(name) for name in names(one)]
    for node in range(1, len(one)):
        made[one.parent[node]].below.append(made[node])
    return made


def apted_cost(a: CallTree, b: CallTree, rename: int) -> int:
    return int(APTED(nodes(a)[0], nodes(b)[0], Oracle(rename)).compute_edit_distance())


def edist_cost(a: CallTree, b: CallTree) -> int:
    def cost(x: str | None, y: str | None) -> float:
        return float(x != y) if x is None or y is None else 2.0 * (x != y)

    lists = [[[c for c in range(1, len(t)) if t.parent[c] == node] for node in range(len(t))] for t in (a, b)]
    return round(edist.ted.ted(names(a), lists[0], names(b), lists[1], cost))


def brute_cost(a: CallTree, b: CallTree, rename: int) -> int:
    """The recurrence by its definition: the last tree of either forest loses its root, or both last trees pair up."""
    Forest = tuple  # noqa: N806  nested tuples (name, children)

    def nested(t: CallTree) -> Forest:  # type: ignore[type-arg]
        below: dict[int, Forest] = {}  # type: ignore[type-arg]
        for node in range(len(t) - 1, -1, -1):
            calls = tuple(below[c] for c in range(node + 1, len(t)) if t.parent[c] == node)
            below[node] = (names(t)[node], calls)
        return (below[0],)

    def size(f: Forest) -> int:  # type: ignore[type-arg]
        return sum(1 + size(calls) for _, calls in f)

    @functools.cache
    def distance(f: Forest, g: Forest) -> int:  # type: ignore[type-arg]
        if not f or not g:
            return size(f) + size(g)
        (name, calls), (other, others) = f[-1], g[-1]
        return min(
            distance(f[:-1] + calls, g) + 1,
            distance(f, g[:-1] + others) + 1,
            distance(f[:-1], g[:-1]) + distance(calls, others) + (0 if name == other else rename),
        )

    return distance(nested(a), nested(b))


@pytest.mark.parametrize("paper", [False, True])
@quick
@given(a=trees(), b=trees())
def test_cost_is_that_of_apted(paper: bool, a: CallTree, b: CallTree) -> None:
    d = diff(a, b, paper=paper)
    check(d)
    assert d.exact
    assert d.cost == apted_cost(a, b, 1 if paper else 2)


@quick
@given(a=trees(), b=trees())
def test_cost_is_that_of_edist(a: CallTree, b: CallTree) -> None:
    assert diff(a, b).cost == edist_cost(a, b)


@pytest.mark.parametrize("paper", [False, True])
@quick
@given(a=trees(most=6), b=trees(most=6))
def test_cost_is_that_of_brute_force(paper: bool, a: CallTree, b: CallTree) -> None:
    assert diff(a, b, paper=paper).cost == brute_cost(a, b, 1 if paper else 2)


@pytest.mark.parametrize("paper", [False, True])
@quick
@given(a=trees(most=30), b=trees(most=30))
def test_cost_is_symmetric_and_the_answer_repeats(paper: bool, a: CallTree, b: CallTree) -> None:
    d = diff(a, b, paper=paper)
    assert d.cost == diff(b, a, paper=paper).cost
    assert d.match.tolist() == diff(a, b, paper=paper).match.tolist()


@quick
@given(a=trees(most=30))
def test_a_tree_does_not_differ_from_itself(a: CallTree) -> None:
    d = diff(a, a)
    assert (d.cost, d.exact) == (0, True)
    assert d.match.tolist() == list(range(len(a)))


def test_labels_are_compared_by_function_not_by_number() -> None:
    one, two = CallTree.from_nested([["f"], ["g"]]), CallTree.from_nested([["g"], ["f"]])
    d = diff(one, two)
    assert d.cost == 2
    check(d)
    shifted = CallTree.from_columns(
        functions=(Function("m.py", "g"), Function("m.py", "f")),
        exceptions=("E",),
        label=[-1, 1, 0],
        parent=[-1, 0, 0],
        raised=[-1, 0, -1],
    )
    assert diff(one, shifted).cost == 0


def test_edits_know_the_call_they_belong_to() -> None:
    buggy = CallTree.from_nested([["main", ["parse", ["fail", ["log"]]], ["close"]]])
    reference = CallTree.from_nested([["main", ["parse"], ["close", ["flush"]]]])
    d = diff(buggy, reference)
    assert [names(buggy)[i] for i in d.deleted] == ["m.py::fail", "m.py::log"]
    assert [names(buggy)[i] for i in d.deleted_under] == ["m.py::parse", "m.py::parse"]
    assert [names(reference)[i] for i in d.inserted] == ["m.py::flush"]
    assert [names(buggy)[i] for i in d.inserted_under] == ["m.py::close"]


def test_a_call_between_two_others_is_one_edit() -> None:
    d = diff(
        CallTree.from_nested([["a", ["wrap", ["b", ["c"]], ["d"]]]]), CallTree.from_nested([["a", ["b", ["c"]], ["d"]]])
    )
    assert (d.cost, d.deleted.tolist()) == (1, [2])


def test_an_equal_subtree_elsewhere_has_moved() -> None:
    buggy = CallTree.from_nested([["a", ["x", ["y"], ["z"]]], ["b", ["p"], ["q"], ["r"], ["s"], ["t"]]])
    reference = CallTree.from_nested([["a"], ["b", ["p"], ["q"], ["r"], ["s"], ["t"], ["x", ["y"], ["z"]]]])
    d = diff(buggy, reference)
    assert (d.cost, d.deleted.tolist(), d.moved[d.deleted].tolist()) == (6, [2, 3, 4], d.inserted.tolist())
    assert (np.delete(d.moved, d.deleted) == -1).all()


def test_moves_prefer_the_largest_copy_and_use_no_node_twice() -> None:
    buggy = CallTree.from_nested([["x"], ["x", ["y"]], ["k"], ["k"], ["k"], ["k"]])
    reference = CallTree.from_nested([["k"], ["k"], ["k"], ["k"], ["x", ["y"]]])
    assert diff(buggy, reference).moved[1:4].tolist() == [-1, 5, 6]


def test_paper_mode_renames() -> None:
    one, two = CallTree.from_nested([["a", ["b"]]]), CallTree.from_nested([["a", ["c"]]])
    assert (diff(one, two).cost, diff(one, two, paper=True).cost) == (2, 1)
    assert diff(one, two, paper=True).match.tolist() == [0, 1, 2]


@pytest.mark.parametrize("paper", [False, True])
def test_deep_chains_do_not_recurse(paper: bool) -> None:
    n = 100_000
    chain = tree([-1, *([0, 1] * (n // 2))], list(range(-1, n)))
    d = diff(chain, without(chain, {500, 70_001}), paper=paper)
    assert (d.cost, d.exact, len(d.deleted)) == (2, True, 2)
    check_small = d.match[d.match >= 0]
    assert (np.diff(check_small) > 0).all()


def test_wide_trees_and_long_loops() -> None:
    n = 60_000
    wide = tree([-1, *[i % 3 for i in range(n)]], [-1] + [0] * n)
    d = diff(wide, without(wide, {5, 30_000, 59_000}))
    assert (d.cost, d.exact) == (3, True)
    loop = CallTree.from_nested([["main", *([["step", ["read"], ["write"]]] * 5000)]])
    shorter = CallTree.from_nested([["main", *([["step", ["read"], ["write"]]] * 4990), ["end"]]])
    assert (diff(loop, shorter).cost, diff(loop, shorter).exact) == (31, True)


def test_random_edits_of_a_larger_tree() -> None:
    rng = random.Random(3)
    one = random_tree(20_000, 40, 1)
    d = diff(one, without(one, set(rng.sample(range(1, 20_000), 80))))
    check(diff(random_tree(2000, 3, 4), random_tree(1500, 3, 5)))
    assert (d.cost, d.exact) == (80, True)


def test_beyond_the_budget_the_interval_is_labelled() -> None:
    a, b = random_tree(400, 3, 1), random_tree(400, 3, 2, deeper=0.8)
    bound, best = diff(a, b, budget=0), diff(a, b)
    check(bound)
    check(best)
    assert (bound.exact, best.exact) == (False, True)
    assert bound.lower <= best.cost <= bound.cost


def test_ctrl_c_leaves_the_best_bound() -> None:
    a, b = random_tree(400, 3, 1), random_tree(400, 3, 2, deeper=0.8)
    phases: list[str] = []

    def interrupt(phase: str, share: float) -> None:
        assert 0 <= share <= 1
        phases.append(phase)
        if phase.endswith("search"):
            raise KeyboardInterrupt

    d = diff(a, b, progress=interrupt)
    check(d)
    assert not d.exact
    assert d.lower <= diff(a, b).cost <= d.cost
    assert phases[-1] == "interrupted"


def test_bad_arguments_are_refused() -> None:
    one = CallTree.from_nested([["f"]])
    with pytest.raises(ValueError, match="budget"):
        diff(one, one, budget=-1)
    with pytest.raises(ValueError, match="budget"):
        diff(one, one, budget=float("nan"))
    empty = tree([], [])
    with pytest.raises(ValueError, match="node of its run"):
        diff(empty, one)


def test_results_are_read_only_and_one_node_is_enough() -> None:
    one, run = CallTree.from_nested([["f", ["g"]]]), CallTree.from_nested([])
    d = diff(one, run)
    assert (d.cost, d.match.tolist(), d.deleted_under.tolist()) == (2, [0, -1, -1], [0, 0])
    assert diff(run, one).inserted_under.tolist() == [0, 0]
    with pytest.raises(ValueError, match="read-only"):
        d.match[0] = 1
