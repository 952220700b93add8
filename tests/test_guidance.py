"""What the command line offers: what to type next, what shells complete, and refusals that say what is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from xlocal.tracer.command import parse_command
from xlocal.tracer.errors import UsageError

from xlocal.settings import RANKERS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """The example, traced once; in a repository with a branch and a tag."""
    folder = tmp_path_factory.mktemp("guidance") / "timesheet"
    shutil.copytree(ROOT / "examples" / "timesheet", folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    person = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    for words in (("init", "-q", "-b", "trunk"), ("add", "-A"), ("commit", "-qm", "Begin"), ("tag", "v1.0")):
        subprocess.run(["git", *person, *words], cwd=folder, check=True)
    (folder / "traced.txt").write_text(xlocal(folder, "trace", "buggy.py", "reference.py", "--repeat", "1").stdout)
    return folder


def xlocal(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120", **env}
    program = [sys.executable, "-m", "xlocal", *words]
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def next_steps(text: str) -> list[str]:
    return [line.strip().partition("   ")[0] for line in text.partition("\nNext\n")[2].splitlines()]


# --- what to type next ----------------------------------------------------------------------------------------------


def test_the_next_steps_name_what_shows_more_and_work_as_they_stand(project):
    steps = next_steps((project / "traced.txt").read_text())
    assert steps[:3] == ["xlocal explain from_days", "xlocal diff", "xlocal report --open"]
    assert steps[3:] == ["xlocal rank --issue FILE"]
    for step in steps[:2]:
        assert xlocal(project, *step.split()[1:]).returncode == 0, step


def test_a_session_elsewhere_is_named_and_an_issue_is_not_asked_for_again(project):
    words = ("trace", "buggy.py", "reference.py", "--repeat", "1", "--issue", "issue.txt", "--session", "a b")
    steps = next_steps(xlocal(project, *words).stdout)
    assert steps == [
        "xlocal explain --session 'a b' from_days",
        "xlocal diff --session 'a b'",
        "xlocal report --session 'a b' --open",
    ]


def test_where_nothing_ran_only_other_code_is_offered(project):
    (project / "idle").mkdir(exist_ok=True)
    (project / "idle" / "__init__.py").write_text("def f():\n    pass\n")
    (project / "empty.py").write_text("")
    words = ("trace", "empty.py", "empty.py", "--scope", "idle", "--session", "idle-session", "--repeat", "1")
    assert next_steps(xlocal(project, *words).stdout) == ["xlocal trace --scope DIR|PACKAGE ..."]


def test_where_runs_are_alike_the_text_of_the_issue_is_offered(project):
    words = ("trace", "reference.py", "reference.py", "--session", "same", "--repeat", "1")
    result = xlocal(project, *words)
    assert result.returncode == 1
    assert next_steps(result.stdout) == ["xlocal rank --session same --issue FILE"]


# --- completion -----------------------------------------------------------------------------------------------------


def offered(folder: Path, line: str) -> list[str]:
    words = line.split(" ")
    env = {"_XLOCAL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return [row.partition(",")[2] for row in xlocal(folder, **env).stdout.splitlines() if row]


@pytest.mark.parametrize("command", ["rank", "explain", "report"])
def test_rankers_are_offered(project, command):
    assert offered(project, f"xlocal {command} --ranker ") == list(RANKERS)
    assert offered(project, f"xlocal {command} --ranker sp") == ["spectrum"]


def test_functions_of_the_session_are_offered(project):
    every = offered(project, "xlocal explain ")
    assert {"from_days", "Sheet.add", "Sheet.total"} <= set(every)
    assert offered(project, "xlocal explain Sheet.a") == ["Sheet.add"]
    assert offered(project, "xlocal explain tot") == ["total"]
    assert offered(project, "xlocal explain --session none ") == []


def test_revisions_are_offered(project, tmp_path):
    assert offered(project, "xlocal trace --between ") == ["HEAD", "trunk", "v1.0"]
    assert offered(project, "xlocal trace --between v1.0 t") == ["trunk"]
    empty = tmp_path / "none"
    empty.mkdir()
    env = {"_XLOCAL_COMPLETE": "bash_complete", "COMP_WORDS": "xlocal trace --between ", "COMP_CWORD": "3"}
    assert not xlocal(empty, **env, GIT_CEILING_DIRECTORIES=str(tmp_path)).stdout.strip()


def test_a_shell_that_is_not_known_is_refused_by_name(project):
    result = xlocal(project, "completion", "powershell")
    assert result.returncode == 2
    assert "'SHELL': 'powershell' is not one of 'bash', 'zsh', 'fish'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


# --- files that are no scripts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("t.txt", b"hello", r"by its name it is of the kind \.txt"),
        ("data.JSON", b"{}", r"by its name it is of the kind \.json"),
        ("tool", b"\x7fELF\x02\x00", "it is binary"),
        ("m.pyc", b"\xa7\r\r\n\x00\x00", "it is binary"),
        ("run", b"#!/bin/sh\necho\n", "its first line is #!/bin/sh"),
    ],
)
def test_what_is_no_python_is_refused_in_one_line(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=f"^{name} is not a Python script: {why}$"):
        parse_command(name, cwd=tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tool", b"#!/usr/bin/env python3\nprint(1)\n"),
        ("script.txt", b"#!/usr/bin/python\nprint(1)\n"),
        ("tool", b"print(1)\n"),
        ("empty.py", b""),
        ("latin.py", b"# coding: latin-1\nx = '\xe9'\n"),
        ("deploy.wsgi", b"print(1)\n"),
    ],
)
def test_what_may_be_python_is_taken(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert parse_command(name, cwd=tmp_path).target == str(tmp_path / name)
