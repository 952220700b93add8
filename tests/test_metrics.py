"""The metrics on hand-computed cases, and the laws that tie them together."""

from __future__ import annotations

import metrics
import pytest
from hypothesis import given
from hypothesis import strategies as st

TRUE = ("a.py::Outer", "b.py::f")
RANKING = ("a.py::Outer2", "a.py::Outer.inner", "c.py::f", "b.py::f")


def test_a_function_inside_a_true_one_is_right_and_a_longer_name_is_not():
    assert metrics.is_right("a.py::Outer.inner", TRUE)
    assert metrics.is_right("a.py::Outer", TRUE)
    assert not metrics.is_right("a.py::Outer2", TRUE)
    assert not metrics.is_right("b.py::Outer", TRUE)
    assert not metrics.is_right("a.py::Outer", ["a.py::Outer.inner"])


def test_places_of_a_ranking():
    assert metrics.first_right(RANKING, TRUE) == 2
    assert metrics.first_right(("x.py::f",), TRUE) is None
    assert metrics.reciprocal_rank(RANKING, TRUE) == 0.5
    assert metrics.reciprocal_rank((), TRUE) == 0
    assert not metrics.any_at(1, RANKING, TRUE)
    assert metrics.any_at(2, RANKING, TRUE)
    assert not metrics.all_at(3, RANKING, TRUE)
    assert metrics.all_at(4, RANKING, TRUE)
    assert not metrics.all_at(4, RANKING, ())


def test_precision_recall_f1_of_one_instance():
    assert metrics.precision(RANKING, TRUE) == 2 / 4
    assert metrics.recall(RANKING, TRUE) == 1
    assert metrics.f1(RANKING, TRUE) == pytest.approx(2 / 3)
    assert metrics.precision((), TRUE) == metrics.recall((), TRUE) == metrics.f1((), TRUE) == 0
    # Two predictions inside one true function hit it once.
    assert metrics.recall(("a.py::Outer.x", "a.py::Outer.y"), TRUE) == 0.5


INSTANCES = [
    (RANKING, TRUE),
    (("b.py::f",), TRUE),
    ((), TRUE),  # no prediction
    (("z.py::f",), ()),  # nothing to find
]


@pytest.mark.parametrize(
    ("convention", "counted", "means"),
    [
        ("paper", (3, 1), (1.5 / 3, 1.5 / 3, (2 / 3 + 2 / 3) / 3, 1 / 3)),
        ("locagent", (3, 1), (1.5 / 3, 1.5 / 3, (2 / 3 + 2 / 3) / 3, 1 / 3)),
        ("orcaloca", (4, 0), (1.5 / 4, 1.5 / 4, (2 / 3 + 2 / 3) / 4, 1 / 4)),
    ],
)
def test_conventions_differ_in_what_they_leave_out(convention, counted, means):
    scores = metrics.score(INSTANCES, convention=convention)
    assert (scores.n, scores.excluded) == counted
    assert (scores.precision, scores.recall, scores.f1, scores.accuracy) == pytest.approx(means)


def test_nothing_to_score_gives_zeros_and_an_unknown_convention_is_refused():
    assert metrics.score([]).n == 0
    assert metrics.score([(("a.py::f",), ())]).excluded == 1
    with pytest.raises(ValueError, match="orcaloca"):
        metrics.score([], convention="ours")  # type: ignore[arg-type]


NAMES = st.lists(st.sampled_from(["a.py::f", "a.py::f.g", "a.py::C.m", "b.py::f", "b.py::C"]), unique=True)


@given(NAMES, NAMES)
def test_the_metrics_agree_with_one_another(ranking, true):
    k = len(ranking)
    assert metrics.any_at(k, ranking, true) == (metrics.reciprocal_rank(ranking, true) > 0)
    assert metrics.any_at(k, ranking, true) or not metrics.all_at(k, ranking, true)
    low, high = sorted((metrics.precision(ranking, true), metrics.recall(ranking, true)))
    assert low - 1e-9 <= metrics.f1(ranking, true) <= high + 1e-9
    for shorter in range(k):
        assert metrics.any_at(shorter, ranking, true) <= metrics.any_at(shorter + 1, ranking, true)
        assert metrics.all_at(shorter, ranking, true) <= metrics.all_at(shorter + 1, ranking, true)


@given(NAMES)
def test_a_perfect_prediction_scores_one(true):
    assert metrics.f1(true, true) == (1.0 if true else 0.0)
