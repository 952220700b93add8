"""Checkouts: a repository at an issue's base commit with an environment, where commands run and patches are tried."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from xlocal.swe_pipeline.clone import clone, git
from xlocal.swe_pipeline.environments import Place, install, locked
from xlocal.swe_pipeline.issue import Issue
from xlocal.swe_pipeline.patches import check_paths, touched_paths
from xlocal.swe_pipeline.specs import revision, spec_of
from xlocal.tracer.errors import CheckoutError, PatchError
from xlocal.tracer.launch import run_to_end

FORMAT = 1
MARKER = "prepared.json"
LEAST_FREE_BYTES = 1 << 30
_KEPT_VARIABLES = ("LANG", "LANGUAGE", "TZ", "TERM", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
# Some processors need them for old numerical libraries to compute right.
_KEPT_PREFIXES = ("LC_", "OPENBLAS_", "OMP_", "MKL_")
_LOG_LIMIT = 64 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """How a command ended. `exit_status` is None after a signal or a timeout; `log` holds stdout and stderr as one."""

    exit_status: int | None
    timed_out: bool
    seconds: float
    log: str


class Checkout(Protocol):
    """One issue's repository and the sandbox around it.

    `repository` and `python` are paths as the commands see them: `python` imports the project from `repository`.
    """

    @property
    def issue(self) -> Issue: ...

    @property
    def repository(self) -> str: ...

    @property
    def python(self) -> str: ...

    def prepare(self) -> bool:
        """Make what is not there yet; returns whether anything had to be made. Raises CheckoutError."""
        ...

    def run(
        self, command: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Run:
        """Run a command in `repository` (or `cwd` in it); after `timeout` seconds it and all it started are killed."""
        ...

    def apply(self, patch: str) -> None:
        """Apply a unified diff to the work tree, whole or not at all. Raises PatchError when it does not fit."""
        ...

    def diff(self) -> str:
        """What the work tree changed since the base commit, new files included, as one unified diff."""
        ...

    def reset(self) -> None:
        """Put the work tree back to the base commit; what the installation left there stays."""
        ...

    def close(self) -> None:
        """Give back what only a running checkout needs; a local one stays on disk for the next time."""
        ...


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where local checkouts are made: `root/ID` for each, `cache` for what all share, `mirrors` to fetch from."""

    root: Path
    cache: Path
    mirrors: Path | None = None


class LocalCheckout:
    """A checkout in a folder of this machine: `FOLDER/ID/repo`, and `FOLDER/ID/python` that names its interpreter.

    Commands run as the user, with a home of their own and without the user's environment variables: this keeps honest
    programs apart, and is no prison for hostile ones.
    """

    def __init__(self, issue: Issue, workplace: Workplace) -> None:
        self.issue = issue
        self.folder = Path(os.path.abspath(workplace.root)) / issue.id
        self.spec = spec_of(issue)
        self._mirrors = workplace.mirrors
        self._place = Place(self.folder / "repo", self.folder / "venv", Path(os.path.abspath(workplace.cache)))

    @property
    def tree(self) -> Path:
        """The work tree."""
        return self._place.tree

    @property
    def repository(self) -> str:
        """The work tree, as text."""
        return str(self._place.tree)

    @property
    def python(self) -> str:
        """The interpreter of the checkout's environment."""
        return str(self._place.python)

    @property
    def httpbin(self) -> str | None:
        """The interpreter of the environment with an httpbin, where the facts ask for one."""
        return self._place.httpbin.read_text("utf-8").strip() if self.spec.httpbin else None

    def packages(self) -> tuple[str, ...]:
        """Folders or files of the project's import packages in the work tree; empty for an unknown project."""
        names = self.spec.packages or ((self.spec.distribution,) if self.spec.distribution else ())
        source = self.tree / self.spec.source
        places = (place for name in names for place in (source / name, source / f"{name}.py"))
        return tuple(str(place) for place in places if place.exists())

    def prepare(self) -> bool:
        """Clone and install, unless both were done for this issue, this installation and this folder before."""
        with _disk(self.folder), locked(self.folder / ".lock"):
            if self.is_prepared():
                return False
            if shutil.disk_usage(self.folder).free < LEAST_FREE_BYTES:
                raise CheckoutError(f"{self.folder}: less than 1 GiB is free on this disk; make room")
            for name in (MARKER, "python"):
                (self.folder / name).unlink(missing_ok=True)
            started = time.monotonic()
            moment = clone(self.issue, self.tree, mirrors=self._mirrors)
            cloned = time.monotonic()
            with self._named_in_errors():
                install(self.spec, self._place, moment=moment)
            seconds = {"clone": cloned - started, "install": time.monotonic() - cloned}
            _write(self.folder / "python", self.python + "\n")
            document = {**self._identity(), "seconds": {name: round(value, 2) for name, value in seconds.items()}}
            _write(self.folder / MARKER, json.dumps(document, indent=1) + "\n")
            return True

    @contextlib.contextmanager
    def _named_in_errors(self) -> Iterator[None]:
        try:
            yield
        except CheckoutError as error:
            raise type(error)(f"{self.issue.id}: {error}") from error

    def _identity(self) -> dict[str, object]:
        # Through JSON, so that tuples compare equal to the lists that are read back.
        facts = json.loads(json.dumps(self.spec.installation()))
        commit = self.issue.base_commit
        return {"format": FORMAT, "revision": revision(), "commit": commit, "tree": self.repository, "spec": facts}

    def is_prepared(self) -> bool:
        """Whether all of it is there, as made for this issue, this installation and this folder."""
        try:
            document = json.loads((self.folder / MARKER).read_text("utf-8"))
        except (OSError, ValueError):
            return False
        # The interpreter is a link: gone when the system's Python was removed, and the packages when the cache was.
        whole = self._place.python.exists() and self._dependencies_are_there() and (self.tree / ".git").is_dir()
        return whole and {**document, "seconds": None} == {**self._identity(), "seconds": None}

    def _dependencies_are_there(self) -> bool:
        if self.spec.httpbin and not (self._place.httpbin.is_file() and Path(self.httpbin or "").exists()):
            return False
        for link in self._place.home.glob("lib/python*/site-packages/zz_*.pth"):
            return Path(link.read_text("utf-8").split("addsitedir(")[1].rstrip().rstrip(")").strip("'\"")).is_dir()
        return False

    def run(
        self, command: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Run:
        """Run a command in the work tree; `python` is the checkout's own."""
        with tempfile.TemporaryDirectory(prefix="xlocal-run-") as scratch:
            temporary = Path(scratch) / "tmp"
            temporary.mkdir()
            variables = {**self._environment(temporary), **dict(self.spec.env), **(env or {})}
            ending = run_to_end(
                ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *command],
                cwd=Path(cwd or self.tree),
                env=variables,
                output=Path(scratch),
                timeout=timeout,
                mark=scratch,
            )
            log = _tail(Path(scratch) / "stdout.txt")
        return Run(ending.exit_status, ending.timed_out, ending.seconds, log)

    def _environment(self, temporary: Path) -> dict[str, str]:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)
        }
        search = os.pathsep.join((str(self._place.python.parent), os.environ.get("PATH", os.defpath)))
        return {
            "LANG": "C.UTF-8",
            **kept,
            "PATH": search,
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "VIRTUAL_ENV": str(self._place.home),
            "PYTHONHASHSEED": "0",
        }

    def apply(self, patch: str) -> None:
        """Apply by git, and when it refuses by patch, which tolerates shifted and fuzzy surroundings."""
        check_paths(patch)
        if not patch.strip():
            return
        text = patch if patch.endswith("\n") else patch + "\n"
        try:
            git(self.tree, "apply", "--whitespace=nowarn", "-", stdin=text)
        except CheckoutError as refused:
            if not (self._patch(text, "--dry-run") and self._patch_or_restore(text)):
                reason = str(refused).partition(": git apply: ")[2].removeprefix("error: ")
                raise PatchError(f"{self.issue.id}: the patch does not apply: {reason}") from None

    def _patch_or_restore(self, text: str) -> bool:
        """A dry run does not see what the patch itself puts in its own way, as a file where it wants a folder."""
        changes = self.diff()
        names = [name for name in touched_paths(text) if not os.path.lexists(self.tree / name)]
        if self._patch(text):
            return True
        self.reset()
        # What git ignores is left. A link comes before what seems to lie behind it, which then is not there.
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                (self.tree / name).unlink()
        if changes:
            git(self.tree, "apply", "--whitespace=nowarn", "-", stdin=changes)
        return False

    def _patch(self, text: str, *options: str) -> bool:
        command = ["patch", "--batch", "--fuzz=5", "-p1", "--no-backup-if-mismatch", "--reject-file=-", *options]
        try:
            done = subprocess.run(
                command,
                cwd=self.tree,
                input=text.encode("utf-8", "surrogateescape"),
                capture_output=True,
                check=False,
            )
        except FileNotFoundError:
            return False
        return not done.returncode

    def diff(self) -> str:
        """The changes as a diff that `apply` takes; the index stays as it was."""
        with tempfile.TemporaryDirectory(prefix="xlocal-") as scratch:
            index = {"GIT_INDEX_FILE": os.path.join(scratch, "index")}
            git(self.tree, "read-tree", self.issue.base_commit, env=index)
            git(self.tree, "add", "--all", env=index)
            return git(self.tree, "diff", "--cached", "--binary", "--no-ext-diff", self.issue.base_commit, env=index)

    def reset(self) -> None:
        """Back to the base commit; files that git ignores, as the installation's own, stay."""
        git(self.tree, "checkout", "--quiet", "--force", "-B", "base", self.issue.base_commit)
        git(self.tree, "reset", "--quiet", "--hard", self.issue.base_commit)
        git(self.tree, "clean", "--quiet", "-d", "--force", "--force")

    def close(self) -> None:
        """Nothing runs between commands."""


def _tail(file: Path) -> str:
    """The log, of an endless one its end."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _LOG_LIMIT))
        return stream.read().decode("utf-8", "replace")


def _write(file: Path, text: str) -> None:
    """Whole or not at all."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text, "utf-8")
    new.replace(file)


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        room = " (make room)" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise CheckoutError(f"{error.filename or folder}: {error.strerror or error}{room}") from error
