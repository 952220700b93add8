"""What a session keeps of the tree differences and of the calls seen closely, and that all works without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from small import located
from trees import NESTED, compared
from xlocal.ranking.diff import diff
from xlocal.ranking.source import SourceIndex
from xlocal.tracer.calltree import CallTree, Function

from xlocal import diff_view
from xlocal.cli import cli
from xlocal.kept import CALLS, FOLDER, Keeper, Numbers, SeenCalls, kept_difference, lines_title
from xlocal.session import Session

MODULE = """
    def top(turns):
        for turn in range(turns):
            step(turn)
        return turns

    def step(turn):
        return turn if turn < 500 else 1 / 0
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    located(folder, MODULE, "import lib; lib.top(501)", ["import lib; lib.top(400)", "import lib; lib.top(3)"])
    return folder / "session"


def run(*arguments: str):
    return CliRunner().invoke(cli, list(arguments), prog_name="xlocal")


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NESTED, NESTED)
def test_a_kept_difference_comes_back_as_it_was(tmp_path_factory, bad, good):
    folder = tmp_path_factory.mktemp("k")
    former = compared(bad, good).difference
    Keeper(folder, 60.0).difference("reference-1", former)
    again = kept_difference(folder, "reference-1", former.buggy, former.reference, budget=60.0)
    assert again is not None
    assert (again.cost, again.lower, again.exact) == (former.cost, former.lower, former.exact)
    for column in ("match", "back", "moved"):
        np.testing.assert_array_equal(getattr(again, column), getattr(former, column))


def test_it_holds_for_the_same_trees_alone(tmp_path):
    former = compared([["f", ["g"]]], [["f"]]).difference
    Keeper(tmp_path, 60.0).difference("reference-1", former)
    other = CallTree.from_nested([["f", ["h"]]])
    assert kept_difference(tmp_path, "reference-1", other, former.reference, budget=1) is None
    assert kept_difference(tmp_path, "reference-2", former.buggy, former.reference, budget=1) is None


def test_a_bound_gives_way_to_a_larger_budget(tmp_path):
    nested = [[f"f{n % 7}", [f"g{n % 5}", [f"h{n % 3}"]]] for n in range(400)]
    other = [[f"f{n % 5}", [f"g{n % 3}", [f"h{n % 4}"]]] for n in range(400)]
    trees = CallTree.from_nested(nested), CallTree.from_nested(other)
    bound = diff(*trees, budget=0)
    assert not bound.exact
    Keeper(tmp_path, 5.0).difference("reference-1", bound)
    assert kept_difference(tmp_path, "reference-1", *trees, budget=5.0) is not None
    assert kept_difference(tmp_path, "reference-1", *trees, budget=6.0) is None
    assert kept_difference(tmp_path, "reference-1", *trees) is not None


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: b"odd" * 99])
def test_a_damaged_file_is_as_none(tmp_path, damage):
    former = compared([["f", ["g"]]], [["f"]]).difference
    Keeper(tmp_path, 60.0).difference("reference-1", former)
    file = tmp_path / FOLDER / "reference-1.npz"
    file.write_bytes(damage(file.read_bytes()))
    assert kept_difference(tmp_path, "reference-1", former.buggy, former.reference, budget=1) is None


def test_diff_and_report_compare_nothing_anew(session, monkeypatch):
    def never(*_args, **_options):
        raise AssertionError("compared anew")

    monkeypatch.setattr(diff_view, "diff", never)
    assert run("diff", "--session", str(session), "--reference", "2").exit_code == 0
    assert run("report", "-o", "-", "--session", str(session)).exit_code == 0


def test_a_larger_budget_of_the_command_betters_a_bound(tmp_path):
    turns = "import random, lib\nrandom.seed({})\nfor _ in range(400): lib.f(random.randrange(3))\n"
    module = "def f(n):\n    return (g, h, k)[n](n)\n" + "".join(f"def {name}(n):\n    return n\n" for name in "ghk")
    located(tmp_path, module, turns.format(1), turns.format(2), budget=1e-9, repeat=1, values=False)
    session = ("--session", str(tmp_path / "session"))
    found = [run("diff", "--json", *session, *more).stdout for more in ((), ("--budget", "60"))]
    assert [json.loads(text)["distance"]["exact"] for text in found] == [False, True]
    for more, told in (((), True), (("--budget", "60"), False)):
        assert ("The difference is a bound" in run("report", "-o", "-", *session, *more).stdout) is told


def test_sessions_without_it_show_the_same(session, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(session, old, ignore=shutil.ignore_patterns(FOLDER))
    for number in ("1", "2"):
        with_it, without = (run("diff", "--session", str(each), "--reference", number) for each in (session, old))
        assert with_it.stdout == without.stdout
        assert "only in the buggy run" in without.stdout


def test_changed_names_are_compared_anew(session, tmp_path, monkeypatch):
    shutil.copytree(session, tmp_path / "s")
    file = Path(json.loads((session / "session.json").read_text())["cwd"]) / "lib.py"
    text = file.read_text()
    try:
        file.write_text(text.replace("def step", "\ndef step"))
        result = run("diff", "--session", str(tmp_path / "s"))
    finally:
        file.write_text(text)
    assert result.exit_code == 0, result.output


def test_the_calls_that_were_seen_are_counted(session):
    numbers = Numbers(session, SourceIndex(Session.load(session).scope))
    step, top = Function("lib.py", "step"), Function("lib.py", "top")
    assert numbers.of(top, "reference-1") == SeenCalls((1, 1), (1, 1))
    found = numbers.of(step, "reference-1")
    assert found is not None
    assert found.calls == (501, 400)
    assert 0 < found.seen[0] < 501
    told = f"{found.seen[0]} of 501 in the buggy run, {found.seen[1]} of 400 in reference-1"
    assert lines_title(found, "reference-1") == f"How often each line ran in the calls that were seen: {told}"
    assert lines_title(SeenCalls((2, 1), (2, 1)), "reference-2").endswith(
        ": all 2 in the buggy run, all 1 in reference-2"
    )
    assert lines_title(None, "reference-1") == "How often each line ran in the calls that were seen"
    assert numbers.of(Function("lib.py", "nothing"), "reference-1") is None


@pytest.mark.parametrize("text", ["", "[]", '{"version": 99}', "{"])
def test_numbers_that_cannot_be_read_are_unknown(session, tmp_path, text):
    shutil.copytree(session, tmp_path / "s")
    (tmp_path / "s" / FOLDER / CALLS).write_text(text)
    numbers = Numbers(tmp_path / "s", SourceIndex(Session.load(session).scope))
    assert numbers.of(Function("lib.py", "step"), "reference-1") is None


def test_explain_and_the_page_say_alike_of_which_calls_the_lines_are(session):
    numbers = Numbers(session, SourceIndex(Session.load(session).scope))
    told = lines_title(numbers.of(Function("lib.py", "step"), "reference-1"), "reference-1")
    assert " of 501 in the buggy run" in told
    assert told in " ".join(run("explain", "step", "--session", str(session)).stdout.split())
    assert told in run("report", "-o", "-", "--session", str(session)).stdout
