"""The demonstration and the examples: what each script does, how the environment is made, and what is explained."""

from __future__ import annotations

import importlib.resources
import os
import subprocess
import sys
from pathlib import Path

import pytest
from xlocal.ranking.comparison import Comparison, Localization, RunSummary
from xlocal.ranking.evidence import Evidence, RankedSuspect, Suspect
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import XlocalError

from xlocal import demo

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def nothing(_message: str) -> None:
    """No progress is shown."""


# --- the examples -------------------------------------------------------------------------------------------------------


def test_the_installed_examples_are_those_of_the_checkout():
    installed = Path(str(importlib.resources.files("xlocal.examples")))
    names = {path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".txt")}
    assert {Path("timesheet/timesheet/entry.py"), Path("werkzeug_slashes/issue.txt")} <= names
    for name in names:
        assert (installed / name).read_bytes() == (EXAMPLES / name).read_bytes()


@pytest.mark.parametrize("name", sorted(path.parent.name for path in EXAMPLES.glob("*/buggy.py")))
def test_every_example_has_a_pair_and_an_issue(name):
    for file in ("buggy.py", "reference.py", "issue.txt"):
        assert (EXAMPLES / name / file).read_text().strip()


@pytest.mark.parametrize(("script", "status", "hours"), [("buggy.py", 1, 26), ("reference.py", 0, 10)])
def test_the_timesheet_is_wrong_in_the_buggy_run_alone(script, status, hours):
    run = subprocess.run([sys.executable, EXAMPLES / "timesheet" / script], capture_output=True, text=True, check=False)
    assert run.returncode == status
    assert run.stdout == f"review   {hours}h 00m\n"


# --- the explanation ----------------------------------------------------------------------------------------------------


def found(*functions: Function, exception: str | None = "werkzeug.exceptions.NotFound") -> Localization:
    runs = (
        RunSummary("buggy", "buggy.py", 1, exception, "404", 90, 30, 0.1, 2, True),
        RunSummary("reference-1", "reference.py", 0, None, None, 80, 29, 0.1, 2, True),
    )
    suspects = tuple(
        Suspect(item, 3, 9, evidence=(Evidence("line", 0.5, "line 4 runs only here"),)) for item in functions
    )
    ranked = tuple(RankedSuspect(place, 1.0, suspect) for place, suspect in enumerate(suspects, 1))
    comparison = Comparison(runs, (), suspects, 10, 10, True, None)
    return Localization("fused", "text", runs, (), ranked, comparison)


OTHER = Function("werkzeug/routing/map.py", "Map.add")


@pytest.mark.parametrize(
    ("functions", "verdict"),
    [
        ((demo.CULPRIT, OTHER), "the first suspect is the culprit."),
        ((OTHER, demo.CULPRIT), "the culprit is number 2 of this list. Line 4 runs only here."),
        (
            (OTHER, Function(demo.CULPRIT.path, "StateMachineMatcher.match._match")),
            "the culprit is number 2 of this list. Line 4 runs only here.",
        ),
        ((OTHER, Function(demo.CULPRIT.path, "StateMachineMatcher.matches")), "which is not in this list."),
        ((OTHER,), "which is not in this list."),
    ],
)
def test_the_explanation_tells_the_truth_about_the_culprit(functions, verdict):
    sentences = demo.explain(found(*functions))
    assert "it ends with NotFound" in sentences[0]
    assert sentences[1] == f"First of {len(functions)} functions is {functions[0].qualname}: Line 4 runs only here."
    assert sentences[2].startswith("werkzeug 2.2.1 repaired the bug in StateMachineMatcher.match")
    assert sentences[2].endswith(verdict)


def test_the_explanation_of_nothing_claims_nothing():
    assert len(demo.explain(found(exception=None))) == 1


# --- the environment ----------------------------------------------------------------------------------------------------


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XLOCAL_CACHE", str(tmp_path / "mine"))
    assert demo.cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("XLOCAL_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert demo.cache_folder() == tmp_path / "xlocal"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert demo.cache_folder() == tmp_path / ".cache" / "xlocal"


def without_network(monkeypatch, cache: Path) -> None:
    """An index that nobody answers for, and empty caches of the installers."""
    monkeypatch.setenv("XLOCAL_CACHE", str(cache))
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_CACHE_DIR", str(cache / "uv"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_offline_with_a_cold_cache_is_one_line_and_leaves_nothing(monkeypatch, tmp_path, installer):
    if installer == "uv" and demo.find_program("uv") is None:
        pytest.skip("uv is not installed here")
    if installer == "pip":
        monkeypatch.setattr(demo, "find_program", lambda _name: None)
    without_network(monkeypatch, tmp_path)
    with pytest.raises(XlocalError, match=r"is this machine offline\?") as caught:
        demo.demo_python(progress=nothing)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "demo").iterdir()) == []


def test_a_warm_cache_needs_no_network(monkeypatch, tmp_path):
    without_network(monkeypatch, tmp_path)
    _, version = demo._base_interpreter()
    folder = tmp_path / "demo" / f"werkzeug-2.2.0-py{version[0]}.{version[1]}" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    assert demo.demo_python(progress=nothing) == folder / "python"
    # The interpreter behind it is gone: the environment is made anew, which needs the network again.
    (folder / "python").unlink()
    (folder / "python").symlink_to(tmp_path / "gone")
    with pytest.raises(XlocalError, match="offline"):
        demo.demo_python(progress=nothing)


@pytest.mark.slow
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_the_demo_finds_the_culprit_of_the_real_release(monkeypatch, tmp_path, installer):
    monkeypatch.setenv("XLOCAL_CACHE", str(tmp_path / "cache"))
    if installer == "pip":
        monkeypatch.setattr(demo, "find_program", lambda _name: None)
    shown = demo.run_demo(session=tmp_path / "session", progress=nothing)
    assert shown.found.runs[0].exception == "werkzeug.exceptions.NotFound"
    assert shown.found.runs[1].exit_status == 0
    assert min(item.rank for item in shown.found.suspects if demo.is_culprit(item.suspect.function)) <= 5
    assert "the culprit" in shown.explanation[-1]
    assert [path.name for path in (tmp_path / "cache" / "demo").iterdir()] == [
        os.path.basename(demo.demo_python(progress=nothing).parent.parent)
    ]
