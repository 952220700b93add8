"""The trace file: what one process recorded, read back as plain columns (docs/trace_format.md)."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from xlocal.tracer.errors import TraceFormatError, Warned

VERSION = 1
MAGIC = b"XLTRACE\n"
RECORD = struct.Struct("<cII")  # kind, stream, length of the payload

Words = NDArray[np.uint32]


class Code(NamedTuple):
    """A code object of the target: file, first line, name, and kind.

    `kind` is function, generator (coroutines too), class (the body of one), module (run by exec) or import (a
    module's code run by the import system).
    """

    filename: str
    line: int
    name: str
    kind: str


LOST = Code("<lost>", 0, "<lost>", "module")  # its record was not written: at the recursion limit any call may fail


class Place(NamedTuple):
    """A moment of a process: so many words into one of its streams."""

    stream: int
    words: int


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """What one thread recorded; `started_at` is where the thread was started, None for the first.

    `order` counts the starts of threads and processes in their process, the first thread having 0.
    """

    number: int
    name: str
    started_at: Place | None
    order: int
    words: Words


class UncaughtException(NamedTuple):
    """An exception that ended the script; `message` is None where reading it would have run the program's code.

    A frame is (file, first line of its function, name of its function, line), the outermost first.
    """

    type: str
    message: str | None
    frames: tuple[tuple[str, int, str, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One process's recording.

    `codes[i]` belongs to number i + 1 in the words; `exceptions` likewise (the first is the unknown type). `parent`
    is the process that started this one (None for the first) and where; `order` counts the threads and processes
    that one started. `status` is None when the process ended without its footer (killed, or `os._exit`); what it
    had recorded until then is here all the same. `uncaught` holds the exception that ended the script, then its
    causes. `outside` names executed files out of the scope.
    """

    path: Path
    python: tuple[int, ...]
    backend: str
    argv: tuple[str, ...]
    pid: int
    started: float
    parent: tuple[int, Place] | None
    order: int
    codes: tuple[Code, ...]
    exceptions: tuple[str, ...]
    streams: tuple[Stream, ...]
    outside: tuple[str, ...]
    status: int | None
    uncaught: tuple[UncaughtException, ...]
    warnings: tuple[Warned, ...]

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a trace file.

        Raises TraceFormatError for what is no trace or comes from a newer xlocal. One that was cut short is read as
        far as it goes, with a warning `trace-cut-short`.
        """
        reader = _Reader(path)
        try:
            reader.read(path.read_bytes())
            return reader.trace()
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise TraceFormatError(f"{path}: damaged ({error!r}); record again with `xlocal trace`") from error

    @property
    def complete(self) -> bool:
        """Whether the process wrote its footer."""
        return not any(warning.slug == "trace-cut-short" for warning in self.warnings)


class _Reader:
    """Collects the records of one file; `trace()` freezes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.footer: dict[str, Any] | None = None
        self.paths: dict[int, str] = {}
        self.codes: dict[int, Code] = {}
        self.exceptions: dict[int, str] = {1: "?"}
        self.threads: dict[int, dict[str, Any]] = {}
        self.chunks: dict[int, list[Words]] = {}
        self.last_chunk: dict[int, int] = {}
        self.damaged = False

    def read(self, content: bytes) -> None:
        if not content.startswith(MAGIC):
            raise TraceFormatError(f"{self.path}: not a trace file of xlocal; record again with `xlocal trace`")
        for kind, stream, payload in self._records(content):
            try:
                self._take(kind, stream, payload)
            except (ValueError, KeyError, IndexError, TypeError, zlib.error, struct.error):
                self.damaged = True
                break
        if not self.header:
            raise TraceFormatError(f"{self.path}: cut short before its header; record again with `xlocal trace`")
        if self.header["version"] > VERSION:
            raise TraceFormatError(
                f"{self.path}: written in format {self.header['version']}, this xlocal reads up to {VERSION}; "
                "upgrade xlocal or record again"
            )

    def _records(self, content: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        at = len(MAGIC)
        while at + RECORD.size <= len(content):
            kind, stream, length = RECORD.unpack_from(content, at)
            at += RECORD.size
            if at + length > len(content):
                break
            yield kind, stream, content[at : at + length]
            at += length
        self.damaged |= at != len(content)

    def _take(self, kind: bytes, stream: int, payload: bytes) -> None:
        if kind in (b"C", b"S"):
            self.last_chunk[stream] = struct.unpack_from("<I", payload)[0]
            words = np.frombuffer(zlib.decompress(payload[4:]), "<u4" if kind == b"C" else "<u2")
            self.chunks.setdefault(stream, []).append(words.astype(np.uint32))
            return
        value = json.loads(payload)
        if kind == b"F":
            self.codes[value[0]] = Code(self.paths[value[1]], *value[2:])
        elif kind == b"P":
            self.paths[value[0]] = value[1]
        elif kind == b"X":
            self.exceptions[value[0]] = value[1]
        elif kind == b"T":
            self.threads[stream] = value
        elif kind == b"H":
            self.header = value
        elif kind == b"E":
            self.footer = value

    def trace(self) -> Trace:
        ending = (self.footer or {}).get("ending") or {}
        parent = self.header["parent"]
        return Trace(
            path=self.path,
            python=tuple(self.header["python"]),
            backend=self.header["backend"],
            argv=tuple(self.header["argv"]),
            pid=self.header["pid"],
            started=self.header["started"],
            parent=None if parent is None else (parent[0], Place(*parent[1:])),
            order=self.header["order"],
            codes=_numbered(self.codes, LOST),
            exceptions=_numbered(self.exceptions, "?"),
            streams=tuple(sorted(map(self._stream, self.threads), key=lambda stream: stream.order)),
            outside=tuple((self.footer or {}).get("outside", ())),
            status=ending.get("status"),
            uncaught=tuple(
                UncaughtException(item["type"], item["message"], tuple(tuple(row) for row in item["frames"]))
                for item in ending.get("uncaught") or ()
            ),
            warnings=tuple(self._warnings()),
        )

    def _stream(self, number: int) -> Stream:
        thread = self.threads[number]
        started = thread["started_at"]
        words = [*self.chunks.get(number, []), self._tail(number)]
        joined = np.concatenate(words)
        joined.flags.writeable = False
        place = None if started is None else Place(*started)
        return Stream(number, thread["name"], place, thread["order"], joined)

    def _tail(self, number: int) -> Words:
        """What the process had in its shared buffer when it died without writing it."""
        none = np.empty(0, np.uint32)
        path = Path(f"{self.path}.{number}")
        if self.footer is not None or not path.exists():
            return none
        content = path.read_bytes()
        buffer = np.frombuffer(content[: len(content) // 4 * 4], "<u4")
        if len(buffer) == 0 or buffer[0] != self.last_chunk.get(number, 0) + 1:
            return none
        zeros = np.flatnonzero(buffer[1:] == 0)
        return buffer[1 : 1 + int(zeros[0])] if len(zeros) else buffer[1:]

    def _warnings(self) -> Iterator[Warned]:
        if self.footer is None or self.damaged:
            yield Warned(
                "trace-cut-short",
                f"{self.path.name} has no end: the process was killed or left by os._exit; "
                "what it had recorded until then is used",
            )
        for slug, text in (self.footer or {}).get("warnings", ()):
            yield Warned(slug, text)


Kept = TypeVar("Kept")


def _numbered(found: Mapping[int, Kept], lost: Kept) -> tuple[Kept, ...]:
    """What is numbered from 1, in order; gaps are what could not be written."""
    most = max(found, default=0)
    if most > 10 * len(found) + 1000:
        raise ValueError(f"number {most} among {len(found)}")
    return tuple(found.get(number, lost) for number in range(1, most + 1))


def load_all(folder: Path) -> tuple[Trace, ...]:
    """The traces of one execution: the first process, then those it started, in the order of their start; each is
    followed by its own.

    Children that recorded no call at all are left out. Raises TraceFormatError when there is no `main.xtrace`.
    """
    main = folder / "main.xtrace"
    if not main.exists():
        raise TraceFormatError(f"{folder}: holds no main.xtrace; record again with `xlocal trace`")
    children = [child for path in folder.glob("child-*.xtrace") if (child := _load_child(path)) is not None]
    by_parent: dict[int, list[Trace]] = {}
    for child in sorted(children, key=lambda trace: (trace.order, trace.started), reverse=True):
        by_parent.setdefault(child.parent[0] if child.parent else 0, []).append(child)
    loaded, waiting = [], [Trace.load(main)]
    while waiting:
        loaded.append(waiting.pop())
        waiting += by_parent.pop(loaded[-1].pid, ())
    lost = [child for orphans in by_parent.values() for child in reversed(orphans)]  # their parents left no trace
    recorded = [child for child in (*loaded[1:], *lost) if any(len(stream.words) for stream in child.streams)]
    return (loaded[0], *recorded)


def same_calls(left: Sequence[Trace], right: Sequence[Trace]) -> bool:
    """Whether two executions recorded the very same calls, so that nothing needs to be compared."""
    if len(left) != len(right):
        return False
    for one, other in zip(left, right, strict=True):
        if one.codes != other.codes or len(one.streams) != len(other.streams):
            return False
        pairs = zip(one.streams, other.streams, strict=True)
        if not all(np.array_equal(a.words, b.words) and a.started_at == b.started_at for a, b in pairs):
            return False
    return True


def _load_child(path: Path) -> Trace | None:
    try:
        return Trace.load(path)
    except TraceFormatError:
        return None  # the child was killed before it had written its header: it recorded nothing
