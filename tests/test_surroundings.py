"""What the calls alone tell of a function: callers, callees and endings, counted as a plain walk counts them."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from small import located
from trees import NESTED, observed, raising
from xlocal.tracer.calltree import CallTree, Function

from xlocal.cli import cli
from xlocal.surroundings import Calls, Surroundings


@settings(deadline=None)
@given(NESTED)
def test_callers_and_callees_are_those_of_the_tree(nested):
    tree = CallTree.from_nested(nested)
    calls = Calls(observed(tree, "buggy"))
    names = [None if label < 0 else tree.functions[label] for label in tree.label.tolist()]
    edges = Counter((names[tree.parent[node]], names[node]) for node in range(1, len(tree)))
    for function, count in tree.counts().items():
        found = calls.of(function)
        assert found is not None
        assert found.calls == count
        assert dict(found.callers) == {one: times for (one, other), times in edges.items() if other == function}
        assert dict(found.callees) == {other: times for (one, other), times in edges.items() if one == function}
    assert calls.of(Function("m.py", "never")) is None


def test_endings_are_counted():
    nested = [["f", ["g"]], ["g"]]
    assert list(Calls(observed(CallTree.from_nested(nested), "reference-2")).of(Function("m.py", "g")).sentences()) == [
        "Twice called in reference-2, by the script itself (1), f (1).",
        "Every call returned.",
    ]
    left = Calls(observed(raising(nested, "g"), "buggy"))
    assert list(left.of(Function("m.py", "g")).sentences())[-1] == "All 2 calls were left by Odd."
    assert list(left.of(Function("m.py", "f")).sentences())[-1] == "Every call returned."
    some = Surroundings("buggy", 7, ((None, 7),), (), (("pkg.Odd", 4), ("ValueError", 1)))
    assert list(some.sentences()) == [
        "7 times called in the buggy run, by the script itself.",
        "Of its 7 calls exceptions left 4 by Odd, 1 by ValueError.",
    ]


def test_many_callers_are_cut():
    tree = CallTree.from_nested([[f"f{number}", ["g"]] for number in range(8)])
    first = next(Calls(observed(tree, "buggy")).of(Function("m.py", "g")).sentences())
    assert first.endswith("f3 (1), f4 (1) and 3 more.")


MODULE = """
    def top(odd):
        return second(odd) if odd else 0

    def second(odd):
        if odd > 1:
            raise KeyError(odd)
        return 1
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("around")
    located(folder, MODULE, "import lib; lib.top(1); lib.top(2)", "import lib; lib.top(0)")
    return folder / "session"


def explained(session, name: str, *, width: int = 120) -> str:
    result = CliRunner().invoke(cli, ["explain", name, "--session", str(session)], env={"COLUMNS": str(width)})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_explain_tells_the_calls_of_a_function_of_one_run(session):
    text = explained(session, "second")
    assert "Lines and values are seen only of functions that both runs call, and only the buggy run calls it." in text
    assert "Twice called in the buggy run, by top." in text
    assert "Of its 2 calls exceptions left 1 by KeyError." in text
    assert "raise KeyError(odd)" in text


def test_explain_goes_on_without_recordings(session, tmp_path):
    shutil.copytree(session, tmp_path / "s", ignore=shutil.ignore_patterns("recordings"))
    text = " ".join(explained(tmp_path / "s", "second").split())
    assert "Its calls cannot be read: " in text
    assert "raise KeyError(odd)" in text


@pytest.mark.parametrize("width", [40, 60])
@pytest.mark.parametrize("name", ["top", "second"])
def test_explain_keeps_to_the_width_and_to_whole_words(session, name, width):
    narrow, wide = explained(session, name, width=width), explained(session, name, width=400)
    assert max(map(len, narrow.splitlines())) <= width
    assert set(narrow.split()) <= set(wide.split())
