"""A private copy of the user's own repository, so that an agent never works in the user's work tree."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from xlocal.swe_pipeline.checkout import LocalCheckout, Workplace
from xlocal.swe_pipeline.clone import clone, git
from xlocal.swe_pipeline.environments import Place
from xlocal.swe_pipeline.issue import Issue
from xlocal.tracer.errors import CheckoutError, UsageError
from xlocal.tracer.launch import find_python

# Made by a build beside the sources, ignored by git, and needed to import the project.
_BUILT = (".so", ".pyd", ".dylib", ".py")
_AUTHOR = {
    "GIT_AUTHOR_NAME": "xlocal",
    "GIT_AUTHOR_EMAIL": "xlocal@localhost",
    "GIT_COMMITTER_NAME": "xlocal",
    "GIT_COMMITTER_EMAIL": "xlocal@localhost",
    # The same changes make the same commit, so that a run can be taken up again.
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
}


class WorkCopy(LocalCheckout):
    """The state of a work tree now, its uncommitted changes included, in `folder/repo`; `python` is the user's own.

    The base commit of `issue` is the copy's own first commit: earlier history is there, later history cannot be.
    """

    def __init__(self, statement: str, *, repository: Path, folder: Path, python: str) -> None:
        self.original = find_work_tree(repository)
        issue = Issue(
            id=slug(self.original, statement),
            repository=str(self.original),
            base_commit=git(self.original, "rev-parse", "HEAD").strip(),
            statement=statement,
        )
        super().__init__(issue, Workplace(folder.parent, folder / "cache"))
        self.folder = Path(os.path.abspath(folder))
        interpreter = Path(find_python(python))
        self._interpreter = interpreter
        self._place = Place(self.folder / "repo", interpreter.parent.parent, self.folder / "cache")

    @property
    def python(self) -> str:
        """The user's interpreter, by the path it was given."""
        return str(self._interpreter)

    @property
    def import_paths(self) -> tuple[str, ...]:
        """Folders of the work tree that must come first on the path, so that the copy is what gets imported."""
        return ("src", "") if (self.original / "src").is_dir() else ("",)

    def prepare(self) -> bool:
        """Copy; returns False when the copy is there already and starts from the same state."""
        marker = self.folder / "base"
        changes = uncommitted(self.original)
        state = f"{self.issue.base_commit} {hashlib.sha256(changes.encode('utf-8', 'surrogateescape')).hexdigest()}"
        if marker.is_file() and self.tree.is_dir():
            known, _, base = marker.read_text("utf-8").strip().rpartition(" ")
            if known == state:
                self.issue = dataclasses.replace(self.issue, base_commit=base)
                return False
        self.folder.mkdir(parents=True, exist_ok=True)
        clone(self.issue, self.tree, mirrors=None)
        base = self._commit(changes) if changes.strip() else git(self.tree, "rev-parse", "HEAD").strip()
        self.issue = dataclasses.replace(self.issue, base_commit=base)
        self._bring_built_files()
        marker.write_text(f"{state} {base}\n", "utf-8")
        return True

    def reopen(self) -> None:
        """Take up the copy as it was made, whatever the user's work tree holds now. Raises UsageError without one."""
        marker = self.folder / "base"
        if not marker.is_file() or not self.tree.is_dir():
            raise UsageError(f"{self.folder}: the copy of {self.original} is gone; start a new run")
        self.issue = dataclasses.replace(self.issue, base_commit=marker.read_text("utf-8").split()[-1])

    def _commit(self, changes: str) -> str:
        git(self.tree, "apply", "--whitespace=nowarn", "-", stdin=changes)
        git(self.tree, "add", "--all")
        # Compiled files, where the project does not ignore them, are ignored in the copy: they alone are no change.
        if git(self.tree, "diff", "--cached", "--name-only", "HEAD").strip():
            git(self.tree, "commit", "--quiet", "--no-verify", "-m", "the work tree's uncommitted changes", env=_AUTHOR)
        return git(self.tree, "rev-parse", "HEAD").strip()

    def _bring_built_files(self) -> None:
        tracked = {os.path.dirname(name) for name in _names(self.original, "ls-files")}
        for name in _names(self.original, "ls-files", "--others", "--ignored", "--exclude-standard"):
            if name.endswith(_BUILT) and os.path.dirname(name) in tracked:
                target = self.tree / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.original / name, target)

    def _environment(self, temporary: Path) -> dict[str, str]:
        found = super()._environment(temporary)
        paths = os.pathsep.join(os.path.join(self.tree, path).rstrip("/") for path in self.import_paths)
        return {**found, "PYTHONPATH": paths}


def find_work_tree(repository: Path) -> Path:
    """The top of the git work tree around a folder. Raises UsageError when there is none, or no commit in it."""
    if not repository.is_dir():
        raise UsageError(f"--repo {repository}: no such folder")
    try:
        top = git(repository, "rev-parse", "--show-toplevel").rstrip("\n")
    except CheckoutError as error:
        if "not a git repository" in str(error):
            raise UsageError(
                f"--repo {repository}: is in no git work tree; name the project's folder, or make it one (git init, "
                "git add, git commit)"
            ) from None
        raise UsageError(f"--repo {repository}: {error}") from None
    try:
        git(repository, "rev-parse", "--verify", "--quiet", "HEAD")
    except CheckoutError:
        raise UsageError(f"--repo {repository}: has no commit yet; commit the project first") from None
    return Path(top)


def slug(repository: Path, statement: str) -> str:
    """A folder name for an issue of a repository: the repository's name and a digest of the text."""
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", repository.name).lstrip("._+-") or "repository"
    return f"{name}-{hashlib.sha256(statement.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def uncommitted(tree: Path) -> str:
    """What a work tree changed since HEAD, new files included, as a diff. Writes nothing into its repository."""
    with tempfile.TemporaryDirectory(prefix="xlocal-") as scratch:
        # New objects go to the scratch folder, not into the user's repository.
        common = git(tree, "rev-parse", "--path-format=absolute", "--git-common-dir").rstrip("\n")
        env = {
            "GIT_INDEX_FILE": os.path.join(scratch, "index"),
            "GIT_OBJECT_DIRECTORY": os.path.join(scratch, "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.path.join(common, "objects"),
        }
        os.mkdir(env["GIT_OBJECT_DIRECTORY"])
        git(tree, "read-tree", "HEAD", env=env)
        git(tree, "add", "--all", env=env)
        return git(tree, "diff", "--cached", "--binary", "--no-ext-diff", "HEAD", env=env)


def _names(tree: Path, *arguments: str) -> list[str]:
    return [name for name in git(tree, *arguments, "-z").split("\0") if name]
