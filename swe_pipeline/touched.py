"""What a patch touches: found by applying it to the base files and comparing them, never from its line numbers.

A hunk may apply at an offset from where its header says, so that its numbers name the wrong function.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from xlocal.ranking.source import SourceIndex
from xlocal.swe_pipeline.patches import check_paths, touched_paths
from xlocal.tracer.errors import CheckoutError, PatchError

Counting = Literal["existing", "innermost", "enclosing"]
COUNTINGS: tuple[Counting, ...] = get_args(Counting)
ReadFile = Callable[[str], bytes | None]

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Touched:
    """What a patch changes; functions are `path::qualname`, all sorted.

    `existing`: the innermost functions of the base around an added or removed line that is not blank. `new`: functions
    that the patch adds. `enclosing`: every function around such a line, outer ones and new ones too. `definitions`
    counts their `def` statements, one number for each of `COUNTINGS`: a property's getter and setter share one name.
    `hunks` counts those of the patch as written; `added` and `removed` count its lines.
    """

    files: tuple[str, ...] = ()
    existing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    enclosing: tuple[str, ...] = ()
    definitions: tuple[int, int, int] = (0, 0, 0)
    hunks: int = 0
    added: int = 0
    removed: int = 0

    def functions(self, counting: Counting = "existing") -> tuple[str, ...]:
        """The touched functions by one way of counting them; `innermost` is the existing and the new ones."""
        if counting == "innermost":
            return tuple(sorted({*self.existing, *self.new}))
        return self.enclosing if counting == "enclosing" else self.existing


def base_files(repository: Path, commit: str) -> ReadFile:
    """Reads files of a commit from a repository or a bare mirror; no work tree is needed.

    What it returns raises CheckoutError when git cannot answer, and gives None for a file that is not in the commit.
    """

    def read(path: str) -> bytes | None:
        listed = _git(repository, "ls-tree", commit, "--", path)
        if not listed.strip():
            return None
        return _git(repository, "cat-file", "blob", listed.split()[2].decode())

    return read


def touched(patch: str, read: ReadFile) -> Touched:
    """What `patch` touches in the files that `read` gives. An empty patch touches nothing.

    Raises PatchError when the patch does not apply to them or reaches outside the work tree.
    """
    check_paths(patch)
    paths = touched_paths(patch)
    if not paths:
        if patch.strip():
            raise PatchError("the patch names no file: it is not a unified diff")
        return Touched()
    with tempfile.TemporaryDirectory(prefix="xlocal-") as scratch:
        before, after = Path(scratch) / "before", Path(scratch) / "after"
        for folder in (before, after):
            folder.mkdir()
            for path in paths:
                _write(folder / path, read(path))
        apply_to_folder(patch, after)
        existing, new, enclosing = _definitions(before, after, paths)
        changed = tuple(path for path in paths if _content(before / path) != _content(after / path))
    definitions = (len(existing), len(existing | new), len(enclosing))
    return Touched(changed, _names(existing), _names(new), _names(enclosing), definitions, *_counts(patch))


def patched(patch: str, read: ReadFile) -> dict[str, bytes | None]:
    """The files that a patch names as they are after it, by path; None for a file that is gone.

    Raises PatchError as `touched` does.
    """
    check_paths(patch)
    paths = touched_paths(patch)
    with tempfile.TemporaryDirectory(prefix="xlocal-") as scratch:
        folder = Path(scratch) / "after"
        folder.mkdir()
        for path in paths:
            _write(folder / path, read(path))
        if paths:
            apply_to_folder(patch, folder)
        return {path: _content(folder / path) for path in paths}


def apply_to_folder(patch: str, folder: Path) -> None:
    """Apply a patch to files in a folder that is no repository: by git, else by patch, as the benchmark does.

    Raises PatchError when neither can; what is in the folder is then worth nothing.
    """
    text = patch if patch.endswith("\n") else patch + "\n"
    data = text.encode("utf-8", "surrogateescape")
    # Beside a repository around the folder git would silently skip every file.
    env = {"GIT_CEILING_DIRECTORIES": str(folder.parent), "LC_ALL": "C.UTF-8", "PATH": _search_path()}
    commands = (
        ["git", "apply", "--whitespace=nowarn", "-"],
        ["patch", "--batch", "--fuzz=5", "-p1", "--no-backup-if-mismatch", "--reject-file=-"],
    )
    said = ""
    for command in commands:
        try:
            done = subprocess.run(
                command, cwd=folder, input=data, env=env, capture_output=True, timeout=_SECONDS, check=False
            )
        except FileNotFoundError:
            continue
        if not done.returncode:
            return
        said = said or done.stderr.decode("utf-8", "replace").strip().splitlines()[-1]
    raise PatchError(f"the patch does not apply: {said or 'git is not here'}")


class _Definition(NamedTuple):
    """The `ordinal`-th definition (from 0) of a name in a file."""

    path: str
    qualname: str
    ordinal: int


def _names(definitions: Iterable[_Definition]) -> tuple[str, ...]:
    return tuple(sorted({f"{one.path}::{one.qualname}" for one in definitions}))


def _definitions(
    before: Path, after: Path, paths: tuple[str, ...]
) -> tuple[set[_Definition], set[_Definition], set[_Definition]]:
    """What `Touched` calls existing, new and enclosing."""
    existing: set[_Definition] = set()
    new: set[_Definition] = set()
    enclosing: set[_Definition] = set()
    for path in paths:
        if path.endswith(".py"):
            old, now = _Definitions(before, path), _Definitions(after, path)
            removed, added = _changed_lines(before / path, after / path)
            for around in filter(None, (*map(old.around, removed), *map(now.around, added))):
                enclosing.update(around)
                existing.update([one for one in around if one.qualname in old.names][-1:])
                if around[-1].qualname not in old.names:
                    new.add(around[-1])
    return existing, new, enclosing


class _Definitions:
    """The functions of one file and which of them lie around a line."""

    def __init__(self, folder: Path, path: str) -> None:
        found = SourceIndex(_OneFile(folder, path)).functions(path) if (folder / path).is_file() else ()
        self._ranges = [
            (first, last, _Definition(path, source.function.qualname, ordinal))
            for source in found
            for ordinal, (first, last) in enumerate(source.ranges)
        ]
        self.names = {definition.qualname for _, _, definition in self._ranges}

    def around(self, line: int) -> list[_Definition]:
        """The definitions whose lines, decorators included, hold a line; the innermost last."""
        holding = [(first, definition) for first, last, definition in self._ranges if first <= line <= last]
        return [definition for _, definition in sorted(holding)]


class _OneFile:
    """The scope of a single file of a folder."""

    def __init__(self, folder: Path, path: str) -> None:
        self._file = str(folder / path)
        self._path = path

    def relative(self, filename: str) -> str | None:
        return self._path if filename == self._file else None

    def files(self) -> Iterator[str]:
        yield self._file


def _changed_lines(before: Path, after: Path) -> tuple[list[int], list[int]]:
    """Numbers (from 1) of the removed lines of the first file and of the added ones of the second, blank ones apart."""
    names = [str(file) if file.exists() else "/dev/null" for file in (before, after)]
    diff = _git(
        before.parent, "diff", "--no-index", "--no-ext-diff", "--unified=0", "--text", "--", *names, differs=True
    )
    removed: list[int] = []
    added: list[int] = []
    old = new = 0
    inside = False
    for line in diff.split(b"\n"):
        if hunk := _HUNK.match(line):
            old, new, inside = int(hunk[1]), int(hunk[3]), True
        elif inside and line[:1] == b"-":
            removed += [old] if line[1:].strip() else []
            old += 1
        elif inside and line[:1] == b"+":
            added += [new] if line[1:].strip() else []
            new += 1
    return removed, added


def _counts(patch: str) -> tuple[int, int, int]:
    """Hunks, added lines and removed lines of a patch as written."""
    hunks = added = removed = 0
    old = new = 0
    for line in patch.encode("utf-8", "surrogateescape").split(b"\n"):
        if old > 0 or new > 0:
            added += line[:1] == b"+"
            removed += line[:1] == b"-"
            old -= line[:1] in (b"-", b" ", b"")
            new -= line[:1] in (b"+", b" ", b"")
        elif hunk := _HUNK.match(line):
            hunks += 1
            old, new = (int(count) if count is not None else 1 for count in (hunk[2], hunk[4]))
    return hunks, added, removed


def _git(folder: Path, *arguments: str, differs: bool = False) -> bytes:
    """What git prints, as bytes; `differs` lets status 1 mean that files differ."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "-c", "core.quotePath=false", *arguments],
            env={"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "PATH": _search_path()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise CheckoutError("patches are compared by git, which is not here; install it") from None
    if done.returncode > differs:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise CheckoutError(f"{folder}: git {arguments[0]}: {said[-1]}")
    return done.stdout


def _search_path() -> str:
    return os.environ.get("PATH", os.defpath)


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _write(file: Path, content: bytes | None) -> None:
    if content is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
