"""Existing tests chosen by what they execute, on real git repositories with real pytest runs."""

from __future__ import annotations

import dataclasses
import sys

import pytest

pytest.importorskip("pydantic_ai", reason="needs the extra agents")

from agents import RIGHT, SUBMIT, TEST, Shop, copy_of, locked_in, make_repository, needs_sandbox
from xlocal.swe_pipeline import covering
from xlocal.swe_pipeline.covering import by_executed, choose_by_coverage
from xlocal.swe_pipeline.existing import ExistingTests
from xlocal.swe_pipeline.regression import choose_tests, importing
from xlocal.tracer.calltree import Function

CODE = """
import functools


def outer(value):
    return inner(value)


def logged(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)
    return wrapper


@logged
def inner(value):
    return value + 1


def few(value):
    return value


def broken(value):
    raise ValueError(value)
"""
FILES = {
    "pkg/__init__.py": "",
    "pkg/parts.py": CODE,
    # Named after the module and full of its names, but runs none of them.
    "tests/test_parts.py": "from pkg.parts import inner, outer\n\n\ndef test_names():\n    assert outer.__name__ == 'outer'\n    assert callable(inner)\n",
    "tests/test_deep.py": "from pkg import parts\n\n\ndef test_outer():\n    assert parts.outer(1) == 2\n",
    "tests/test_flat.py": "import pkg.parts\n\n\ndef test_inner():\n    assert pkg.parts.inner(1) == 2\n",
    "tests/test_away.py": "import pkg.parts\n\n\ndef test_few():\n    assert pkg.parts.few(1) == 1\n",
    "tests/test_fails.py": "from pkg.parts import outer\n\n\ndef test_outer():\n    assert outer(1) == 3\n",
    "tests/test_alone.py": "def test_nothing():\n    assert True\n",
}
OUTER, INNER = Function("pkg/parts.py", "outer"), Function("pkg/parts.py", "inner")


@pytest.fixture
def box(tmp_path):
    """A confined copy of the repository."""
    return locked_in(copy_of(make_repository(tmp_path / "pkg", FILES), tmp_path / "work"))


@needs_sandbox
def test_files_that_execute_the_first_suspects_come_first_whatever_their_names(box):
    assert choose_tests(box, [OUTER, INNER])[0] == "tests/test_parts.py"
    choice = choose_by_coverage(box, [OUTER, INNER], limit=3)
    # Passing tests alone show what works; the file named after the module fills the rest.
    assert choice.files == ("tests/test_deep.py", "tests/test_flat.py", "tests/test_parts.py")
    assert choice.how == "by what they execute: 2 of 2 suspects; 5 files were run"
    assert choose_by_coverage(box, [INNER], limit=1).files == ("tests/test_flat.py",)


@needs_sandbox
def test_imports_bring_up_candidates_that_names_do_not(box):
    assert importing(box, [INNER]) == (
        "tests/test_away.py",
        "tests/test_fails.py",
        "tests/test_flat.py",
        "tests/test_parts.py",
    )
    # A name of three letters is looked for nowhere: the import alone brings this one up.
    few = Function("pkg/parts.py", "few")
    assert choose_by_coverage(box, [few], limit=1).files == ("tests/test_away.py",)


@needs_sandbox
@pytest.mark.slow
def test_a_file_that_takes_too_long_is_left_out(tmp_path, monkeypatch):
    slow = (
        "import time\nfrom pkg.parts import outer\n\n\ndef test_slow():\n    time.sleep(60)\n    assert outer(1) == 2\n"
    )
    place = make_repository(tmp_path / "pkg", {**FILES, "tests/test_parts.py": slow})
    monkeypatch.setattr(covering, "_FILE_SECONDS", 5.0)
    choice = choose_by_coverage(locked_in(copy_of(place, tmp_path / "work")), [OUTER], limit=9)
    assert "tests/test_parts.py" not in choice.files
    assert choice.files[0] == "tests/test_deep.py"


@needs_sandbox
def test_names_decide_where_nothing_can_be_recorded_and_it_is_said(box, monkeypatch):
    named = choose_tests(box, [OUTER, INNER], limit=2)
    spent = choose_by_coverage(box, [OUTER, INNER], limit=2, seconds=0.0)
    assert (spent.files, spent.how) == (named, "by names: there was no time to run any")
    monkeypatch.setattr(covering, "_PROGRAM", "raise SystemExit(\"No module named 'pytest'\")")
    without = choose_by_coverage(box, [OUTER, INNER], limit=2)
    assert without.files == named
    assert without.how.startswith("by names: pytest did not run tests/test_")
    assert without.how.endswith("(No module named 'pytest')")
    box.inner.issue = dataclasses.replace(box.issue, setup={"test": ["python", "run_them.py"]})
    own = choose_by_coverage(box, [OUTER, INNER], limit=2)
    assert (own.files, own.how) == (named, "by names: the project's tests have a runner of their own")


@needs_sandbox
@pytest.mark.slow
def test_a_hook_that_is_held_is_told(tmp_path):
    if sys.version_info >= (3, 12):
        pytest.skip("sys.monitoring has several tools at once")
    held = "import sys\nsys.setprofile(lambda *_: None)\n"
    box = locked_in(copy_of(make_repository(tmp_path / "pkg", {**FILES, "conftest.py": held}), tmp_path / "work"))
    choice = choose_by_coverage(box, [OUTER], limit=1)
    assert "the hook for recording is held by" in choice.how


def test_a_rare_suspect_weighs_more_and_a_late_one_less():
    first, second, third = (Function("a.py", name) for name in "fgh")
    seen = {"common": frozenset([first]), "both": frozenset([first, second]), "late": frozenset([third])}
    assert by_executed(seen, [first, second, third]) == ["both", "common", "late"]
    assert by_executed(seen, [third, first, second])[0] == "late"
    assert by_executed({"none": frozenset()}, [first]) == []


@needs_sandbox
def test_what_tests_leave_behind_is_not_in_the_patch(tmp_path):
    writes = TEST + "    from pathlib import Path\n\n    Path('shop/left.dat').write_text('x')\n"
    shop = Shop(tmp_path)
    (shop.repository / "tests" / "test_core.py").write_text(writes)
    shop.copy = copy_of(shop.repository, tmp_path / "fresh")
    solution = shop.solve(shop.model(repair=[RIGHT, SUBMIT]), regression=ExistingTests(), variant="localizer")
    assert solution.green
    assert solution.patch.results.summary() == "reproduction 1/1, reference 1/1, regression 1/1"
    assert (solution.existing, solution.diff.count("diff --git")) == (("tests/test_core.py",), 1)
    assert solution.chosen_how.startswith("by what they execute: 2 of 2 suspects")
    assert "left.dat" not in solution.diff
    assert solution.as_json()["existing"]["files"] == ["tests/test_core.py"]
