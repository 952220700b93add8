"""How often each function changed in the year before HEAD, from the git history of the project."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from xlocal.ranking.source import FunctionSource
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import UsageError, Warned, XlocalError

YEAR = timedelta(days=365)
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_COMMIT = re.compile(r"^\x01commit$", re.MULTILINE)
# Users' git settings must not change the text that is parsed here.
_PLAIN = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--unified=0", "--relative")
_PREFIXES = ("--src-prefix=a/", "--dst-prefix=b/")
# Keeps each command line well under the systems' limits.
_PATHS_AT_ONCE = 400

Ranges = list[tuple[int, int]]


class Hunk(NamedTuple):
    """One `@@` header: lines `old`..`old + removed - 1` became `new`..`new + added - 1`."""

    old: int
    removed: int
    new: int
    added: int


def changes(
    sources: Sequence[FunctionSource], repository: Path, *, warn: Callable[[Warned], None] = lambda _: None
) -> Mapping[Function, int]:
    """Number of commits in the year before HEAD's date that touched each function's lines.

    `repository` is the directory that the functions' paths start from. Only the first-parent history is read, so
    that a merge counts as one change; a function's lines are followed back through every change of its file (a
    renamed file's history starts at the renaming). Raises UsageError when there is no git work tree, XlocalError
    when git fails.
    """
    git = _Git(repository)
    since = git.head_date() - YEAR
    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        warn(Warned("history-shallow", "the git clone is shallow; changes before its first commit are not counted"))
    ranges = {source.function: list(source.ranges) for source in sources}
    counts = dict.fromkeys(ranges, 0)
    paths = sorted({function.path for function in ranges})
    for start in range(0, len(paths), _PATHS_AT_ONCE):
        some = paths[start : start + _PATHS_AT_ONCE]
        _follow(git, since, some, ranges, counts)
    return counts


def _follow(
    git: _Git, since: datetime, paths: list[str], ranges: dict[Function, Ranges], counts: dict[Function, int]
) -> None:
    by_path: dict[str, list[Function]] = {}
    for function in ranges:
        by_path.setdefault(function.path, []).append(function)
    # What is not committed yet moves lines, but is no commit.
    for path, hunks in _files(git("diff", *_PLAIN, *_PREFIXES, "HEAD", "--", *paths)):
        for function in by_path.get(path, ()):
            ranges[function] = [_before(span, hunks) for span in ranges[function]]
    log = ("log", "--first-parent", "-m", f"--since={since.isoformat()}", "--format=%x01commit", "--patch")
    for commit in _COMMIT.split(git(*log, *_PLAIN, *_PREFIXES, "--", *paths)):
        for path, hunks in _files(commit):
            for function in by_path.get(path, ()):
                spans = ranges[function]
                counts[function] += any(_touches(span, hunk) for span in spans for hunk in hunks)
                ranges[function] = [_before(span, hunks) for span in spans]


class _Git:
    """Runs git in one directory; every failure is one named error."""

    def __init__(self, folder: Path) -> None:
        try:
            import git
        except ImportError as error:  # GitPython refuses to import where no git program is found
            raise XlocalError("the ranker 'commits' runs git, and no git program is found; install git") from error
        self._folder = folder
        self._failures = (git.GitCommandError, git.GitCommandNotFound)
        self._git = git.Git(str(folder))
        try:
            inside = git.Repo(str(folder), search_parent_directories=True).working_tree_dir
        except (git.InvalidGitRepositoryError, git.NoSuchPathError) as error:
            raise self._no_repository() from error
        if inside is None:
            raise self._no_repository()

    def _no_repository(self) -> UsageError:
        return UsageError(
            f"the ranker 'commits' reads git history, and {self._folder} is not in a git work tree; "
            "use a clone of the project or another --ranker"
        )

    def __call__(self, command: str, *options: str) -> str:
        try:
            return str(self._git.execute(["git", "-c", "core.quotePath=false", command, *options]))
        except self._failures as error:
            said = str(error.stderr).strip().removeprefix("stderr: ").strip("'") or str(error)
            raise XlocalError(f"git {command} failed in {self._folder}: {said}") from error

    def head_date(self) -> datetime:
        """When HEAD was committed."""
        return datetime.fromtimestamp(int(self("log", "-1", "--format=%ct", "HEAD").strip()), UTC)


def _files(patch: str) -> Iterator[tuple[str, list[Hunk]]]:
    """(path, hunks) of each file of a patch without context lines; a created or deleted file is left out."""
    path, hunks, left = "", list[Hunk](), 0
    for line in patch.split("\n"):
        if left and line.startswith(("+", "-")):
            left -= 1  # content, whatever it looks like
        elif line.startswith("diff --git "):
            if path and hunks:
                yield path, hunks
            path, hunks = "", []
        elif line.startswith("+++ "):
            path = line[6:].rstrip("\t").strip('"') if line.startswith(("+++ b/", '+++ "b/')) else ""
        elif match := _HUNK.match(line):
            old, removed, new, added = (1 if number is None else int(number) for number in match.groups())
            hunks.append(Hunk(old, removed, new, added))
            left = removed + added
    if path and hunks:
        yield path, hunks


def _touches(span: tuple[int, int], hunk: Hunk) -> bool:
    """True when a hunk changed a line of `span` (in the file after the change), or removed some from within."""
    start, end = span
    if hunk.added:
        return hunk.new <= end and start < hunk.new + hunk.added
    return start <= hunk.new < end  # lines removed after line `new`


def _before(span: tuple[int, int], hunks: list[Hunk]) -> tuple[int, int]:
    """Where the lines of `span` were before the hunks; an empty range (end < start) when they did not exist."""
    return _line_before(span[0], hunks, first=True), _line_before(span[1], hunks, first=False)


def _line_before(line: int, hunks: list[Hunk], *, first: bool) -> int:
    shift = 0
    for hunk in hunks:
        # Without added (removed) lines, git names the line before the gap.
        new = hunk.new if hunk.added else hunk.new + 1
        if line < new:
            break
        if line < new + hunk.added:
            old = hunk.old if hunk.removed else hunk.old + 1
            return old if first else old + hunk.removed - 1
        shift += hunk.removed - hunk.added
    return line + shift
