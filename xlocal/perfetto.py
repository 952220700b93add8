"""The runs as a trace of Chrome's trace event format, which Perfetto and vizviewer open: one process for each run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from xlocal.aligned import GONE, MOVED_FROM, MOVED_TO, NEW, SAME, Rows, align
from xlocal.diff_view import Compared, ending
from xlocal.report import plain
from xlocal.tracer.calltree import IntArray

MOST_EVENTS = 400_000  # for each reference, over both runs
CATEGORIES = ("alike", "only in the buggy run", "only in the reference", "moved", "moved", "ended otherwise")
# Names of Chrome's fixed palette; other viewers colour by name.
COLOURS = {GONE: "terrible", NEW: "good", MOVED_FROM: "bad", MOVED_TO: "olive"}


def as_trace_events(compared: Sequence[Compared]) -> tuple[str, int]:
    """The JSON object, and how many calls were left out because they are too many.

    No times are recorded: a tick is one call's begin or end, in the order of the calls. Matched calls of both runs have
    the same ticks, so that what differs stands out as a gap in the other run.
    """
    events: list[dict[str, Any]] = []
    left_out = 0
    for number, each in enumerate(compared):
        rows = align(each.difference)
        kept = chosen(rows)
        left_out += int((rows.left[1:] >= 0).sum() + (rows.right[1:] >= 0).sum()) - _count(rows, kept)
        events += _names(2 * number + 1, each.buggy.role if len(compared) == 1 else f"buggy with {each.reference.role}")
        events += _names(2 * number + 2, each.reference.role)
        events += _calls(rows, kept, each, 2 * number + 1)
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"ticks": "one for the begin and one for the end of each call, in order", "left out": left_out},
    }
    return json.dumps(document, separators=(",", ":")) + "\n", left_out


def chosen(rows: Rows, *, most: int = MOST_EVENTS) -> IntArray:
    """The rows to show: all, or the largest calls and those that hold a difference, each with what it lies in."""
    sides = (rows.left >= 0).astype(np.int64) + (rows.right >= 0)
    if sides.sum() <= most:
        return np.arange(1, len(rows), dtype=np.int32)
    running = np.concatenate(([0], np.cumsum(rows.differs)))
    differing = running[np.arange(len(rows)) + rows.size] - running[:-1]
    # Neither grows towards the leaves, so that the first of this order always form a tree.
    order = np.lexsort((np.arange(len(rows)), -rows.size, differing == 0))
    room = np.cumsum(sides[order]) <= most
    return np.sort(order[room][1:]).astype(np.int32)


def _count(rows: Rows, kept: IntArray) -> int:
    return int((rows.left[kept] >= 0).sum() + (rows.right[kept] >= 0).sum())


def _names(process: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"name": "process_name", "ph": "M", "ts": 0, "pid": process, "tid": 0, "args": {"name": name}}
    yield {"name": "process_sort_index", "ph": "M", "ts": 0, "pid": process, "tid": 0, "args": {"sort_index": process}}


def _calls(rows: Rows, kept: IntArray, compared: Compared, process: int) -> Iterator[dict[str, Any]]:
    """A complete event for each call of both runs. Before row r begin r others, of which all but its r's ancestors
    have ended."""
    start = 2 * np.arange(len(rows)) - rows.depth
    sides = ((rows.left, compared.buggy.tree.thread), (rows.right, compared.reference.tree.thread))
    for row in kept.tolist():
        function, kind = rows.functions[rows.label[row]], int(rows.kind[row])
        for side, (nodes, thread) in enumerate(sides):
            if nodes[row] < 0:
                continue
            event: dict[str, Any] = {
                "name": plain(function.qualname),
                "cat": CATEGORIES[kind],
                "ph": "X",
                "ts": int(start[row]),
                "dur": int(2 * rows.size[row] - 1),
                "pid": process + side,
                "tid": int(thread[nodes[row]]),
                "args": {"file": plain(function.path)},
            }
            told = ending(rows, row, there=bool(side))
            if told:
                event["args"]["ended"] = told
            if kind != SAME:
                event["args"]["difference"] = CATEGORIES[kind]
            if kind in COLOURS:
                event["cname"] = COLOURS[kind]
            yield event
