"""`xlocal swe prepare` and `localize` as programs, on a repository made here."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
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
    grading = {"patch": "diff", "test_patch": "diff", "FAIL_TO_PASS": "[]", "PASS_TO_PASS": "[]"}
    (home / "graded.jsonl").write_text("".join(json.dumps({**row, **grading}) + "\n" for row in rows))
    for number in (1, 2):
        pair = home / "pairs" / f"owner__toy-{number}"
        pair.mkdir(parents=True)
        (pair / "buggy.py").write_text("import toy\nprint(toy.total('1,xff'))\n")
        (pair / "reference.py").write_text("import toy\nprint(toy.total('1,2'))\n")
    return home


def command(place: Path, root: Path, name: str, *arguments: str) -> list[str]:
    common = ["--dataset", str(place / "rows.jsonl"), "--mirrors", str(place / "mirrors"), "--root", str(root)]
    return [sys.executable, "-m", "xlocal", "swe", name, *common, "--cache", str(root.parent / "cache"), *arguments]


def swe(place: Path, root: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = command(place, root, name, *arguments)
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
    assert done.stderr.endswith(f"0 of 1 instance is localized in {tmp_path / 'root'}\n")


def test_localize_does_again_only_what_changed(place, tmp_path):
    root, pairs = tmp_path / "root", tmp_path / "pairs"
    shutil.copytree(place / "pairs", pairs)

    def traced(*more: str) -> list[str]:
        """The instances that were traced by this run."""
        times = {folder: folder.stat().st_ino for folder in root.glob("*/session")}
        done = swe(place, root, "localize", "--pairs", str(pairs), "--repeat", "1", "--workers", "2", *more)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 2
        folders = sorted(root.glob("*/session"))
        return [folder.parent.name[-1] for folder in folders if folder.stat().st_ino != times.get(folder)]

    assert traced() == ["1", "2"]
    assert traced() == []
    (pairs / "owner__toy-2" / "reference.py").write_text("import toy\nprint(toy.total('7'))\n")
    assert traced() == ["2"]
    shutil.rmtree(root / "owner__toy-1" / "session")
    assert traced() == ["1"]
    shutil.rmtree(root / "owner__toy-2" / "repo")
    assert traced() == ["2"]
    assert traced("--ranker", "lexical") == ["1", "2"]
    manifest = json.loads((root / "localize" / "run.json").read_text())
    assert manifest["arguments"]["ranker"] == "lexical"
    assert manifest["outcomes"] == {"prepare": {"done": 2}, "localize": {"done": 2}}


def test_localize_goes_on_after_a_failure_and_after_a_kill(place, tmp_path):
    root, pairs = tmp_path / "root", tmp_path / "pairs"
    shutil.copytree(place / "pairs", pairs)
    buggy = pairs / "owner__toy-1" / "buggy.py"
    good = buggy.read_text()
    buggy.write_text("import time\ntime.sleep(600)\n")
    (pairs / "owner__toy-2" / "reference.py").unlink()
    arguments = ["--pairs", str(pairs), "--repeat", "1"]
    done = swe(place, root, "localize", *arguments, "--timeout", "2")
    assert done.returncode == 4
    rows = {row["id"][-1]: row["error"] for row in json.loads((root / "localization.json").read_text())["instances"]}
    assert "2 s" in rows["1"]
    assert rows["2"].endswith("owner__toy-2 has no reference*.py")

    (pairs / "owner__toy-2" / "reference.py").write_text("import toy\nprint(toy.total('1,2'))\n")
    process = subprocess.Popen(
        command(place, root, "localize", "--workers", "2", *arguments),
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ended = root / "localize" / "owner__toy-2" / "localize.json"
    for _ in range(600):
        if ended.exists() and json.loads(ended.read_text())["status"] == "done":
            break
        time.sleep(0.1)
    process.kill()
    process.wait()
    first = (root / "owner__toy-2" / "session").stat().st_ino
    buggy.write_text(good)
    done = swe(place, root, "localize", *arguments)
    assert done.returncode == 0, done.stdout
    assert (root / "owner__toy-2" / "session").stat().st_ino == first
    assert "owner__toy-2 localize: done before" in done.stderr


def test_localize_puts_the_work_tree_back_first(place, tmp_path):
    root = tmp_path / "root"
    arguments = ("--pairs", str(place / "pairs"), "--repeat", "1", "--instances", "owner__toy-1")
    assert swe(place, root, "prepare", "--instances", "owner__toy-1").returncode == 0
    # As a killed grading leaves it: with the fix.
    code = root / "owner__toy-1" / "repo" / "toy" / "__init__.py"
    code.write_text(CODE.replace("[1:], 10)", "[1:], 16)"))
    assert swe(place, root, "localize", *arguments).returncode == 0
    assert code.read_text() == CODE
    table = json.loads((root / "localization.json").read_text())
    assert table["instances"][0]["suspects"][0] == "toy/__init__.py::value"


@pytest.mark.parametrize("name", ["prepare", "localize", "validate"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"base_commit": "f" * 40}, "owner__toy.git: commit ffffffffffffffffffffffffffffffffffffffff is not in it;"),
        ({"setup": {"python": "3.5"}}, "no Python 3.5 here; install one, for example with: uv python install 3.5"),
        ({"repo": "owner/none"}, "owner__none.git: no such mirror; make one with: git clone --bare URL "),
    ],
)
def test_an_instance_that_cannot_be_had_is_a_line_in_every_batch(place, tmp_path, name, change, reason):
    row = json.loads((place / "graded.jsonl").read_text().splitlines()[0])
    (tmp_path / "one.jsonl").write_text(json.dumps({**row, **change}) + "\n")
    more = ["--pairs", str(place / "pairs"), "--instances", "owner__toy-1"] if name == "localize" else []
    done = swe(place, tmp_path / "root", name, "--dataset", str(tmp_path / "one.jsonl"), *more)
    assert done.returncode == 4
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("owner__toy-1")]
    assert reason.removeprefix("owner__toy-1: ") in line
    # On stderr, the line of the step, and at most the sum.
    assert reason in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) <= 2


def test_an_interrupt_ends_a_batch_in_one_line(place, tmp_path):
    root, pairs = tmp_path / "root", tmp_path / "pairs" / "owner__toy-1"
    pairs.mkdir(parents=True)
    (pairs / "buggy.py").write_text(f"open({str(tmp_path / 'there')!r}, 'w')\nimport time\ntime.sleep(600)\n")
    (pairs / "reference.py").write_text("print(1)\n")
    words = command(place, root, "localize", "--pairs", str(pairs.parent))
    process = subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if (tmp_path / "there").exists():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert (
        said.splitlines()[-1] == "xlocal: interrupted; what was done is kept, and the same command goes on from there"
    )
    assert "Traceback" not in said
    assert json.loads((root / "localize" / "run.json").read_text())["state"] == "interrupted"
    assert not (root / "owner__toy-1" / "session").exists()


def test_two_runs_in_one_root_are_refused(place, tmp_path):
    root = tmp_path / "root"
    (root / "prepare").mkdir(parents=True)
    with (root / "prepare" / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = swe(place, root, "prepare")
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == (
        f"xlocal: {root}/prepare: another run is going on there; wait for it, or use another folder"
    )


@pytest.mark.slow
def test_localize_on_a_cluster_goes_on_here(place, tmp_path):
    """A cluster of this machine traces one instance; the local engine goes on with the other."""
    pytest.importorskip("ray", reason="the engine for many machines needs the extra ray")
    root = Path(os.path.relpath(tmp_path / "root", place))
    arguments = ("localize", "--pairs", "pairs", "--repeat", "1")
    done = swe(place, root, *arguments, "--engine", "ray", "--instances", "owner__toy-1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["owner__toy-1", "toy/__init__.py::value"]
    assert json.loads((tmp_path / "root" / "localize" / "run.json").read_text())["engine"]["name"] == "ray"
    done = swe(place, root, *arguments)
    assert done.returncode == 0, done.stderr
    assert "owner__toy-1 localize: done before" in done.stderr
    assert "owner__toy-2 localize: done, " in done.stderr


@pytest.mark.parametrize("name", ["prepare", "localize", "validate", "grade", "run"])
def test_every_batch_runs_on_many_machines_or_says_what_that_needs(place, tmp_path, name):
    """Ray is hidden, as where it is not installed."""
    (tmp_path / "ray.py").write_text("raise ImportError('no ray here')\n")
    (tmp_path / "one.jsonl").write_text(
        json.dumps({"instance_id": "owner__toy-1", "model_name_or_path": "m", "model_patch": "diff"}) + "\n"
    )
    (tmp_path / "turns.json").write_text('{"reproduce": [{"text": "none"}]}')
    more = {
        "localize": ["--pairs", str(place / "pairs")],
        "grade": [str(tmp_path / "one.jsonl"), "--run-id", "r", "--out", str(tmp_path / "out")],
        "run": ["--out", str(tmp_path / "out"), "--model", f"scripted:{tmp_path}/turns.json", "--unsafe-local"],
    }
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    data = ["--dataset", str(place / "graded.jsonl")]
    for options, said in (
        (["--engine", "ray"], "xlocal: --engine ray needs the package ray: pip install 'xlocal[ray]'"),
        (["--ray-address", "auto"], "xlocal: --ray-address: needs --engine ray"),
    ):
        words = command(place, tmp_path / "root", name, *more.get(name, []), *data, *options)
        done = subprocess.run(words, capture_output=True, text=True, cwd=place, env=env, check=False)
        assert (done.returncode, done.stderr.splitlines()) == (2, [said])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--instances", "owner__toy-9"), "no instance owner__toy-9 in "),
        (("--dataset", "none.jsonl"), "--dataset none.jsonl: no such file"),
        (("--mirrors", "nowhere"), "Directory 'nowhere' does not exist"),
        (("--instances", ""), "--instances '': names no instance; leave the option out for all"),
        (("--dataset", "mistyped.jsonl"), "mistyped.jsonl: line 1: setup: unknown key 'pyton'; known: python, until, "),
    ],
)
def test_wrong_usage_is_one_line(place, tmp_path, arguments, complaint):
    row = json.loads((place / "rows.jsonl").read_text().splitlines()[0])
    (place / "mistyped.jsonl").write_text(json.dumps({**row, "setup": {"pyton": "3.11"}}) + "\n")
    done = swe(place, tmp_path / "root", "prepare", *arguments)
    assert done.returncode == 2
    assert not (tmp_path / "root").exists()
    assert done.stdout == ""
    assert complaint in done.stderr.splitlines()[-1]


def test_what_nothing_can_grade_is_refused_before_any_work(place, tmp_path):
    graded = (place / "graded.jsonl").read_text().splitlines()
    (tmp_path / "mixed.jsonl").write_text(graded[0] + "\n" + (place / "rows.jsonl").read_text().splitlines()[1] + "\n")
    (tmp_path / "p.jsonl").write_text(
        json.dumps({"instance_id": "owner__toy-2", "model_name_or_path": "m", "model_patch": "diff"}) + "\n"
    )
    data, root = ["--dataset", str(tmp_path / "mixed.jsonl")], tmp_path / "root"
    for name, more in (("validate", []), ("grade", [str(tmp_path / "p.jsonl"), "--run-id", "r"])):
        done = swe(place, root, name, *data, *more, *(["--out", str(tmp_path)] if more else []))
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert "mixed.jsonl: nothing can grade owner__toy-2: no test_patch (grading needs patch, test_patch, " in line
        assert not root.exists()
        assert not (tmp_path / "logs").exists()


def test_without_a_fail_to_pass_test_nothing_is_judged(place, tmp_path):
    data = ["--dataset", str(place / "graded.jsonl"), "--instances", "owner__toy-1"]
    done = swe(place, tmp_path / "root", "validate", *data)
    assert done.returncode == 4
    line, _, _, mine, _ = done.stdout.splitlines()
    assert line.split(maxsplit=1) == [
        "owner__toy-1",
        "not judged: there is no fail-to-pass test to judge by (FAIL_TO_PASS is empty)",
    ]
    assert mine.split() == ["owner/toy", "1", "0", "0", "0", "0"]
