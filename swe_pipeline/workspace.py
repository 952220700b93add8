"""What an agent works on: the files of a work tree, commands in its sandbox, and snapshots to come back to."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, cast

from xlocal.swe_pipeline.checkout import Checkout, Run
from xlocal.swe_pipeline.clone import git
from xlocal.tracer.errors import CheckoutError, UsageError

SCRATCH = ".xlocal"  # in the work tree; scripts and tests of the agents, never part of a patch
_FILE_LIMIT = 4 << 20
_LEAST = 0.1  # seconds that a command gets in any case; what it was for is refused afterwards
_OUTPUT_LIMIT = 16_000  # characters of one tool's answer


class HostTree(Protocol):
    """A checkout whose work tree is a folder of this machine."""

    @property
    def tree(self) -> Path: ...


class ToolError(Exception):
    """A tool cannot do what was asked; the message is for the model."""


@dataclass(frozen=True, slots=True)
class State:
    """A work tree at a moment: its difference from the base commit, and the texts of the scratch folder by name."""

    diff: str
    scratch: Mapping[str, str]

    def digest(self) -> str:
        """A name for the state, equal for equal states."""
        text = json.dumps([self.diff, dict(sorted(self.scratch.items()))])
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


class Timed:
    """A checkout whose commands get no longer than `left()` seconds (None: no limit), which is asked before each.

    In all else it is the checkout itself, also for `isinstance`.
    """

    def __init__(self, checkout: Checkout, left: Callable[[], float | None]) -> None:
        self._checkout = checkout
        self._left = left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkout, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._checkout)

    def run(
        self, command: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Run:
        """Run a command, for `timeout` seconds or as long as time is left."""
        left = self._left()
        return self._checkout.run(
            command, timeout=timeout if left is None else max(_LEAST, min(timeout, left)), env=env, cwd=cwd
        )


class Workspace:
    """Files and commands of one checkout.

    Files are read and written by the host, so every path is resolved first and must lie in the work tree, whatever
    links an agent made; commands go through `checkout.run`, for as long as `time_left` says at most.
    """

    def __init__(
        self, checkout: Checkout, *, index: Path, time_left: Callable[[], float | None] = lambda: None
    ) -> None:
        if not hasattr(checkout, "tree"):
            raise UsageError("agents need a checkout whose work tree is a folder of this machine")
        self.checkout = cast(Checkout, Timed(checkout, time_left))
        self.tree = cast(HostTree, checkout).tree.resolve()
        self._index = index.absolute()  # git resolves it against the work tree
        _exclude(self.tree)

    @property
    def scratch(self) -> Path:
        """The folder of scripts and tests, where the host sees it."""
        return self.tree / SCRATCH

    def seen(self, name: str) -> str:
        """A file of the work tree as commands see it."""
        return f"{self.checkout.repository}/{name}"

    def path(self, name: str) -> Path:
        """The host's path of a file that an agent names. Raises ToolError outside of the work tree and in `.git`."""
        text = name.strip()
        repository = self.checkout.repository
        if text == repository or text.startswith(repository + "/"):
            text = text[len(repository) :].lstrip("/") or "."
        parts = PurePosixPath(text).parts
        if not text or "\0" in text or text.startswith("/") or ".." in parts:
            raise ToolError(f"{name}: name a file by its path in the repository, such as pkg/mod.py")
        found = (self.tree / text).resolve()
        if not found.is_relative_to(self.tree) or ".git" in (
            part.lower() for part in found.relative_to(self.tree).parts
        ):
            raise ToolError(f"{name}: is not a file of the work tree")
        return found

    def relative(self, path: Path) -> str:
        """The name of a file of the work tree, with forward slashes."""
        return path.relative_to(self.tree).as_posix()

    def read(self, name: str) -> str:
        """The text of a file. Raises ToolError when it cannot be shown."""
        path = self.path(name)
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                raise ToolError(f"{name}: is a folder; it holds {self._listing(path)}")
            # A pipe or a device would keep us waiting.
            if not stat.S_ISREG(status.st_mode) or status.st_size > _FILE_LIMIT:
                raise ToolError(f"{name}: is not a file of text of at most {_FILE_LIMIT >> 20} MiB")
            with path.open(encoding="utf-8", newline="") as file:
                return file.read()
        except FileNotFoundError:
            raise ToolError(f"{name}: no such file{self._similar(name)}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ToolError(f"{name}: cannot be read as text: {error}") from None

    def _listing(self, folder: Path) -> str:
        names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir() if entry.name != ".git")
        return ", ".join(names[:100]) + (f" and {len(names) - 100} more" if len(names) > 100 else "")

    def _similar(self, name: str) -> str:
        base = PurePosixPath(name).name
        found = [path for path in git(self.tree, "ls-files").splitlines() if PurePosixPath(path).name == base][:5]
        return f"; did you mean {', '.join(found)}?" if found else ""

    def write(self, name: str, text: str) -> None:
        """Write a file, with its folders. Raises ToolError when it must not or cannot be written."""
        path = self.path(name)
        try:
            if path.exists() and not path.is_file():
                raise ToolError(f"{name}: is not a plain file")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8", newline="") as file:
                file.write(text)
        except (OSError, UnicodeEncodeError) as error:
            raise ToolError(f"{name}: cannot be written: {error}") from None

    def python(self, script: str, *, timeout: float, env: Mapping[str, str] | None = None) -> Run:
        """Run a script of the work tree with the checkout's interpreter."""
        return self.checkout.run([self.checkout.python, self.seen(script)], timeout=timeout, env=env)

    def bash(self, command: str, *, timeout: float) -> Run:
        """Run a shell command in the work tree."""
        return self.checkout.run(["/bin/bash", "-c", command], timeout=timeout)

    def search(self, pattern: str, folder: str) -> str:
        """Lines of the work tree that match an extended regular expression."""
        where = self.relative(self.path(folder or "."))
        words = ["git", "grep", "--untracked", "-n", "-I", "-E", "-e", pattern, "--", where, f":!{SCRATCH}/session"]
        run = self.checkout.run(words, timeout=60)
        if run.exit_status == 1 and not run.log.strip():
            return "nothing found"
        return shorten("\n".join(line[:300] for line in run.log.splitlines()))

    def snapshot(self) -> State:
        """The state of the work tree now. The index file is kept between calls, so that only changed files are read."""
        disarm = getattr(self.checkout, "disarm", None)
        if disarm is not None:
            disarm()
        base = self.checkout.issue.base_commit
        env = {"GIT_INDEX_FILE": str(self._index)}
        if not self._index.exists():
            git(self.tree, "read-tree", base, env=env)
        git(self.tree, "add", "--all", env=env)
        diff = git(self.tree, "diff", "--cached", "--binary", "--no-ext-diff", base, env=env)
        return State(diff, self._scratch_texts())

    def _scratch_texts(self) -> dict[str, str]:
        found = {}
        for path in sorted(self.scratch.glob("*.py")):
            # Not through a link that an agent made.
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= _FILE_LIMIT:
                found[path.name] = path.read_text("utf-8", "replace")
        return found

    def restore(self, state: State) -> None:
        """Put the work tree into a state that `snapshot` saw. Raises CheckoutError when that is impossible."""
        self.checkout.reset()
        self._clear_scratch()
        self.checkout.apply(state.diff)
        for name, text in state.scratch.items():
            self.write(f"{SCRATCH}/{name}", text)

    def _clear_scratch(self) -> None:
        if self.scratch.is_symlink() or self.scratch.is_file():
            self.scratch.unlink()
        for path in self.scratch.glob("*.py"):
            path.unlink()

    def clean(self) -> None:
        """Back to the base commit, with an empty scratch folder."""
        self.restore(State("", {}))


def _exclude(tree: Path) -> None:
    """Keep the scratch folder out of what git sees, without touching the project's own ignore file."""
    if not (tree / ".git").is_dir():
        raise CheckoutError(f"{tree}: is not the top of a git work tree")
    info = tree / ".git" / "info"
    info.mkdir(exist_ok=True)
    _require_line(info / "exclude", f"/{SCRATCH}/")
    # It goes before every .gitattributes: one that an agent wrote must not hide changes from `git diff`.
    _require_line(info / "attributes", "* !diff")


def _require_line(file: Path, line: str) -> None:
    text = file.read_text("utf-8") if file.exists() else ""
    if line not in text.splitlines():
        file.write_text(f"{text.rstrip()}\n{line}\n".lstrip("\n"), "utf-8")


def shorten(text: str, limit: int = _OUTPUT_LIMIT) -> str:
    """Text of at most about `limit` characters: the start and the end, since errors stand at the end."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 3], text[-(limit - limit // 3) :]
    return f"{head}\n[... {len(text) - limit} characters left out ...]\n{tail}"


def describe(run: Run) -> str:
    """How a command ended and what it printed, for a model."""
    if run.timed_out:
        ending = f"ended by the time limit after {run.seconds:.0f} s"
    elif run.exit_status is None:
        ending = "ended by a signal"
    else:
        ending = f"exit status {run.exit_status}"
    return f"[{ending}]\n{shorten(strip_noise(run.log)).rstrip() or '(no output)'}"


_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")


def strip_noise(text: str) -> str:
    """Addresses differ between runs of the same script."""
    return _ADDRESS.sub("0x...", text)


def quoted(words: Sequence[str]) -> str:
    """A command as a shell reads it."""
    return shlex.join(words)


def remove_index(index: Path) -> None:
    """Forget what a snapshot's index knows, as when the work tree was made anew."""
    if os.path.lexists(index):
        index.unlink()
