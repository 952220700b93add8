"""`xlocal trace --between` on real repositories: a regression is found, and what the commits changed is marked."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from xlocal.ranking.comparison import Localization
from xlocal.ranking.source import FunctionSource
from xlocal.tracer.calltree import Function
from xlocal.tracer.closeup import NO_VALUE, CallKey, CallRecord, Closeup
from xlocal.tracer.errors import UsageError
from xlocal.tracer.scope import Scope

from xlocal.annotations import as_annotations
from xlocal.between import Revision, _alike, _Lines, investigate_between
from xlocal.question import Question, rerank
from xlocal.report import as_markdown, print_text, reason

GOOD = """
def read(text):
    return [convert(word) for word in text.split()]


def convert(word):
    return int(word)


def total(text):
    '''The sum.'''
    return sum(read(text))
"""
# Lines move, a docstring and a comment change, and one function does otherwise.
BAD = '"""Numbers."""\n\nSIGNS = "+-"\n' + GOOD.replace("The sum.", "The sum of all.").replace(
    "return int(word)", "word = word.lstrip(SIGNS)  # signs\n    return int(word)"
)
SCRIPT = "import sums\nassert sums.total('4 -3') == 1, sums.total('4 -3')\n"


def git(folder: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *settings, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def a_repository(folder: Path, *, at: str = "sums.py", good: str = GOOD, bad: str = BAD) -> Path:
    """Three commits, of which `first` is good and the second changes the module; the script is not committed."""
    file = folder / at
    file.parent.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet")
    for message, text in (("Begin", good), ("Accept signs", bad)):
        file.write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "--quiet", "-m", message)
        if message == "Begin":
            git(folder, "tag", "first")
    (folder / "README").write_text("Sums.")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "Describe")
    (folder / "repro.py").write_text(SCRIPT)
    return folder


def between(folder: Path, good: str = "first", bad: str = "HEAD", **options) -> Localization:
    options = {"buggy": str(folder / "repro.py"), "references": (), "cwd": folder, "repeat": 1, **options}
    return investigate_between(Question(**options), good, bad, session=folder / ".xlocal" / "latest")


def evidence(found: Localization) -> dict[str, dict[str, str]]:
    return {
        ranked.suspect.function.qualname: {item.kind: item.detail for item in ranked.suspect.evidence}
        for ranked in found.suspects
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> tuple[Path, Localization]:
    folder = a_repository(tmp_path_factory.mktemp("repository"))
    return folder, between(folder)


def test_the_function_that_the_commits_changed_comes_first_and_is_marked(found):
    folder, found = found
    assert found.suspects[0].suspect.function == Function("sums.py", "convert")
    commit = git(folder, "rev-parse", "--short", "HEAD~1")
    assert evidence(found)["convert"]["changed"] == f"changed between first and HEAD ({commit} Accept signs)"
    buggy, reference = found.runs
    assert (buggy.exit_status, reference.exit_status) == (1, 0)
    assert (buggy.command, reference.command) == (f"{folder}/repro.py (HEAD)", f"{folder}/repro.py (first)")


def test_changed_suspects_are_marked_in_every_output_whatever_their_strongest_reason(found):
    _, localized = found
    detail = evidence(localized)["convert"]["changed"]
    suspect = localized.suspects[0].suspect
    lighter = [dataclasses.replace(item, weight=0.01) if item.kind == "changed" else item for item in suspect.evidence]
    first = dataclasses.replace(localized.suspects[0], suspect=dataclasses.replace(suspect, evidence=tuple(lighter)))
    localized = dataclasses.replace(localized, suspects=(first, *localized.suspects[1:]))
    assert not reason(first, issue=None).startswith("Changed")
    sentence = f"{detail[0].upper()}{detail[1:]}."
    for width in (160, 60):
        paper = StringIO()
        print_text(localized, Console(file=paper, width=width), top=1)
        assert " ".join(sentence.split()) in " ".join(paper.getvalue().split()) or width == 160
        assert "Accept" in paper.getvalue()
    head, *_ = [line for line in as_markdown(localized, top=1).splitlines() if line.startswith("1. ")]
    assert head.endswith(", changed")
    annotation = as_annotations(localized, Scope(()), top=2).splitlines()
    assert "suspect 1%2C convert (changed)::" in annotation[0]
    assert "(changed)" not in annotation[1]


def test_what_only_moved_or_is_described_otherwise_is_not_marked(found):
    seen = evidence(found[1])
    assert "changed" not in seen["read"]
    assert "changed" not in seen["total"]
    # Their lines have other numbers at the two revisions, and are the same lines.
    for name in ("read", "total"):
        assert {"line", "line-count", "origin"}.isdisjoint(seen[name]) or "line" not in seen[name].get("origin", "")


def test_lines_are_those_of_the_bad_revision(found):
    folder, found = found
    suspect = found.suspects[0].suspect
    text = (folder / "sums.py").read_text().splitlines()
    assert text[suspect.line - 1] == "def convert(word):"


def test_the_session_can_be_ranked_again_and_the_work_trees_are_used_again(found):
    folder, _ = found
    again = rerank(folder / ".xlocal" / "latest")
    assert again.suspects[0].suspect.function.qualname == "convert"
    assert not again.warnings or "source-changed" not in {warned.slug for warned in again.warnings}
    trees = sorted((folder / ".xlocal" / "worktrees").iterdir())
    assert len(trees) == 2
    assert len(git(folder, "worktree", "list").splitlines()) == 1
    (trees[0] / "sums.py").write_text("raise SystemExit('left by somebody')")
    assert between(folder).suspects[0].suspect.function.qualname == "convert"
    assert git(folder, "status", "--porcelain") == "?? repro.py"
    assert git(folder, "rev-parse", "--abbrev-ref", "HEAD") in ("master", "main")


@pytest.mark.parametrize("at", ["src/pkg/sums.py", "lib/pkg/sums.py"])
def test_the_revisions_code_wins_over_the_environments(tmp_path, at):
    """An editable install leads to the user's own checkout, which PYTHONPATH stands for here."""
    folder = a_repository(tmp_path / "r", at=at)
    (folder / at).with_name("__init__.py").touch()
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "--amend", "--no-edit")
    (folder / "repro.py").write_text(SCRIPT.replace("import sums", "from pkg import sums"))
    top = str((folder / at).parent.parent)
    found = between(folder, env={"PYTHONPATH": top})
    assert [run.exit_status for run in found.runs] == [1, 0]
    assert str(found.suspects[0].suspect.function) == f"{at}::convert"


def test_generated_files_that_git_ignores_are_there_too(tmp_path):
    good = GOOD + "from _version import number\n"
    folder = a_repository(tmp_path, good=good, bad=BAD + "from _version import number\n")
    (folder / ".gitignore").write_text("_version.py\n.xlocal\n")
    (folder / "_version.py").write_text("number = 3\n")
    assert [run.exit_status for run in between(folder).runs] == [1, 0]


def test_changes_that_are_not_committed_are_told(tmp_path):
    folder = a_repository(tmp_path)
    assert "uncommitted-left-out" not in {warned.slug for warned in between(folder).warnings}
    (folder / "sums.py").write_text("def total(text):\n    return 1\n")
    found = between(folder)
    told = {warned.slug: warned.text for warned in found.warnings}
    wanted = "sums.py has changes that are not committed; both revisions ran without them"
    assert told["uncommitted-left-out"] == wanted
    assert [run.exit_status for run in found.runs] == [1, 0]


def test_a_new_module_of_a_package_counts_as_uncommitted(tmp_path):
    folder = a_repository(tmp_path, at="pkg/sums.py", good=GOOD, bad=BAD)
    (folder / "pkg" / "__init__.py").touch()
    git(folder, "add", "pkg")
    git(folder, "commit", "--quiet", "-m", "Make it a package")
    (folder / "pkg" / "new.py").write_text("")
    (folder / "pkg" / "notes.txt").write_text("")
    (folder / "repro.py").write_text(SCRIPT.replace("import sums", "from pkg import sums"))
    told = {warned.slug: warned.text for warned in between(folder).warnings}
    assert told["uncommitted-left-out"].startswith("pkg/new.py has changes")


def test_a_tree_that_was_registered_with_the_repository_is_taken_out(tmp_path):
    folder = a_repository(tmp_path)
    commit = git(folder, "rev-parse", "HEAD")[:12]
    git(folder, "worktree", "add", "--quiet", "--detach", f".xlocal/worktrees/{commit}", "HEAD")
    assert between(folder).suspects[0].suspect.function.qualname == "convert"
    assert len(git(folder, "worktree", "list").splitlines()) == 1
    assert evidence(between(folder))["convert"]["changed"].endswith("Accept signs)")


def test_a_shallow_clone_and_a_work_tree_of_the_users_own_serve_too(tmp_path):
    origin = a_repository(tmp_path / "origin")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth", "3", origin.as_uri(), str(shallow))
    git(origin, "worktree", "add", "--quiet", "--detach", str(tmp_path / "beside"), "HEAD")
    for folder in (shallow, tmp_path / "beside"):
        (folder / "repro.py").write_text(SCRIPT)
        assert between(folder, "HEAD~2").suspects[0].suspect.function.qualname == "convert"
    assert len(git(origin, "worktree", "list").splitlines()) == 2


@pytest.fixture
def with_submodule(tmp_path) -> Path:
    """A package that lies in a submodule, at its first commit and then at its last."""
    inner = a_repository(tmp_path / "inner")
    folder = tmp_path / "outer"
    folder.mkdir()
    git(folder, "init", "--quiet")
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub")
    for name in ("first", "HEAD@{1}"):
        git(folder / "sub", "checkout", "--quiet", "first" if name == "first" else git(inner, "rev-parse", "HEAD"))
        git(folder, "add", "sub")
        git(folder, "commit", "--quiet", "-m", name)
    (folder / "repro.py").write_text("import sys\nsys.path.insert(0, 'sub')\n" + SCRIPT)
    return folder


def test_submodules_are_as_each_revision_has_them(with_submodule):
    found = between(with_submodule, "HEAD~1", scope=(str(with_submodule / "sub"),))
    assert [run.exit_status for run in found.runs] == [1, 0]
    assert found.suspects[0].suspect.function.qualname == "convert"


def test_a_submodule_without_the_commit_is_refused_in_one_line(with_submodule):
    git(with_submodule, "update-index", "--cacheinfo", f"160000,{'1' * 40},sub")
    git(with_submodule, "commit", "--quiet", "-m", "Lost")
    with pytest.raises(UsageError, match="lacks the commit 111111111111, which HEAD needs; fetch it there"):
        between(with_submodule, "HEAD~1", scope=(str(with_submodule / "sub"),))


def test_a_test_is_run_at_both_revisions(tmp_path):
    folder = a_repository(tmp_path)
    (folder / "test_sums.py").write_text("import sums\ndef test_total():\n    assert sums.total('4 -3') == 1\n")
    found = between(folder, buggy=f"pytest {folder}/test_sums.py::test_total")
    assert [run.exit_status for run in found.runs] == [1, 0]
    assert found.suspects[0].suspect.function == Function("sums.py", "convert")


def test_added_and_removed_functions_are_told(tmp_path):
    bad = GOOD.replace("convert(word)", "other(word)").replace("int(word)", "abs(int(word))")
    found = between(a_repository(tmp_path, bad=bad))
    seen = evidence(found)
    assert seen["other"]["changed"].startswith("added between first and HEAD")
    assert seen["convert"]["changed"] == "removed between first and HEAD"


@pytest.mark.parametrize(
    ("good", "bad", "text"),
    [
        ("HEAD", "HEAD~0", "both are the commit"),
        ("none", "HEAD", "'none' is no revision"),
        ("--help", "HEAD", "no revision"),
    ],
)
def test_revisions_that_cannot_be_compared_are_refused(found, good, bad, text):
    with pytest.raises(UsageError, match=text):
        between(found[0], good, bad)


def test_a_folder_without_git_and_code_elsewhere_are_refused(tmp_path, found):
    (tmp_path / "repro.py").write_text("import json\n")
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    program = [sys.executable, "-m", "xlocal", "trace", "--between", "a", "b", "repro.py"]
    result = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "not a git repository" in result.stderr
    with pytest.raises(UsageError, match="lies in"):
        between(found[0], scope=(str(tmp_path),))


def test_the_command_takes_references_or_revisions(found):
    program = [sys.executable, "-m", "xlocal", "trace"]
    for words in (["repro.py"], ["repro.py", "repro.py", "--between", "first", "HEAD"]):
        result = subprocess.run([*program, *words], cwd=found[0], capture_output=True, text=True, check=False)
        assert result.returncode == 2
        assert "either at least one REFERENCE or --between" in result.stderr
    for words in (["--between", "HEAD~1", "repro.py"], ["repro.py", "--between", "HEAD~1"]):
        result = subprocess.run([*program, *words], cwd=found[0], capture_output=True, text=True, check=False)
        assert result.returncode == 2
        assert result.stderr.startswith("xlocal: --between needs two revisions, GOOD and BAD, besides the script")
        assert len(result.stderr.splitlines()) == 1
    words = ["--between", "first", "HEAD", "repro.py", "--json", "--repeat", "1"]
    result = subprocess.run([*program, *words], cwd=found[0], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["suspects"][0]["function"]["qualname"] == "convert"


# --- lines and meaning ----------------------------------------------------------------------------------------------

texts = st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=12)


def renumbered(folder: Path, old: list[str], new: list[str]) -> dict[int, int]:
    """Good line -> the bad line that stands for it."""
    revisions = []
    for name, text in (("bad", new), ("good", old)):
        (folder / name).mkdir(parents=True)
        (folder / name / "m.py").write_text("\n".join(text))
        revisions.append(Revision(name, "", folder / name))
    record = CallRecord({}, {}, NO_VALUE, None, {line: line for line in range(1, len(old) + 1)})
    focus = [(str(folder / "good" / "m.py"), 1, "f", [(0, 1)])]
    key = CallKey(0, "", 0)
    seen = _Lines(*revisions).of_bad(focus, Closeup({key: record}, ())).calls[key].lines
    return {line: number for number, line in seen.items()}


@given(texts, texts)
def test_lines_are_mapped_in_order(tmp_path_factory, old, new):
    mapped = renumbered(tmp_path_factory.mktemp("lines"), old, new)
    assert list(mapped.values()) == sorted(set(mapped.values()))
    assert set(mapped) <= set(range(1, len(old) + 1))
    assert set(mapped.values()) <= set(range(1, len(new) + 1))
    if old == new:
        assert mapped == {line: line for line in range(1, len(old) + 1)}


def test_edited_lines_stay_and_others_have_no_counterpart(tmp_path):
    assert renumbered(tmp_path, ["a", "b", "gone", "c"], ["new", "a", "edited", "c"]) == {1: 2, 4: 4}
    assert renumbered(tmp_path / "1", ["a", "b", "c"], ["x", "y", "a", "edited", "c"]) == {1: 3, 2: 4, 3: 5}


def source(text: str) -> FunctionSource:
    body = "\n".join(line.partition("#")[0] for line in textwrap.dedent(text).splitlines())
    return FunctionSource(Function("m.py", "f"), 1, 2, ((1, 2),), text, "f", (), "", "", body)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("def f(a):\n    return a", "def f(a):  # why\n\n    return (a)", True),
        ("    def f(a):\n        'x'\n        return a", "def f(a):\n    'y'\n    return a", True),
        ("def f(a):\n    return a", "def f(a):\n    return -a", False),
        ("def f(a) print a # 1", "def f(a) print a # 2", True),
        ("def f(a) print a", "def f(a) print b", False),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(one, other, alike):
    assert _alike(source(one), source(other)) is alike
