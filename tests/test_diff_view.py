"""The tree of only the differences: whole, in order, within its bounds, and readable in any terminal."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from rich.console import Console
from small import located
from trees import NESTED, compared, raising
from xlocal.tracer.calltree import CallTree, Function

from xlocal.aligned import GONE, NEW, SAME, align
from xlocal.cli import cli
from xlocal.diff_view import print_diff, sign
from xlocal.outline import ALIKE, CALL, CUT, PATH, REPEAT, outline


def lines_of(bad, good, *, most: int = 400, width: int | None = None, **options) -> list[str]:
    """The printed tree without its heading, which a blank line ends; on a terminal of `width` columns, else as in a pipe."""
    file = io.StringIO()
    terminal = {} if width is None else {"force_terminal": True, "width": width, "color_system": None}
    print_diff(compared(bad, good, **options), Console(file=file, highlight=False, **terminal), most=most)
    return [line.rstrip() for line in file.getvalue().partition("\n\n")[2].splitlines()]


# --- rows ---------------------------------------------------------------------------------------------------------------


@settings(deadline=None)  # the first example may have to compile
@given(NESTED, NESTED)
def test_rows_hold_every_call_once_in_the_order_of_both_runs(bad, good):
    difference = compared(bad, good).difference
    rows = align(difference)
    assert rows.left[rows.left >= 0].tolist() == list(range(len(difference.buggy)))
    assert rows.right[rows.right >= 0].tolist() == list(range(len(difference.reference)))
    for left, right, kind in zip(rows.left.tolist(), rows.right.tolist(), rows.kind.tolist(), strict=True):
        assert (left >= 0 and difference.match[left] == right) or left < 0
        assert (kind == SAME) == (left >= 0 and right >= 0)
    assert int(rows.differs.sum()) == difference.cost


@settings(deadline=None)  # the first example may have to compile
@given(NESTED, NESTED)
def test_rows_form_a_tree_in_which_each_run_keeps_its_own(bad, good):
    difference = compared(bad, good).difference
    rows = align(difference)
    end = np.arange(len(rows)) + rows.size
    assert end[0] == len(rows)
    opened: list[int] = []
    for row in range(len(rows)):
        while opened and end[opened[-1]] <= row:
            opened.pop()
        assert all(end[row] <= end[outer] for outer in opened[-1:])
        opened.append(row)
    for tree, nodes in ((difference.buggy, rows.left), (difference.reference, rows.right)):
        row_of = np.flatnonzero(nodes >= 0)
        for node in range(1, len(tree)):
            above = row_of[tree.parent[node]]
            assert above < row_of[node] < end[above]


@settings(deadline=None)  # the first example may have to compile
@given(NESTED, NESTED)
def test_an_outline_counts_every_difference(bad, good):
    each = compared(bad, good)
    rows = align(each.difference)
    for alike in (False, True):
        shown = outline(rows, most=10_000, alike=alike)
        assert shown.hidden == 0
        top = [line for line in shown.lines if line.depth == 1]
        assert sum(line.edits for line in top) == each.difference.cost
        if alike:
            assert shown.whole


@settings(deadline=None)  # the first example may have to compile
@given(NESTED, NESTED)
def test_an_outline_keeps_to_its_size_and_says_what_is_missing(bad, good):
    rows = align(compared(bad, good).difference)
    shown = outline(rows, most=3)
    assert len(shown.lines) <= 4
    assert shown.hidden <= int(rows.differs.sum())
    assert (shown.hidden > 0) <= any(line.what == CUT for line in shown.lines)


def test_crossing_calls_are_shown_inside_the_outer_one():
    rows = align(compared([["a", ["x", ["b"], ["c"]]]], [["a", ["b"], ["y", ["c"], ["d"]]]]).difference)
    assert len(rows) == len(set(zip(rows.left.tolist(), rows.right.tolist(), strict=True)))
    assert sorted(rows.kind.tolist()).count(GONE) >= 1
    assert NEW in rows.kind.tolist()


def test_a_recursion_of_many_thousand_calls_is_no_trouble():
    def deep(*leaf: str) -> CallTree:
        count = 60_000
        label = [-1, *([0] * count), *range(1, len(leaf) + 1)]
        parent = [-1, *range(count), *([count] * len(leaf))]
        functions = (Function("m.py", "f"), *(Function("m.py", name) for name in leaf))
        return CallTree.from_columns(functions=functions, exceptions=(), label=label, parent=parent)

    lines = lines_of(deep("g", "h"), deep("g"))
    assert sum(line.startswith("-") for line in lines) == 1
    assert any("59,992 calls deeper" in line for line in lines)
    assert len(lines) < 15


# --- printing -----------------------------------------------------------------------------------------------------------


def test_only_the_differences_are_listed():
    bad = [["main", ["read"], ["parse", ["odd", ["inner"]]], ["write"]]]
    good = [["main", ["read"], ["parse", ["even"]], ["write"]]]
    assert lines_of(bad, good) == [
        "  main  m.py",
        "    ... 1 call alike: read",
        "    parse  m.py",
        "-     odd  m.py",
        "-       inner  m.py",
        "+     even  m.py",
        "    ... 1 call alike: write",
    ]


def test_repeats_are_listed_once():
    bad = [["main", *[["f", ["x"]]] * 50, *[["g"], ["h", ["x"]]] * 7]]
    good = [["main", *[["f"]] * 50, *[["g"], ["h"]] * 7]]
    lines = lines_of(bad, good)
    assert lines[1:3] == ["    f x50  m.py", "-     x  m.py"]
    assert "    ... 7 times:" in lines
    assert sum(line.startswith("-") for line in lines) == 2


def test_another_ending_of_the_same_call_is_a_difference():
    nested = [["main", ["f", ["g"]]]]
    lines = lines_of(raising(nested, "f"), CallTree.from_nested(nested))
    assert lines[1] == "~   f  raised Odd, returned in the reference run  m.py"


def test_noise_is_marked():
    assert any("noise" in line for line in lines_of([["main", ["f"]]], [["main"]], noisy=["f"]))


def test_what_does_not_fit_is_counted():
    lines = lines_of([["main", *[[f"f{n}"] for n in range(500)]]], [["main"]], most=20)
    assert len(lines) <= 24
    assert any("differences among them" in line for line in lines)
    assert "differences left out; --lines 80 shows more" in lines[-1]


@pytest.mark.parametrize("width", [20, 32, 60, 120])
def test_lines_keep_to_the_terminal(width):
    nested: list = ["f" * 30]
    for _ in range(60):
        nested = ["f" * 30, [f"g{len(nested)}"], nested]
    lines = lines_of([nested], [["f" * 30]], width=width)
    assert lines
    assert all(len(line) <= width for line in lines)
    assert all(line[2:].strip() for line in lines if line.startswith("-"))


def test_colours_obey_no_color(monkeypatch):
    def printed() -> str:
        file = io.StringIO()
        print_diff(
            compared([["f"]], [["g"]]), Console(file=file, force_terminal=True, color_system="standard", width=80)
        )
        return file.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31m" in printed()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in printed()


def test_names_cannot_steer_the_terminal():
    [line] = lines_of([["f\x1b[2Jg\nh"]], [])
    assert "\x1b" not in line
    assert "f [2Jg h" in line


def test_signs_and_kinds_of_lines_are_all_told():
    assert [sign(kind) for kind in range(6)] == [" ", "-", "+", "-", "+", "~"]
    assert len({CALL, REPEAT, ALIKE, PATH, CUT}) == 5


# --- the command --------------------------------------------------------------------------------------------------------

MODULE = """
    def top(odd):
        first()
        if odd:
            second()

    def first(): pass
    def second(): pass
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diff")
    located(folder, MODULE, "import lib; lib.top(True)", ["import lib; lib.top(False)", "import lib; lib.top(True)"],
            repeat=1)  # fmt: skip
    return folder / "session"


def run(*arguments: str):
    return CliRunner().invoke(cli, list(arguments), prog_name="xlocal")


def test_diff_prints_the_tree(session):
    result = run("diff", "--session", str(session))
    assert result.exit_code == 0, result.output
    assert "1 call only in the buggy run, 0 only in the reference" in result.stdout
    assert "-   second  lib.py" in result.stdout
    assert result.stderr == ""


def test_diff_of_equal_trees_ends_with_1(session):
    result = run("diff", "--session", str(session), "--reference", "2")
    assert (result.exit_code, result.stdout) == (1, "The call trees of buggy and reference-2 are equal.\n")


def test_diff_for_programs(session):
    document = json.loads(run("diff", "--session", str(session), "--json").stdout)
    assert document["schema"] == 1
    assert document["distance"] == {"cost": 1, "lower": 1, "exact": True}
    [gone] = [line for line in document["lines"] if line.get("sign") == "-"]
    assert gone["function"] == {"path": "lib.py", "qualname": "second"}
    assert (gone["depth"], gone["calls"]) == (2, {"buggy": 1, "reference": 0})


@pytest.mark.parametrize(("options", "code"), [(("--reference", "3"), 2), (("--lines", "0"), 2)])
def test_diff_refuses_what_means_nothing(session, options, code):
    result = run("diff", "--session", str(session), *options)
    assert (result.exit_code, result.stdout) == (code, "")


def test_diff_without_recordings_says_so(session, tmp_path):
    shutil.copytree(session, tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "recordings")
    result = run("diff", "--session", str(tmp_path / "s"))
    assert result.exit_code == 4
    assert len(result.stderr.splitlines()) == 1


def cut(content: bytes) -> bytes:
    return content[:420]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(byte ^ 0xFF for byte in content[middle : middle + 40]) + content[middle + 40 :]


@pytest.mark.parametrize("damage", [cut, flipped])
def test_damaged_recordings_are_refused(session, tmp_path, damage):
    folder = tmp_path / "s"
    shutil.copytree(session, folder)
    for file in folder.glob("recordings/*/*/*.xtrace"):
        file.write_bytes(damage(file.read_bytes()))
    for command in (("diff",), ("report", "--format", "perfetto")):
        result = run(*command, "--session", str(folder))
        assert (result.exit_code, result.stdout) == (4, "")
        file = folder / "recordings" / "buggy" / "0" / "main.xtrace"
        assert result.stderr == f"xlocal: {file}: is damaged; record again with xlocal trace\n"
    page = run("report", "-o", "-", "--session", str(folder))
    assert f"{file}: is damaged" in page.stdout


def test_doubts_about_the_traces_are_told(tmp_path):
    located(tmp_path, MODULE, "import lib, os; lib.top(True); os._exit(1)", "import lib; lib.top(False)", repeat=1)
    folder = str(tmp_path / "session")
    result = run("diff", "--session", folder)
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: trace-cut-short: buggy: ")
    [warned] = json.loads(run("diff", "--json", "--session", folder).stdout)["warnings"]
    assert warned["slug"] == "trace-cut-short"
    assert "trace-cut-short" in run("report", "-o", "-", "--session", folder).stdout


def test_quiet_leaves_the_result_alone(session):
    loud, quiet = (run("rank", "--session", str(session), *options) for options in ((), ("--quiet",)))
    assert loud.stdout == quiet.stdout
    project = session.parent / "project"
    scripts = [str(project / "bad.py"), str(project / "good0.py")]
    traced = [
        run("trace", *scripts, "--repeat", "1", "--scope", str(project / "lib.py"), "--session", str(session.parent / "q"),
            *options).stdout
        for options in ((), ("-q",))
    ]  # fmt: skip
    assert "Next" in traced[0]
    assert "Next" not in traced[1]
    assert "second" in traced[1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell):
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_XLOCAL_COMPLETE" in result.stdout
    program = shutil.which(shell)
    if program:
        subprocess.run([program, "-n"], input=result.stdout, text=True, check=True)


def test_completion_knows_the_commands():
    words = {"_XLOCAL_COMPLETE": "bash_complete", "COMP_WORDS": "xlocal re", "COMP_CWORD": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "xlocal"], env={**os.environ, **words}, capture_output=True, text=True, check=True
    )
    assert "plain,report" in result.stdout.split()
