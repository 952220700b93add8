"""`xlocal swe prepare` and `localize` as programs, on a repository made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
CODE = """
def clean(text):
    return text.strip()


def total(text):
    return sum(value(part) for part in text.split(","))


def value(part):
    if part.startswith("x"):
        return int(clean(part)[1:], 10)
    return int(clean(part))
"""


def git(folder: Path, *arguments: str) -> str:
    who = {
        f"GIT_{role}_{what}": "someone@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    env = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(["git", "-C", str(folder), *arguments], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with mirrors/, a dataset of two issues of one repository, and a pair of scripts for each."""
    home = tmp_path_factory.mktemp("swe")
    work = home / "work"
    (work / "toy").mkdir(parents=True)
    git(work, "init", "--quiet")
    (work / "toy" / "__init__.py").write_text(CODE)
    git(work, "add", ".")
    git(work, "commit", "--quiet", "-m", "base")
    git(home, "clone", "--quiet", "--bare", str(work), str(home / "mirrors" / "owner__toy.git"))
    setup = {"install": "path", "project": False, "python": HERE, "distribution": "toy"}
    rows = [
        {
            "instance_id": f"owner__toy-{number}",
            "repo": "owner/toy",
            "base_commit": git(work, "rev-parse", "HEAD"),
            "problem_statement": "A hexadecimal part ends in a ValueError.",
            "setup": setup,
        }
        for number in (1, 2)
    ]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number in (1, 2):
        pair = home / "pairs" / f"owner__toy-{number}"
        pair.mkdir(parents=True)
        (pair / "buggy.py").write_text("import toy\nprint(toy.total('1,xff'))\n")
        (pair / "reference.py").write_text("import toy\nprint(toy.total('1,2'))\n")
    return home


def swe(place: Path, root: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    common = ["--dataset", str(place / "rows.jsonl"), "--mirrors", str(place / "mirrors"), "--root", str(root)]
    words = [sys.executable, "-m", "xlocal", "swe", command, *common, "--cache", str(root.parent / "cache"), *arguments]
    return subprocess.run(words, capture_output=True, text=True, cwd=place, check=False)


def test_prepare_prints_a_line_for_each_instance(place, tmp_path):
    root = tmp_path / "root"
    first = swe(place, root, "prepare", "--jobs", "2")
    assert first.returncode == 0, first.stderr
    assert sorted(line.split()[:2] for line in first.stdout.splitlines()) == [
        ["owner__toy-1", "prepared"],
        ["owner__toy-2", "prepared"],
    ]
    assert first.stderr.endswith(f"2 of 2 instances are prepared in {root}\n")
    second = swe(place, root, "prepare", "--instances", "owner__toy-2", "--json")
    row = json.loads(second.stdout)
    assert (row["id"], row["made"], row["error"]) == ("owner__toy-2", False, None)
    assert Path((root / "owner__toy-2" / "python").read_text().strip()).exists()


def test_localize_ranks_and_keeps_the_sessions(place, tmp_path):
    root = tmp_path / "root"
    done = swe(place, root, "localize", "--pairs", str(place / "pairs"), "--repeat", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split()[:2] == ["owner__toy-1", "toy/__init__.py::value"]
    table = json.loads((root / "localization.json").read_text())
    assert [row["id"] for row in table["instances"]] == ["owner__toy-1", "owner__toy-2"]
    assert table["instances"][0]["suspects"][0] == "toy/__init__.py::value"
    again = [sys.executable, "-m", "xlocal", "rank", "--session", str(root / "owner__toy-1" / "session"), "--json"]
    ranked = json.loads(subprocess.run(again, capture_output=True, text=True, check=True).stdout)
    assert ranked["issue"] == "A hexadecimal part ends in a ValueError."
    assert ranked["suspects"][0]["function"]["qualname"] == "value"
    assert git(root / "owner__toy-1" / "repo", "status", "--porcelain") == ""


def test_one_that_fails_is_a_line_and_the_exit_code(place, tmp_path):
    pairs = tmp_path / "pairs"
    (pairs / "owner__toy-1").mkdir(parents=True)
    done = swe(place, tmp_path / "root", "localize", "--pairs", str(pairs))
    assert done.returncode == 4
    assert "owner__toy-1 needs one buggy*.py and has 0" in done.stdout
    assert done.stderr.endswith(f"0 of 1 instances are localized in {tmp_path / 'root'}\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--instances", "owner__toy-9"), "no instance owner__toy-9 in "),
        (("--dataset", "none.jsonl"), "--dataset none.jsonl: no such file"),
        (("--mirrors", "nowhere"), "Directory 'nowhere' does not exist"),
    ],
)
def test_wrong_usage_is_one_line(place, tmp_path, arguments, complaint):
    done = swe(place, tmp_path / "root", "prepare", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert complaint in done.stderr.splitlines()[-1]
