"""Each search and each bound on its own, so that a quicker one cannot hide a wrong one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from test_diff import apted_cost, trees
from xlocal.ranking import bound, exact, kernel, reduce
from xlocal.ranking.compiled import compiled
from xlocal.ranking.diff import label_bound, shared_labels
from xlocal.ranking.exact import Best, Side
from xlocal.tracer.calltree import CallTree, IntArray

quick = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
texts = st.lists(st.integers(0, 2), max_size=12)


def sides(a: CallTree, b: CallTree) -> tuple[Side, Side]:
    labels = shared_labels(a, b)
    one, two = (
        Side(label, t.size.copy(), np.arange(len(t), dtype=np.int32)) for label, t in zip(labels, (a, b), strict=True)
    )
    return one, two


def silent(phase: str, share: float) -> None:
    """Progress that nobody watches."""


def string_distance(a: list[int], b: list[int], rename: int) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + rename * (x != y)))
    return row[-1]


def valid(a: Side, b: Side, pair: IntArray) -> bool:
    kept = np.flatnonzero(pair >= 0)
    image = pair[kept]
    inside = (kept < (kept + a.size[kept])[:, None]) == (image < (image + b.size[image])[:, None])
    return bool((np.diff(image) > 0).all() and inside.all())


@pytest.mark.parametrize("mirrored", [0, 1])
@pytest.mark.parametrize("paper", [False, True])
@quick
@given(a=trees(), b=trees())
def test_full_and_banded_searches_are_exact(mirrored: int, paper: bool, a: CallTree, b: CallTree) -> None:
    one, two = sides(a, b)
    wanted = apted_cost(a, b, 1 if paper else 2)
    assume(wanted > 0)  # equal trees are settled before any search
    view = exact.both_views(one, two)[mirrored]
    pair = exact.plan_full(view, paper).run(paper, silent)
    assert exact.cost_of(one, two, pair) == wanted
    assert valid(one, two, pair)

    roots = np.full(len(one), -1, np.int32)
    roots[0] = 0
    best = Best(exact.cost_of(one, two, roots), (len(one) + len(two)) % 2 if not paper else 0, roots)
    exact.banded((view,), best, most=1e12, paper=paper, progress=silent)
    assert best.lower == best.cost == wanted == exact.cost_of(one, two, best.pair)
    assert valid(one, two, best.pair)


@pytest.mark.parametrize("paper", [False, True])
@quick
@given(a=trees(), b=trees())
def test_bounds_hold(paper: bool, a: CallTree, b: CallTree) -> None:
    one, two = sides(a, b)
    wanted = apted_cost(a, b, 1 if paper else 2)
    assert label_bound(one.label, two.label, paper=paper) <= wanted
    pair = bound.top_down(one, two, work=1e6)
    marked, distance = bound.by_parentheses(one, two, limit=60, work=1e6)
    for mapping in (pair, marked):
        assert valid(one, two, mapping)
        assert exact.cost_of(one, two, mapping) >= wanted
    if not paper:
        assert -(-distance // 2) <= wanted
    best = Best(exact.cost_of(one, two, pair), 0, pair)
    exact.refine(exact.both_views(one, two), best, radii=(0, 2), most=1e9, paper=paper, progress=silent)
    assert wanted <= best.cost <= exact.cost_of(one, two, pair)
    assert valid(one, two, best.pair)


@pytest.mark.parametrize("paper", [False, True])
@quick
@given(a=trees(), b=trees())
def test_reductions_keep_the_optimum(paper: bool, a: CallTree, b: CallTree) -> None:
    one, two = sides(a, b)
    match = np.full(len(one), -1, np.int32)
    small, other = reduce.reduced(one, two, match, paper=paper)
    settled = np.flatnonzero(match >= 0)
    view = exact.both_views(small, other)[0]
    rest = (
        0
        if len(small) == len(other) == 1
        else exact.cost_of(small, other, exact.plan_full(view, paper).run(paper, silent))
    )
    gone = len(one) - len(small) + len(two) - len(other) - 2 * len(settled)
    renames = int(np.count_nonzero(one.label[settled] != two.label[match[settled]]))
    assert rest + gone + renames == apted_cost(a, b, 1 if paper else 2)


@quick
@given(a=trees(), b=trees())
def test_equal_kinds_are_equal_subtrees(a: CallTree, b: CallTree) -> None:
    one, two = sides(a, b)
    kind = reduce.classes(np.concatenate((one.label, two.label)), np.concatenate((one.size, two.size)))
    shapes = [
        (tuple(s.label[x : x + s.size[x]]), tuple(s.size[x : x + s.size[x]])) for s in (one, two) for x in range(len(s))
    ]
    for x, shape in enumerate(shapes):
        assert [kind[x] == k for k in kind] == [shape == other for other in shapes]


@pytest.mark.parametrize("paper", [False, True])
@quick
@given(a=texts, b=texts)
def test_string_distance_and_its_windows(paper: bool, a: list[int], b: list[int]) -> None:
    rename = 1 if paper else 2
    one, two = np.asarray(a, np.int32), np.asarray(b, np.int32)
    wanted = string_distance(a, b, rename)
    nothing = np.empty((0, 0), np.int32)
    assert kernel.reach(one, two, 30, 1000, paper, nothing) == (wanted, True)
    if wanted:
        assert kernel.reach(one, two, wanted - 1, 1000, paper, nothing) == (wanted, False)
    low, high = exact.string_windows(one, two, wanted + 1, paper)
    for i in range(len(a) + 1):
        through = [
            string_distance(a[:i], b[:j], rename) + string_distance(a[i:], b[j:], rename) for j in range(len(b) + 1)
        ]
        near = [j for j, cost in enumerate(through) if cost <= wanted + 1]
        assert (low[i], high[i]) == ((near[0], near[-1]) if near else (len(b) + 1, -1))


@quick
@given(a=texts, b=texts)
def test_string_alignment_is_a_longest_common_subsequence(a: list[int], b: list[int]) -> None:
    pair, distance, found = bound.common(np.asarray(a, np.int32), np.asarray(b, np.int32), 30, 1000)
    kept = np.flatnonzero(pair >= 0)
    assert found
    assert (np.diff(pair[kept]) > 0).all()
    assert [a[i] for i in kept] == [b[j] for j in pair[kept]]
    assert len(a) + len(b) - 2 * len(kept) == distance == string_distance(a, b, 2)


def test_a_string_bound_out_of_time_is_still_a_bound() -> None:
    rng = np.random.default_rng(1)
    one, two = (rng.integers(0, 4, 3000).astype(np.int32) for _ in range(2))
    nothing = np.empty((0, 0), np.int32)
    exact_, _ = kernel.reach(one, two, 6000, 1 << 40, False, nothing)
    short, found = kernel.reach(one, two, 6000, 20_000, False, nothing)
    assert not found
    assert 0 < short < exact_


def test_code_compiles_where_no_cache_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])

    def following(x: int) -> int:
        return x + 1

    assert compiled(following)(1) == 2
