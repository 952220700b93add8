"""Unified diffs as text: which files they touch, and refusing those that reach outside the work tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from xlocal.tracer.errors import PatchError

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NAMED = re.compile(r"(?:\+\+\+|---|rename from|rename to|copy from|copy to) (.+?)(?:\t.*)?$")
_GIT_HEADER = re.compile(r'diff --git "?a/(.+?)"? "?b/(.+?)"?$')


def touched_paths(patch: str) -> tuple[str, ...]:
    """Paths that the headers of a diff name, without the prefixes a/ and b/, sorted."""
    found: set[str] = set()
    for line in _headers(patch):
        if both := _GIT_HEADER.match(line):
            found.update(both.groups())
        elif named := _NAMED.match(line):
            plain = named[1].strip().strip('"')
            if plain != "/dev/null":
                found.add(re.sub(r"^[ab]/", "", plain) if line[0] in "+-" else plain)
    return tuple(sorted(found))


def _headers(patch: str) -> Iterator[str]:
    """The lines outside of hunks; within one, a removed line may look like a header."""
    old = new = 0
    for line in patch.split("\n"):
        if old > 0 or new > 0:
            old -= line[:1] in ("-", " ", "")
            new -= line[:1] in ("+", " ", "")
        elif hunk := _HUNK.match(line):
            old, new = (int(count) if count is not None else 1 for count in hunk.groups())
        else:
            yield line.rstrip("\r")


def check_paths(patch: str) -> None:
    """Raise PatchError when a diff names a file outside the work tree or in its .git folder, or stands in its own way.

    The last is one that makes both a file or link and a file below it: programs apply the first half of it.
    """
    for name in touched_paths(patch):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or ".git" in (part.lower() for part in path.parts):
            raise PatchError(f"the patch touches {name}, which is not a file of the work tree")
    made = _made_paths(patch)
    for name in sorted(made):
        for parent in PurePosixPath(name).parents:
            if str(parent) in made:
                raise PatchError(
                    f"the patch does not apply: it makes {name}, and {parent} no folder but a file or a link"
                )


def _made_paths(patch: str) -> set[str]:
    """Paths that are files or links once the diff is applied."""
    found: set[str] = set()
    here = ""
    for line in _headers(patch):
        if both := _GIT_HEADER.match(line):
            here = both[2]
            found.add(here)
        elif line.startswith("deleted file mode"):
            found.discard(here)
        elif line.startswith(("+++ ", "rename to ", "copy to ")) and (named := _NAMED.match(line)):
            plain = named[1].strip().strip('"')
            if plain != "/dev/null":
                found.add(re.sub(r"^b/", "", plain) if line[0] == "+" else plain)
    return found
