"""What of a diff a patch may hold: no tests, scripts or litter, and nothing that its text does not say."""

from __future__ import annotations

import posixpath
import re

from xlocal.swe_pipeline.leads import is_test
from xlocal.swe_pipeline.patches import check_paths, touched_paths
from xlocal.swe_pipeline.workspace import SCRATCH

_MODES = re.compile(r"(?m)^(?:old|new) mode \d+\n")
_FILE = re.compile(r"(?m)^(?=diff --git )")
# Left in a work tree by programs that ran there.
_LITTER = (".orig", ".rej", ".pyc", ".log", ".swp", ".bak", ".tmp")


def clean_patch(diff: str) -> tuple[str, tuple[str, ...]]:
    """A diff without what no repair needs, and the names of what was left out, some with a reason.

    That is: tests, scripts and litter; links that leave the work tree, files that steer git, and changes of a file's
    mode, which would do more to the user's tree than its text says.
    """
    pieces = [piece if piece.endswith("\n") else piece + "\n" for piece in _FILE.split(diff) if piece.strip()]
    # By file: one that becomes a link is a deletion and a creation.
    left_out: dict[str, str] = {}
    for piece in pieces:
        names = touched_paths(piece)
        reasons = [reason for name in names if (reason := _why_unwanted(name, piece)) is not None]
        left_out.update(dict.fromkeys(names, reasons[0]) if reasons else {})
    kept = [piece for piece in pieces if not any(name in left_out for name in touched_paths(piece))]
    modes = {name: " (its mode)" for piece in kept if _MODES.search(_head(piece)) for name in touched_paths(piece)}
    text = "".join(_MODES.sub("", _head(piece)) + piece[len(_head(piece)) :] for piece in kept)
    check_paths(text)
    return text, tuple(f"{name}{reason}" for name, reason in {**modes, **left_out}.items())


def new_files(diff: str) -> tuple[str, ...]:
    """The files that a diff makes, by name."""
    pieces = [piece for piece in _FILE.split(diff) if "\nnew file mode" in _head(piece)]
    return tuple(name for piece in pieces for name in touched_paths(piece))


def _head(piece: str) -> str:
    """What stands before the first hunk of a file's diff."""
    return re.split(r"(?m)^(?=@@ |GIT binary patch)", piece, maxsplit=1)[0]


def _why_unwanted(name: str, piece: str) -> str | None:
    """A reason to leave a file out, empty where its name tells it; None when it is to be kept."""
    if name.rpartition("/")[2].startswith(".git"):
        return " (steers git)"
    if re.search(r"(?m)^(new file mode|new mode|index \S+) 160000$", _head(piece)):
        return " (another repository)"
    if re.search(r"(?m)^(new file mode|index \S+) 120000$", _head(piece)) and _leaves_tree(name, piece):
        return " (a link out of the work tree)"
    if _MODES.search(_head(piece)) and _head(piece) == piece and "\nrename " not in piece:
        return " (its mode)"
    return "" if _is_unwanted(name, piece) else None


def _leaves_tree(name: str, piece: str) -> bool:
    """Whether the new target of a link is outside of the work tree, or in git's own folder."""
    targets = re.findall(r"(?m)^\+(?!\+\+ )(.*)$", piece[len(_head(piece)) :])
    places = [posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) for target in targets]
    return any(place.startswith("/") or {"..", ".git"} & set(place.split("/")) for place in places)


def _is_unwanted(name: str, piece: str) -> bool:
    new = "\nnew file mode" in piece
    binary = "\nGIT binary patch" in piece or "\nBinary files" in piece
    script = new and "/" not in name and name.endswith((".py", ".sh", ".txt", ".md", ".patch", ".diff"))
    folder = name.split("/", maxsplit=1)[0]
    return is_test(name) or binary or script or name.endswith(_LITTER) or folder == SCRATCH
