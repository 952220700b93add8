"""The second pass read back: what chosen calls were given, which lines they ran, and what came out of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from xlocal.tracer.errors import Warned
from xlocal.tracer.trace import MAGIC, RECORD

# What to look at: file, first line and name of a function's code, and ranges of its calls, counted from 0.
Focus = Sequence[tuple[str, int, str, Sequence[tuple[int, int]]]]

MOST_YIELDS = 3  # values of a generator that are shown
UNKNOWN = "?"  # the digest of a value that was not taken, and the end of one with a part that cannot be looked into
CUT = "~"  # the end of a digest of which not all was looked at


class Value(NamedTuple):
    """A value reduced: equal digests mean alike as far as was looked (docs/trace_format.md); `preview` is for eyes."""

    digest: str
    preview: str


NO_VALUE = Value(UNKNOWN, "?")


class CallKey(NamedTuple):
    """One call of a run: the number of its function among those chosen, the name of its thread ('' for the first
    one), how manieth there (from 0)."""

    function: int
    thread: str
    nth: int


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call seen closely.

    `before` and `after` hold its arguments by name when it began and when it ended, and the attributes of `self` as
    `self.NAME`. `out` is what it returned (of a generator: all it yielded, chained). `error` is the type of the
    exception that left it. `lines` maps each line that it ran to how often. `owner` is one number for one `self`, while
    that lives; 0 for no method.
    """

    before: Mapping[str, Value]
    after: Mapping[str, Value]
    out: Value
    error: str | None
    lines: Mapping[int, int]
    owner: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Closeup:
    """The second pass of one execution: its calls in the order in which they ended."""

    calls: Mapping[CallKey, CallRecord]
    warnings: tuple[Warned, ...]

    @classmethod
    def load(cls, path: Path) -> Closeup:
        """Read the records of a second pass from its trace file; one cut short is read as far as it goes."""
        return _Tables().read(path.read_bytes())


class _Tables:
    """The tables that rows refer to by number, each entry written before its first use."""

    def __init__(self) -> None:
        self.values: dict[int, Value] = {0: NO_VALUE}
        self.arguments: dict[int, Mapping[str, Value]] = {0: {}}
        self.lines: dict[int, Mapping[int, int]] = {}
        self.types: dict[int, str] = {1: "?"}
        self.threads: dict[int, str] = {0: ""}
        self.calls: dict[CallKey, CallRecord] = {}
        self.warnings: list[Warned] = []

    def read(self, content: bytes) -> Closeup:
        for kind, payload in _records(content):
            try:
                self._take(kind, json.loads(payload) if kind in b"DALXTVE" else None)
            except (ValueError, KeyError, IndexError, TypeError):
                self.warnings.append(Warned("trace-cut-short", "the second pass was damaged; what came before is used"))
                break
        return Closeup(self.calls, tuple(self.warnings))

    def _take(self, kind: bytes, value: Any) -> None:
        if kind == b"D":
            self.values[value[0]] = Value(value[1], value[2])
        elif kind == b"A":
            pairs = iter(value[1])
            self.arguments[value[0]] = {name: self.values[number] for name, number in zip(pairs, pairs, strict=True)}
        elif kind == b"L":
            pairs = iter(value[1])
            self.lines[value[0]] = dict(zip(pairs, pairs, strict=True))
        elif kind == b"X":
            self.types[value[0]] = value[1]
        elif kind == b"T":
            self.threads[value[0]] = value[1] or f"thread {value[0]}"
        elif kind == b"V":
            for row in value:
                self._row(row)
        elif kind == b"E":
            self.warnings.extend(Warned(slug, text) for slug, text in value["warnings"])

    def _row(self, row: Sequence[Any]) -> None:
        function, thread, index, before, out, after, error, lines, owner = row
        key = CallKey(function, self.threads[thread], index)
        self.calls.pop(key, None)  # a generator's row replaces that of its last yield, at its place in time
        self.calls[key] = CallRecord(
            before=self.arguments[before],
            after=self.arguments[after],
            out=self._out(out),
            error=self.types[error] if error else None,
            lines=self.lines[lines],
            owner=owner,
        )

    def _out(self, out: int | list[int]) -> Value:
        if isinstance(out, int):
            return self.values[out] if out >= 0 else _yielded(-out, [])
        return _yielded(-out[0], [self.values[number].preview for number in out[1:]])


def _yielded(number: int, first: Sequence[str]) -> Value:
    """All that a generator gave, from its checksum and the two bits that say how far it was looked at; `first` is what
    it gave first, one more than is shown."""
    end = UNKNOWN if number & 2 else CUT if number & 1 else ""
    shown = [*first[:MOST_YIELDS], "..."] if len(first) > MOST_YIELDS else first
    return Value(f"{number >> 2:08x}{end}", f"yielded {', '.join(shown)}" if shown else "yielded nothing")


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(MAGIC)
    while at + RECORD.size <= len(content):
        try:
            kind, _, length = RECORD.unpack_from(content, at)
        except struct.error:
            return
        at += RECORD.size
        if at + length > len(content):
            return
        yield kind, content[at : at + length]
        at += length


def steady(repeats: Sequence[Closeup]) -> Closeup:
    """What all repeats of a script saw alike: a value that differs between them is unknown, a call that one of them
    lacks or that ran other lines is left out."""
    first, *others = repeats
    calls: dict[CallKey, CallRecord] = {}
    for key, record in first.calls.items():
        same = [other.calls.get(key) for other in others]
        if all(each is not None and each.lines == record.lines and each.error == record.error for each in same):
            calls[key] = _common(record, [each for each in same if each is not None])
    return Closeup(calls, first.warnings)


def _common(record: CallRecord, others: Sequence[CallRecord]) -> CallRecord:
    out = record.out if all(other.out.digest == record.out.digest for other in others) else NO_VALUE
    before = _alike(record.before, [other.before for other in others])
    after = _alike(record.after, [other.after for other in others])
    return CallRecord(before, after, out, record.error, record.lines, record.owner)


def _alike(values: Mapping[str, Value], others: Sequence[Mapping[str, Value]]) -> Mapping[str, Value]:
    if all(other == values for other in others):
        return values
    missing = Value("", "")
    return {
        name: value if all(other.get(name, missing).digest == value.digest for other in others) else NO_VALUE
        for name, value in values.items()
    }
