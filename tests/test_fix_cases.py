"""The program that takes `xlocal fix` through real instances, here through one made for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pydantic_ai", reason="needs the extra agents")

import fix_cases
from agents import CORE, ISSUE, git, make_repository, needs_sandbox

TWICE = (
    "def f(x):\n    if x:\n        return 1\n    return 2\n\n\ndef g(x):\n    if x:\n        return 1\n    return 2\n"
)
PRINTS = 'from shop.core import total\n\nprint(total(["-1", "2"]))\n'


def diff_of(repository, **files):
    """The diff of some new texts, and the repository as it was."""
    for name, text in files.items():
        (repository / name.replace("__", "/")).write_text(text)
    git(repository, "add", ".")
    diff = git(repository, "diff", "--cached", "HEAD")
    git(repository, "reset", "-q", "--hard")
    return diff


def test_edits_do_what_the_patch_does_even_where_a_hunk_is_not_unique(tmp_path):
    repository = make_repository(tmp_path / "r", {"a.py": TWICE, "b.py": "x = 1\n\ny = 2\n"})
    after = TWICE.replace("return 2\n", "return 3\n")
    patch = diff_of(repository, **{"a.py": after, "b.py": "x = 1\n\ny = 3\n", "c.py": "z = 1\n"})
    for call in fix_cases.edits(patch, repository):
        args, file = call["args"], repository / call["args"]["path"]
        if call["tool"] == "create":
            file.write_text(args["text"])
            continue
        text = file.read_text()
        assert text.count(args["old"]) == 1
        file.write_text(text.replace(args["old"], args["new"]))
    assert (repository / "a.py").read_text() == after
    assert (repository / "b.py").read_text() == "x = 1\n\ny = 3\n"
    assert (repository / "c.py").read_text() == "z = 1\n"


@pytest.fixture
def place(tmp_path):
    """Cases, rows and checkouts as the program wants them; the pair shows the bug by what it prints."""
    root = tmp_path / "root" / "shop__shop-1"
    repository = make_repository(root / "repo")
    (root / "python").write_text(sys.executable)
    patch = diff_of(repository, **{"shop/core.py": CORE.replace("text.isdigit()", "text.lstrip('-').isdigit()")})
    row = {"instance_id": "shop__shop-1", "patch": patch, "problem_statement": ISSUE}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    case = tmp_path / "cases" / "shop__shop-1"
    case.mkdir(parents=True)
    (case / "buggy.py").write_text(PRINTS)
    (case / "reference.py").write_text(PRINTS.replace("-1", "1"))
    (case / "case.json").write_text(json.dumps({"true_functions": ["shop/core.py::parse"]}))
    return tmp_path


def run(place, *more):
    words = [sys.executable, str(fix_cases.__file__), "--cases", "cases", "--dataset", "rows.jsonl", "--root", "root"]
    words += ["--instances", "shop__shop-1", "--out", "out", "--no-grade", *more]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(place / "root" / "shop__shop-1" / "repo")}
    return subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, check=False)


@needs_sandbox
@pytest.mark.slow
def test_a_fix_goes_through_and_is_shown(place):
    done = run(place)
    assert done.returncode == 0, done.stderr
    name, verdict, position, *_, graded = (cell.strip() for cell in done.stdout.splitlines()[2].strip("|").split("|"))
    assert (name, verdict, graded) == ("shop__shop-1", "green", "-")
    assert position in {"1", "2"}
    (line,) = (place / "out" / "predictions.jsonl").read_text().splitlines()
    assert "lstrip" in json.loads(line)["model_patch"]
    again = run(place)
    assert (again.returncode, "choose a new folder" in again.stderr) == (2, True)


def test_what_is_missing_is_told(place):
    (place / "root" / "shop__shop-1" / "python").unlink()
    done = run(place)
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds no checkout; make it with xlocal swe prepare" in done.stderr
    other = run(place, "--instances", "none__such-1")
    assert (other.returncode, "none__such-1 is not in" in other.stderr) == (2, True)
