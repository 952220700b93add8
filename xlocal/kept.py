"""What was found while a session was made and is costly to find again: the tree differences, and how many calls of each
function the second pass saw."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xlocal.ranking.diff import TreeDiff, finished
from xlocal.ranking.source import SourceIndex
from xlocal.tracer.calltree import CallTree, Function, IntArray
from xlocal.tracer.closeup import Closeup, Focus

FOLDER = "kept"
CALLS = "calls.json"
VERSION = 1
# What numpy raises for a file that is not there, is cut short, or holds something else.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(slots=True)
class Keeper:
    """Writes into the session `folder` while a comparison is made with a `budget` in seconds; `close` ends it."""

    folder: Path
    budget: float
    _calls: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    _seen: dict[str, list[tuple[str, int, str, int]]] = field(default_factory=dict)

    def difference(self, role: str, difference: TreeDiff) -> None:
        """Keep the difference to the reference `role`."""
        (self.folder / FOLDER).mkdir(exist_ok=True)
        moved = np.flatnonzero(difference.moved >= 0).astype(np.int32)
        np.savez_compressed(
            _file(self.folder, role),
            version=VERSION,
            budget=self.budget,
            bounds=(difference.cost, difference.lower),
            trees=np.frombuffer(_digest(difference.buggy, difference.reference), np.uint8),
            # Partners follow one another, so that the steps between them take next to no room.
            match=np.diff(difference.match, prepend=np.int32(0)),
            moved=moved,
            moved_to=difference.moved[moved],
        )
        here, there = difference.buggy.counts(), difference.reference.counts()
        for each, counts in (("buggy", here), (role, there)):
            self._calls[each] = [(*function, count) for function, count in counts.items()]

    def closeup(self, role: str, focus: Focus, seen: Closeup) -> None:
        """Keep how many calls of each code of the focus the second pass saw."""
        counts = Counter(key.function for key in seen.calls)
        self._seen[role] = [(*code[:3], counts[number]) for number, code in enumerate(focus)]

    def close(self) -> None:
        """Write the numbers of calls."""
        (self.folder / FOLDER).mkdir(exist_ok=True)
        document = {"version": VERSION, "calls": self._calls, "seen": self._seen}
        (self.folder / FOLDER / CALLS).write_text(json.dumps(document, separators=(",", ":")) + "\n", "utf-8")


def _file(folder: Path, role: str) -> Path:
    return folder / FOLDER / f"{role}.npz"


def _digest(*trees: CallTree) -> bytes:
    """Of all that a mapping between trees depends on."""
    digest = hashlib.sha256()
    for tree in trees:
        digest.update(json.dumps(tree.functions).encode())
        for column in (tree.label, tree.size):
            digest.update(np.ascontiguousarray(column).data)
    return digest.digest()


def kept_difference(
    folder: Path, role: str, buggy: CallTree, reference: CallTree, *, budget: float | None = None
) -> TreeDiff | None:
    """The difference to a reference that the session keeps; None where there is none that holds for these trees, or
    where it is a bound that a `budget` in seconds may better, being larger than the former one."""
    try:
        # numpy leaves a damaged file open that it opened itself.
        with _file(folder, role).open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
            if int(kept["version"]) != VERSION or kept["trees"].tobytes() != _digest(buggy, reference):
                return None
            cost, lower = (int(bound) for bound in kept["bounds"])
            if lower < cost and budget is not None and budget > float(kept["budget"]):
                return None
            match = np.cumsum(kept["match"], dtype=np.int32)
            moved = np.full(len(buggy), -1, np.int32)
            moved[kept["moved"]] = kept["moved_to"]
    except (*_UNREADABLE, IndexError):
        return None
    back = _reverse(match, len(buggy), len(reference))
    return None if back is None else finished(buggy, reference, match, back, moved, (cost, lower))


def _reverse(match: NDArray[np.int32], buggy: int, reference: int) -> IntArray | None:
    """For each node of the reference its partner, shape (reference,); None when `match` is no mapping of the trees."""
    paired = np.flatnonzero(match >= 0).astype(np.int32)
    if len(match) != buggy or match.max(initial=-1) >= reference or len(np.unique(match[paired])) < len(paired):
        return None
    back = np.full(reference, -1, np.int32)
    back[match[paired]] = paired
    return back


@dataclass(frozen=True, slots=True)
class SeenCalls:
    """How many calls of a function each of two runs made, and how many of them were seen closely: the buggy run first,
    then a reference."""

    seen: tuple[int, int]
    calls: tuple[int, int]


def lines_title(seen: SeenCalls | None, reference: str) -> str:
    """Which calls the numbers beside lines are of; the second pass sees a sample of many calls."""
    title = "How often each line ran in the calls that were seen"
    if seen is None:
        return title
    here, there = (_share(few, all_) for few, all_ in zip(seen.seen, seen.calls, strict=True))
    return f"{title}: {here} in the buggy run, {there} in {reference}"


def _share(seen: int, calls: int) -> str:
    return f"all {calls:,}" if seen >= calls else f"{seen:,} of {calls:,}"


class Numbers:
    """The numbers of calls that a session keeps; nothing is known where it keeps none."""

    def __init__(self, folder: Path, index: SourceIndex) -> None:
        self._index = index
        document = _read(folder / FOLDER / CALLS)
        self._calls: dict[str, Any] = document.get("calls", {})
        self._seen: dict[str, Any] = document.get("seen", {})

    def of(self, function: Function, reference: str) -> SeenCalls | None:
        """The numbers of a function in the buggy run and a reference; None when they are not known."""
        roles = ("buggy", reference)
        calls, seen = ([each(function, role) for role in roles] for each in (self._made, self._looked_at))
        if not all((*calls, *seen)):
            return None
        return SeenCalls((seen[0], seen[1]), (calls[0], calls[1]))

    def _made(self, function: Function, role: str) -> int:
        rows = self._calls.get(role, ())
        return next((count for path, name, count in rows if (path, name) == tuple(function)), 0)

    def _looked_at(self, function: Function, role: str) -> int:
        return sum(count for *code, count in self._seen.get(role, ()) if self._is(function, code))

    def _is(self, function: Function, code: Iterable[Any]) -> bool:
        filename, line, name = code
        # Asking the index would read every file.
        near = str(filename).replace("\\", "/").endswith(function.path)
        return near and self._index.locate(filename, line, name) == function


def _read(file: Path) -> dict[str, Any]:
    """The document, or an empty one where it is not there, is damaged, or of another version."""
    try:
        document = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    ours = isinstance(document, dict) and document.get("version") == VERSION
    return document if ours else {}
