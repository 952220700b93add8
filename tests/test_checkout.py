"""Checkouts on real repositories: what a clone holds, environments, running, patching; containers on a fake engine."""

from __future__ import annotations

import base64
import dataclasses
import gc
import hashlib
import io
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import time
import types
import urllib.request
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from containers import FakeEngine
from xlocal.swe_pipeline import checkout as checkouts
from xlocal.swe_pipeline import environments
from xlocal.swe_pipeline.batch import run_batch
from xlocal.swe_pipeline.checkout import Checkout, LocalCheckout, Workplace
from xlocal.swe_pipeline.clone import find_source
from xlocal.swe_pipeline.container import DockerCheckout, Limits, image_name
from xlocal.swe_pipeline.engines import LocalEngine
from xlocal.swe_pipeline.environments import find_interpreter, normalized
from xlocal.swe_pipeline.httpbin import served
from xlocal.swe_pipeline.issue import Issue
from xlocal.swe_pipeline.patches import check_paths, touched_paths
from xlocal.swe_pipeline.steps import PrepareStep
from xlocal.tracer.errors import CheckoutError, PatchError, XlocalError

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
# Nothing to resolve and nothing to build: needs no network.
PLAIN = {"install": "path", "project": False, "python": HERE, "distribution": "toy", "requirements": []}
DAY = 24 * 3600
BASE_TIME = 1_600_000_000


def git(folder: Path, *arguments: str, at: int = BASE_TIME) -> str:
    stamp = f"{at} +0000"
    who = {
        f"GIT_{role}_{what}": "someone@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    env = {**os.environ, **who, "GIT_AUTHOR_DATE": stamp, "GIT_COMMITTER_DATE": stamp, "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], env=env, capture_output=True, text=True, errors="replace", check=True
    ).stdout.strip()


@dataclasses.dataclass(frozen=True)
class Origin:
    """A bare mirror named after owner/toy with a commit long before the base, one just before, the base, one after."""

    mirrors: Path
    old: str
    before: str
    base: str
    after: str

    def issue(self, **setup) -> Issue:
        return Issue("owner__toy-1", "owner/toy", self.base, "It fails.", setup={**PLAIN, **setup})


@pytest.fixture(scope="module")
def origin(tmp_path_factory) -> Origin:
    home = tmp_path_factory.mktemp("origin")
    work = home / "work"
    (work / "toy").mkdir(parents=True)
    git(work, "init", "--quiet", "--initial-branch", "main")
    commits = []
    # 600 days back, within the year, the base, and the fix that must not be seen.
    for name, days, text in (("v0", -600, "zero"), ("v1", -30, "one"), (None, 0, "two"), ("v3", 30, "the_fix")):
        (work / "toy" / "__init__.py").write_text(f"first = 1\nsecond = 2\nthird = 3\nvalue = '{text}'\nlast = 9\n")
        (work / "notes.txt").write_text("notes\n")
        (work / "requirements.txt").write_text("-e .\n# tools\ntoydep==1.0  # pinned\nunwanted\n")
        (work / ".gitignore").write_text("ignored.txt\n")
        at = BASE_TIME + days * DAY
        git(work, "add", ".", at=at)
        git(work, "commit", "--quiet", "-m", text, at=at)
        commits.append(git(work, "rev-parse", "HEAD"))
        if name:
            git(work, "tag", "-a", "-m", name, name, at=at)
    git(home, "clone", "--quiet", "--bare", str(work), str(home / "mirrors" / "owner__toy.git"))
    return Origin(home / "mirrors", *commits)


@pytest.fixture
def workplace(tmp_path, origin) -> Workplace:
    return Workplace(tmp_path / "root", tmp_path / "cache", origin.mirrors)


@pytest.fixture
def checkout(origin, workplace) -> LocalCheckout:
    made = LocalCheckout(origin.issue(), workplace)
    assert made.prepare()
    return made


def test_prepare_leaves_the_work_tree_and_the_name_of_its_interpreter(checkout, workplace):
    folder = workplace.root / "owner__toy-1"
    python = (folder / "python").read_text().strip()
    assert checkout.python == python
    code = "import sys, toy; print(toy.__file__); print(toy.value); print(sys.prefix != sys.base_prefix)"
    answer = subprocess.run([python, "-c", code], cwd="/", capture_output=True, text=True, check=True).stdout
    assert answer.splitlines() == [str(folder / "repo" / "toy" / "__init__.py"), "two", "True"]
    assert checkout.packages() == (str(folder / "repo" / "toy"),)


def test_later_history_is_not_in_the_repository(checkout, origin):
    tree = checkout.tree
    assert git(tree, "rev-parse", "HEAD") == origin.base
    for commit, there in ((origin.before, True), (origin.base, True), (origin.after, False)):
        found = subprocess.run(["git", "-C", str(tree), "cat-file", "-e", commit], capture_output=True, check=False)
        assert (found.returncode == 0) is there
    assert git(tree, "tag") == "v1"
    assert git(tree, "describe", "--tags") == f"v1-1-g{origin.base[:7]}"
    assert git(tree, "remote") == ""
    assert not (tree / ".git" / "objects" / "info" / "alternates").exists()
    assert not (tree / ".git" / "FETCH_HEAD").exists()
    everything = git(tree, "cat-file", "--batch-all-objects", "--batch")
    assert "value = 'two'" in everything
    assert "the_fix" not in everything
    assert str(origin.mirrors) not in (tree / ".git" / "config").read_text()


def test_a_year_of_history_is_enough(checkout, origin):
    assert git(checkout.tree, "log", "--format=%H").split() == [origin.base, origin.before]
    assert git(checkout.tree, "status", "--porcelain") == ""


def test_what_is_prepared_is_not_made_again(checkout, origin, workplace):
    again = LocalCheckout(origin.issue(), workplace)
    (again.tree / "mine.txt").write_text("kept")
    assert again.prepare() is False
    assert (again.tree / "mine.txt").exists()
    # Other tests or packages to observe change nothing that is installed.
    assert LocalCheckout(origin.issue(test=["python", "-V"]), workplace).prepare() is False


@pytest.mark.parametrize(
    "damage", ["other installation", "no environment", "no dependencies", "no marker", "no repository", "killed"]
)
def test_what_is_not_whole_is_made_again(checkout, origin, workplace, damage):
    setup = {}
    if damage == "other installation":
        setup = {"extras": ["more"]}
    elif damage == "no environment":
        (checkout.folder / "venv" / "bin" / "python").unlink()
    elif damage == "no dependencies":
        subprocess.run(["rm", "-r", str(workplace.cache)], check=True)
    elif damage == "no repository":
        shutil.rmtree(checkout.tree)
    elif damage == "no marker":
        (checkout.folder / checkouts.MARKER).write_text("{")
    else:
        (checkout.folder / checkouts.MARKER).unlink()
        subprocess.run(["rm", "-r", str(checkout.tree / ".git")], check=True)
    again = LocalCheckout(origin.issue(**setup), workplace)
    assert again.prepare() is True
    assert again.run(["python", "-c", "import toy; print(toy.value)"], timeout=60).log == "two\n"


def refused(issue: Issue, workplace: Workplace) -> str:
    with pytest.raises(CheckoutError) as caught:
        LocalCheckout(issue, workplace).prepare()
    assert not (workplace.root / issue.id / "python").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_mirror_without_the_commit(origin, workplace):
    missing = "f" * 40
    said = refused(dataclasses.replace(origin.issue(), base_commit=missing), workplace)
    assert said == f"{origin.mirrors / 'owner__toy.git'}: commit {missing} is not in it; fetch it into the mirror"


def test_a_mirror_that_is_not_there_or_no_repository(origin, workplace, tmp_path):
    said = refused(dataclasses.replace(origin.issue(), repository="owner/other"), workplace)
    assert said.startswith(f"{origin.mirrors / 'owner__other.git'}: no such mirror; make one with: git clone --bare")
    (tmp_path / "plain").mkdir()
    assert "not a git repository" in refused(
        dataclasses.replace(origin.issue(), repository=str(tmp_path / "plain")), workplace
    )
    assert "no such repository" in refused(dataclasses.replace(origin.issue(), repository="./none"), workplace)


def test_where_repositories_come_from(origin):
    assert find_source("owner/toy", None) == "https://github.com/owner/toy.git"
    assert find_source("ssh://host/toy", origin.mirrors) == "ssh://host/toy"
    assert find_source("owner/toy", origin.mirrors) == str(origin.mirrors / "owner__toy.git")


def test_a_folder_is_a_repository_too(origin, workplace):
    issue = dataclasses.replace(
        origin.issue(), repository=str(origin.mirrors / "owner__toy.git"), base_commit=origin.base[:10]
    )
    made = LocalCheckout(issue, dataclasses.replace(workplace, mirrors=None))
    assert made.prepare()
    assert git(made.tree, "rev-parse", "HEAD") == origin.base


def test_no_interpreter(origin, workplace):
    said = refused(origin.issue(python="3.99"), workplace)
    assert said == "owner__toy-1: no Python 3.99 here; install one, for example with: uv python install 3.99"


def test_no_uv(origin, workplace, monkeypatch):
    for cached in (environments.uv_command, find_interpreter):
        cached.cache_clear()
    monkeypatch.setattr(environments.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(environments.shutil, "which", lambda name: None)
    try:
        assert "uv, which is not here; install it with: pip install uv" in refused(origin.issue(), workplace)
    finally:
        for cached in (environments.uv_command, find_interpreter):
            cached.cache_clear()


def test_no_disk(origin, workplace, monkeypatch):
    usage = types.SimpleNamespace(free=1 << 20)
    monkeypatch.setattr(checkouts.shutil, "disk_usage", lambda path: usage)
    assert refused(origin.issue(), workplace).endswith("less than 1 GiB is free on this disk; make room")


def test_a_root_that_is_a_file(origin, tmp_path):
    (tmp_path / "file").write_text("")
    assert "Not a directory" in refused(origin.issue(), Workplace(tmp_path / "file", tmp_path / "c", origin.mirrors))


def test_one_that_fails_keeps_no_other_from_being_made(origin, workplace):
    gone = dataclasses.replace(origin.issue(), id="gone", base_commit="e" * 40)
    unknown = dataclasses.replace(origin.issue(), id="unknown", repository="django/django", version="9.9", setup={})
    rows = run_batch(
        [gone, unknown, origin.issue()],
        [PrepareStep(workplace, anew=True)],
        folder=workplace.root / "prepare",
        engine=LocalEngine(2),
    )
    assert [row.status for row in rows] == ["gave up", "failed", "done"]
    assert "is not in it" in rows[0].error
    assert "version '9.9' of django/django is unknown" in rows[1].error
    assert rows[2].result == {"made": True}


def test_a_checkout_that_is_gone_is_made_again(origin, workplace):
    def prepare():
        steps = [PrepareStep(workplace, anew=True)]
        return run_batch([origin.issue()], steps, folder=workplace.root / "prepare", engine=LocalEngine())[0]

    assert not prepare().before
    assert prepare().before
    shutil.rmtree(workplace.root / "owner__toy-1")
    assert not prepare().before
    assert (workplace.root / "owner__toy-1" / "repo").is_dir()


# Running


def test_a_run_keeps_stdout_and_stderr_in_order(checkout):
    code = "import sys; print('a', flush=True); print('b', file=sys.stderr, flush=True); print('c'); sys.exit(3)"
    run = checkout.run(["python", "-c", code], timeout=60)
    assert (run.exit_status, run.timed_out, run.log) == (3, False, "a\nb\nc\n")


def test_a_run_sees_nothing_of_the_users_environment(checkout, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    code = "import os; print(sorted(os.environ)); print(os.getcwd()); print(os.environ['HOME'])"
    names, cwd, home = checkout.run(["python", "-c", code], timeout=60, env={"MINE": "1"}).log.splitlines()
    assert "SOME_API_KEY" not in names
    assert "MINE" in names
    assert (cwd, home) == (checkout.repository, str(checkout.folder / "home"))


def test_a_run_that_takes_too_long_ends_with_all_it_started(checkout, tmp_path):
    # A grandchild in a session of its own, which no signal to the group reaches.
    code = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '300'], start_new_session=True); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); time.sleep(300)"
    )
    started = time.monotonic()
    run = checkout.run(["python", "-c", code], timeout=2)
    assert (run.exit_status, run.timed_out) == (None, True)
    assert time.monotonic() - started < 30
    child = Path("/proc") / (tmp_path / "pid").read_text()
    assert not child.exists() or "Z" in (child / "stat").read_text().split()[2]


def test_a_signal_is_no_exit_status(checkout):
    run = checkout.run(["python", "-c", "import os; os.kill(os.getpid(), 9)"], timeout=60)
    assert (run.exit_status, run.timed_out) == (None, False)


# Patching


def change(checkout: LocalCheckout) -> None:
    (checkout.tree / "toy" / "__init__.py").write_text("first = 1\nvalue = 'mended'\n")
    (checkout.tree / "new file.py").write_text("é = 1\n", "utf-8")
    (checkout.tree / "bytes.bin").write_bytes(bytes(range(256)))
    (checkout.tree / "notes.txt").unlink()
    (checkout.tree / "ignored.txt").write_text("not part of a patch")


def test_a_diff_can_be_applied_again(checkout):
    change(checkout)
    status = git(checkout.tree, "status", "--porcelain")
    patch = checkout.diff()
    assert touched_paths(patch) == ("bytes.bin", "new file.py", "notes.txt", "toy/__init__.py")
    assert git(checkout.tree, "status", "--porcelain") == status, "the index must stay as it was"
    checkout.reset()
    assert checkout.diff() == ""
    assert (checkout.tree / "ignored.txt").exists()
    checkout.apply(patch)
    assert checkout.diff() == patch
    assert (checkout.tree / "bytes.bin").read_bytes() == bytes(range(256))


def test_reset_undoes_commits_and_branches(checkout, origin):
    change(checkout)
    git(checkout.tree, "checkout", "--quiet", "-b", "elsewhere")
    git(checkout.tree, "add", ".")
    git(checkout.tree, "commit", "--quiet", "-m", "mine")
    assert "mended" in checkout.diff(), "a commit hides nothing"
    checkout.reset()
    assert git(checkout.tree, "rev-parse", "HEAD") == origin.base
    assert checkout.diff() == ""


HUNK = """--- a/toy/__init__.py
+++ b/toy/__init__.py
@@ -{line},3 +{line},3 @@
 {before}
-value = 'two'
+value = 'mended'
 last = 9
"""


def test_a_patch_may_be_shifted_and_its_surroundings_fuzzy(checkout):
    for line, before in ((3, "third = 3"), (30, "third = 3"), (3, "another = 3")):
        checkout.apply(HUNK.format(line=line, before=before))
        assert "mended" in (checkout.tree / "toy" / "__init__.py").read_text()
        assert [name for name in os.listdir(checkout.tree) if name.endswith((".orig", ".rej"))] == []
        checkout.reset()


def test_a_patch_applies_whole_or_not_at_all(checkout):
    good = HUNK.format(line=3, before="third = 3")
    bad = "--- a/notes.txt\n+++ b/notes.txt\n@@ -1 +1 @@\n-never there\n+x\n"
    for patch in (good + bad, bad + good, "not a patch\n", "--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-a\n+b\n"):
        with pytest.raises(CheckoutError, match="owner__toy-1: the patch does not apply: ") as caught:
            checkout.apply(patch)
        assert "\n" not in str(caught.value)
        assert checkout.diff() == ""


def in_its_own_way(elsewhere: Path) -> list[str]:
    """Patches of which a dry run, or git's check, says that they apply, while they stop halfway."""
    link = f"diff --git a/ln b/ln\nnew file mode 120000\n--- /dev/null\n+++ b/ln\n@@ -0,0 +1 @@\n+{elsewhere}\n"
    link += "\\ No newline at end of file\n"
    file = "diff --git a/{0} b/{0}\nnew file mode 100644\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+x = 1\n"
    return [link + file.format("ln/pwn.py"), file.format("one") + file.format("one/two.py")]


@pytest.mark.parametrize("number", [0, 1])
def test_a_patch_that_is_in_its_own_way_leaves_the_tree_as_it_was(checkout, engine, origin, tmp_path, number):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    patch = in_its_own_way(elsewhere)[number]
    with DockerCheckout(origin.issue(), engine=engine) as container:
        for place in (checkout, container):
            place.apply(HUNK.format(line=3, before="third = 3"))
            before = place.diff()
            assert "mended" in before
            with pytest.raises(
                CheckoutError, match=r"the patch does not apply: it makes .*, and .* no folder but a file"
            ):
                place.apply(patch)
            assert place.diff() == before
    assert list(elsewhere.iterdir()) == []


def test_what_patch_made_before_it_stopped_is_gone(checkout, engine, origin, tmp_path, monkeypatch):
    """As before, but nothing looks at the paths first; what git ignores is no exception."""
    for name in ("checkout", "container"):
        monkeypatch.setattr(f"xlocal.swe_pipeline.{name}.check_paths", lambda patch: None)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    patch = in_its_own_way(elsewhere)[0]
    with DockerCheckout(origin.issue(), engine=engine) as container:
        for place in (checkout, container):
            place.apply(HUNK.format(line=3, before="third = 3"))
            before = place.diff()
            with pytest.raises(
                CheckoutError, match=r"owner__toy-1: the patch does not apply: .* beyond a symbolic link"
            ):
                place.apply(patch)
            assert place.diff() == before
    with (checkout.tree / ".git" / "info" / "exclude").open("a") as file:
        file.write("\nln\n")
    with pytest.raises(CheckoutError, match="does not apply"):
        checkout.apply(patch)
    assert not os.path.lexists(checkout.tree / "ln")
    assert list(elsewhere.iterdir()) == []


def test_a_folder_may_become_a_file():
    gone = "diff --git a/{0} b/{0}\ndeleted file mode 100644\n--- a/{0}\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n"
    plain = "--- a/{0}\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n"
    new = "diff --git a/one b/one\nnew file mode 120000\n--- /dev/null\n+++ b/one\n@@ -0,0 +1 @@\n+two\n"
    for patch in (gone.format("one/a.py") + new, new + plain.format("one/a.py")):
        check_paths(patch)
    with pytest.raises(PatchError, match=r"it makes one/b\.py, and one no folder"):
        check_paths(new + "diff --git a/c.py b/one/b.py\nsimilarity index 100%\nrename from c.py\nrename to one/b.py\n")


def test_nothing_is_a_patch_that_changes_nothing(checkout):
    for patch in ("", "\n"):
        checkout.apply(patch)
    assert checkout.diff() == ""


@pytest.mark.parametrize(
    "name", ["../outside.py", "a/../../outside.py", "/etc/outside", ".git/config", "x/.GIT/config"]
)
def test_a_patch_stays_inside_the_work_tree(checkout, name):
    for header in (
        f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n",
        f"diff --git a/{name} b/{name}\nnew file mode 100644\n",
    ):
        with pytest.raises(CheckoutError, match="which is not a file of the work tree"):
            checkout.apply(header)


def test_a_removed_line_is_no_header():
    patch = "--- a/q.sql\n+++ b/q.sql\n@@ -1,2 +1,2 @@\n--- ../comment\n+++ ../other\n x\n--- a/z.py\n+++ b/z.py\n"
    assert touched_paths(patch) == ("q.sql", "z.py")


def test_renames_and_odd_names_are_touched_paths():
    patch = 'diff --git a/old name.py b/b/new.py\nrename from old name.py\nrename to b/new.py\n--- "a/t\tab"\n+++ /dev/null\n'
    assert touched_paths(patch) == ("b/new.py", "old name.py", "t")


# Environments


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    information = f"{name}-{version}.dist-info"
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}-none-any"
    whole = {
        **files,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{information}/WHEEL": f"Wheel-Version: 1.0\nGenerator: by-hand\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    digest = {
        path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        for path, text in whole.items()
    }
    record = "".join(f"{path},sha256={digest[path].decode()},{len(text.encode())}\n" for path, text in whole.items())
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        for path, text in {**whole, f"{information}/RECORD": record + f"{information}/RECORD,,\n"}.items():
            wheel.writestr(path, text)


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder of wheels instead of the network."""
    folder = tmp_path / "wheels"
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    make_wheel(folder, "toydep", "1.0", {"toydep.py": "version = '1.0'\n"})
    make_wheel(folder, "toydep", "2.0", {"toydep.py": "version = '2.0'\n"})
    return folder


def environment_names(workplace: Workplace) -> list[str]:
    return sorted(path.name for path in (workplace.cache / "environments").iterdir() if path.is_dir())


def test_checkouts_that_resolve_alike_share_their_dependencies(origin, workplace, index):
    listed = origin.issue(requirement_files=["requirements.txt"], without=["unwanted"])
    direct = dataclasses.replace(origin.issue(requirements=["toydep<2"]), id="other-2")
    newer = dataclasses.replace(origin.issue(requirements=["toydep"]), id="newer-3")
    versions = []
    for issue in (listed, direct, newer):
        made = LocalCheckout(issue, workplace)
        made.prepare()
        versions.append(made.run(["python", "-c", "import toy, toydep; print(toydep.version)"], timeout=60).log.strip())
    assert versions == ["1.0", "1.0", "2.0"]
    assert len(environment_names(workplace)) == 2
    assert list(workplace.cache.glob("environments/*/lib/python*/site-packages/__pycache__/toydep.*.pyc"))


def test_the_checkouts_own_packages_come_before_those_of_dependencies(origin, workplace, index):
    make_wheel(index, "shadow", "1.0", {"toy/__init__.py": "value = 'of a dependency'\n"})
    made = LocalCheckout(origin.issue(requirements=["shadow"]), workplace)
    made.prepare()
    assert made.run(["python", "-c", "import toy; print(toy.value)"], timeout=60).log == "two\n"


def test_a_dependency_that_is_not_there_is_one_line(origin, workplace, index):
    said = refused(origin.issue(requirements=["toydep==9"]), workplace)
    assert said.startswith("owner__toy-1: dependencies cannot be resolved: ")
    assert "toydep==9" in said
    assert "requirements cannot" not in said
    assert "none.txt: cannot be read" in refused(origin.issue(requirement_files=["none.txt"]), workplace)


def test_an_overlay_takes_compiled_and_generated_files_and_metadata(origin, workplace, index):
    files = {
        "toy/__init__.py": "value = 'of the wheel'\n",
        "toy/_fast.cpython-311-x86_64-linux-gnu.so": "compiled",
        "toy/_version.py": "version = '7.1'\n",
        "toy.libs/libgomp-1.so.1.0": "bundled",
        "toy/tests/test_it.py": "",
    }
    make_wheel(index, "toy", "7.1", files)
    make_wheel(index, "toy", "7.2", {})
    setup = {"install": "overlay", "wheels": {"2020-01-01": "7.0", "2020-12-01": "7.1", "2021-12-01": "7.2"}}
    made = LocalCheckout(origin.issue(**setup, generated=["toy/_version.py"]), workplace)
    made.prepare()
    code = "import toy, toy._version, importlib.metadata as m; print(toy.value, toy._version.version, m.version('toy'))"
    assert made.run(["python", "-c", code], timeout=60).log == "two 7.1 7.1\n"
    laid = sorted(path.name for path in made.tree.rglob("*") if path.is_file() and ".git" not in path.parts)
    assert "_fast.cpython-311-x86_64-linux-gnu.so" in laid
    assert "libgomp-1.so.1.0" in laid
    assert "test_it.py" not in laid
    made.reset()
    assert (made.tree / "toy.libs" / "libgomp-1.so.1.0").exists()
    # A patch holds none of it.
    assert "Binary" not in made.diff()
    assert touched_paths(made.diff()) == ()


def test_compiled_files_that_do_not_fit_are_told_at_once(origin, workplace, index):
    make_wheel(index, "toy", "7.1", {"toy/_fast.cpython-311-x86_64-linux-gnu.so": "compiled"})
    said = refused(origin.issue(install="overlay", wheels={"2022-01-01": "7.1"}, check=["toy", "toy._gone"]), workplace)
    assert said.startswith("owner__toy-1: the compiled files of toy 7.1 do not fit this commit: ")
    assert said.endswith("No module named 'toy._gone'")
    # The one after it has what the commit wants; nothing of the first stays.
    make_wheel(index, "toy", "7.2", {"toy/_gone.py": "found = 1\n"})
    wheels = {"2022-01-01": "7.1", "2023-01-01": "7.2"}
    setup = {"install": "overlay", "wheels": wheels, "check": ["toy._gone"], "generated": ["toy/_gone.py"]}
    made = LocalCheckout(origin.issue(**setup), workplace)
    made.prepare()
    code = "import importlib.metadata as m; print(m.version('toy'))"
    assert made.run(["python", "-c", code], timeout=60).log == "7.2\n"
    assert list(made.tree.rglob("*.so")) == []
    assert "needs the release" in refused(origin.issue(install="overlay"), workplace)


def test_the_wheel_is_chosen_by_the_commits_date():
    spec = checkouts.spec_of(
        Issue("a", "owner/x", "abcdef0", "t", setup={"wheels": {"2020-06-01": "1", "2021-06-01": "2"}})
    )
    days = (datetime(2020, 5, 31, tzinfo=UTC), datetime(2020, 6, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC))
    assert [spec.releases(day) for day in days] == [("1", "2"), ("2", "1"), ("2", "1")]


def test_names_are_compared_as_the_index_does():
    assert normalized("Foo_Bar.baz") == "foo-bar-baz"


# A WSGI application, and the part of werkzeug that serves one, over the standard library.
APPLICATION = """
def app(environ, start_response):
    import sys
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"served {environ['PATH_INFO']}".encode()]
"""
SERVING = """
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer


class Server(ThreadingMixIn, WSGIServer):
    pass


def make_server(host, port, app, threaded, request_handler):
    server = Server((host, port), WSGIRequestHandler)
    server.set_app(app)
    server.port = server.server_port
    return server
"""
ASK = (
    "import os, urllib.request as r; "
    "print(r.build_opener(r.ProxyHandler({})).open(os.environ['HTTPBIN_URL'] + 'get').read().decode())"
)


@pytest.fixture
def asking(origin, workplace, index) -> LocalCheckout:
    """A checkout whose tests ask an httpbin."""
    make_wheel(index, "httpbin", "0.10.1", {"httpbin.py": APPLICATION})
    make_wheel(index, "werkzeug", "2.2.3", {"werkzeug/__init__.py": "", "werkzeug/serving.py": SERVING})
    made = LocalCheckout(origin.issue(httpbin=["httpbin==0.10.1", "werkzeug"]), workplace)
    assert made.prepare()
    return made


def test_an_httpbin_serves_while_tests_run_and_ends_with_them(asking, origin, workplace):
    # It is installed apart: the project's tests see its address and none of its packages.
    assert asking.run(["python", "-c", "import httpbin"], timeout=60).exit_status == 1
    with served(asking) as variables:
        address = variables["HTTPBIN_URL"]
        assert address.startswith("http://127.0.0.1:")
        assert asking.run(["python", "-c", ASK], timeout=60, env=variables).log == "served /get\n"
        with served(asking) as others:
            assert others["HTTPBIN_URL"] != address
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)
    with pytest.raises(ZeroDivisionError), served(asking) as variables:
        raise ZeroDivisionError
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(variables["HTTPBIN_URL"], timeout=10)
    with served(LocalCheckout(origin.issue(), workplace)) as none:
        assert none == {}


def test_an_httpbin_outlives_nobody(asking, workplace):
    code = (
        "import os, pickle, sys; from xlocal.swe_pipeline.checkout import LocalCheckout; "
        "from xlocal.swe_pipeline.httpbin import served; "
        "serving = served(LocalCheckout(*pickle.loads(bytes.fromhex(sys.argv[1])))); "
        "print(serving.__enter__()['HTTPBIN_URL'], flush=True); os.kill(os.getpid(), 9)"
    )
    given = pickle.dumps((asking.issue, workplace)).hex()
    done = subprocess.run([sys.executable, "-c", code, given], capture_output=True, text=True, check=False)
    assert done.returncode == -9
    for _ in range(100):
        try:
            urllib.request.urlopen(done.stdout.strip(), timeout=10).close()
        except OSError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("it still serves")


def test_an_httpbin_that_does_not_start_is_one_line(asking):
    shutil.rmtree(Path(asking.httpbin).parents[1] / "lib")
    with pytest.raises(CheckoutError, match=r"owner__toy-1: the httpbin that its tests ask does not start: .*\w"):
        served(asking).__enter__()
    shutil.rmtree(Path(asking.httpbin).parents[1])
    assert asking.prepare() is True
    with served(asking) as variables:
        assert asking.run(["python", "-c", ASK], timeout=60, env=variables).log == "served /get\n"


def test_facts_that_came_later_leave_former_results_alone(origin):
    assert "httpbin" not in checkouts.spec_of(origin.issue()).facts()
    assert checkouts.spec_of(origin.issue(httpbin=["httpbin"])).facts()["httpbin"] == ("httpbin",)


def test_interpreters_are_found_by_version(interpreters):
    for known in {interpreters[0], interpreters[-1]}:
        minor = f"{known.version[0]}.{known.version[1]}"
        assert find_interpreter(minor).version[:2] == known.version[:2]


# Containers


@pytest.fixture
def engine(origin, tmp_path) -> FakeEngine:
    """Its image is like the official ones: the whole history, and a commit on top of the base."""
    pytest.importorskip("docker", reason="the docker package is not installed")
    testbed = tmp_path / "testbed"
    git(tmp_path, "clone", "--quiet", str(origin.mirrors / "owner__toy.git"), str(testbed))
    git(testbed, "reset", "--quiet", "--hard", origin.base)
    (testbed / "setup.cfg").write_text("[installed]\n")
    git(testbed, "add", ".")
    git(testbed, "commit", "--quiet", "-m", "installation")
    # Git drops nothing of a pack that is marked so, as partial clones mark theirs.
    git(testbed, "repack", "-a", "-d", "--quiet")
    for pack in testbed.glob(".git/objects/pack/*.pack"):
        pack.with_suffix(".promisor").touch()
    return FakeEngine(testbed)


def test_the_official_names_of_images():
    assert image_name("django__django-11099") == "swebench/sweb.eval.x86_64.django_1776_django-11099:latest"


def test_a_container_has_limits_and_no_network(engine, origin):
    contained = DockerCheckout(origin.issue(), engine=engine, limits=Limits("2g", 1.5, 99))
    assert contained.prepare()
    assert contained.prepare() is False
    options = engine.made[0].options
    assert engine.pulled == [image_name("owner__toy-1")]
    assert options["network_disabled"] is True
    assert (options["mem_limit"], options["nano_cpus"], options["pids_limit"]) == ("2g", 1_500_000_000, 99)
    assert options["cap_drop"] == ["ALL"]
    assert "volumes" not in options, "a remote engine sees none of our files"
    contained.close()
    assert engine.made[0].removed


def test_an_image_that_is_there_is_not_pulled(engine, origin):
    engine.present.append("mine:1")
    with DockerCheckout(origin.issue(), engine=engine, image="mine:1", network=True):
        assert engine.pulled == []
        assert engine.made[0].options["network_disabled"] is False
    assert engine.made[0].removed


def test_later_history_is_removed_from_the_container(engine, origin):
    assert "the_fix" in git(engine.testbed, "cat-file", "--batch-all-objects", "--batch")
    with DockerCheckout(origin.issue(), engine=engine):
        everything = git(engine.testbed, "cat-file", "--batch-all-objects", "--batch")
        assert "the_fix" not in everything
        assert "value = 'two'" in everything
        assert git(engine.testbed, "remote") == ""
        assert git(engine.testbed, "tag").split() == ["v0", "v1"]


def test_an_image_of_another_commit_is_refused(engine, origin):
    issue = dataclasses.replace(origin.issue(), base_commit=origin.after)
    with pytest.raises(CheckoutError, match=r"owner__toy-1: in swebench/.*: git merge-base"):
        DockerCheckout(issue, engine=engine).prepare()
    assert engine.made[0].removed


def test_a_container_runs_applies_and_diffs_like_a_local_checkout(engine, origin, checkout):
    with DockerCheckout(origin.issue(), engine=engine) as contained:
        both: tuple[Checkout, ...] = (contained, checkout)
        for place in both:
            run = place.run(["sh", "-c", "cat toy/__init__.py; echo said >&2; exit 3"], timeout=60)
            assert (run.exit_status, run.timed_out) == (3, False)
            assert run.log.endswith("last = 9\nsaid\n")
            place.apply(HUNK.format(line=30, before="another = 3"))
            assert touched_paths(place.diff()) == ("toy/__init__.py",)
            with pytest.raises(CheckoutError, match="owner__toy-1: the patch does not apply: "):
                place.apply("--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-a\n+b\n")
            with pytest.raises(CheckoutError, match="not a file of the work tree"):
                place.apply("--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n")
            place.reset()
            assert place.diff() == ""
        patch = "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x\n"
        for place in both:
            place.apply(patch)
        assert contained.diff() == checkout.diff() != ""


def test_a_container_ends_what_takes_too_long(engine, origin):
    with DockerCheckout(origin.issue(), engine=engine) as contained:
        run = contained.run(["sleep", "60"], timeout=1)
        assert (run.exit_status, run.timed_out) == (None, True)
        assert engine.made[0].commands[-1] == ["sh", "-c", "kill -9 -1"]
        assert contained.run(["sh", "-c", "exit 124"], timeout=60).exit_status == 124


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # docker leaves its socket to the collector
def test_an_engine_that_is_not_there_is_one_line(origin, monkeypatch, tmp_path):
    pytest.importorskip("docker", reason="the docker package is not installed")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(CheckoutError, match="the Docker engine") as caught:
        DockerCheckout(origin.issue()).prepare()
    assert "\n" not in str(caught.value)
    del caught
    gc.collect()
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(XlocalError, match="containers need the package docker"):
        DockerCheckout(origin.issue()).prepare()


PROGRAMS = ("sh", "git", "patch", "timeout", "sleep", "cat", "grep", "xargs", "rm", "kill", "setsid", "sed", "ls")


def image_files(testbed: Path) -> bytes:
    """A root file system like the official images': this machine's own programs and their libraries, and /testbed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        libraries = set()
        for name in PROGRAMS:
            program = os.path.realpath(shutil.which(name))
            tar.add(program, f"bin/{name}")
            needs = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
            libraries.update(word for word in needs.split() if word.startswith("/"))
        for library in sorted(libraries):
            tar.add(os.path.realpath(library), library.lstrip("/"))
        helpers = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True).stdout.strip()
        tar.add(helpers, helpers.lstrip("/"))
        tar.add(testbed, "testbed")
        for folder in ("tmp", "root", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(entry)
    return packed.getvalue()


@pytest.mark.docker
def test_a_real_engine_runs_ends_and_forgets(engine, origin):
    """Needs an engine that DOCKER_HOST names; no registry: the image is made of this machine's programs."""
    docker = pytest.importorskip("docker", reason="the docker package is not installed")
    try:
        real = docker.from_env()
    except docker.errors.DockerException as error:
        pytest.skip(f"no Docker engine here: {error}")
    try:
        real.api.import_image_from_data(image_files(engine.testbed), repository="xlocal-test", tag="1")
        with DockerCheckout(
            origin.issue(), engine=real, image="xlocal-test:1", limits=Limits("1g", 1.0, 64)
        ) as contained:
            # Marks that would keep later history from being dropped were in the first image that was tried.
            assert contained.run(["git", "cat-file", "-e", origin.after], timeout=60).exit_status != 0
            assert contained.run(["git", "cat-file", "-e", origin.base], timeout=60).exit_status == 0
            assert contained.run(["ls", "/sys/class/net"], timeout=60).log.split() in ([], ["lo"])
            late = contained.run(["sh", "-c", "setsid sleep 300 & sleep 300"], timeout=1)
            assert (late.exit_status, late.timed_out) == (None, True)
            # The container outlives what it killed, and nothing else does.
            left = contained.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"], timeout=60)
            assert left.exit_status == 0
            assert "300" not in left.log
            contained.apply(HUNK.format(line=30, before="another = 3"))
            assert touched_paths(contained.diff()) == ("toy/__init__.py",)
            contained.reset()
            assert contained.diff() == ""
        assert real.containers.list(all=True, filters={"label": "xlocal.instance=owner__toy-1"}) == []
        real.images.remove("xlocal-test:1", force=True)
    finally:
        real.close()
