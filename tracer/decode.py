"""From the words of a trace to nodes: replays each thread's enters and leaves into one forest of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xlocal.tracer.calltree import CallTree, Function, IntArray, compiled_above, preorder
from xlocal.tracer.trace import LOST, Code, Place, Trace, Words

ENTER, LEAVE, RAISE, RESUME, SWITCH = 0, 1, 2, 3, 4


class RawTree(NamedTuple):
    """All calls of one execution, in preorder under node 0 (the run itself, code -1, parent -1).

    Columns of shape (n,): `code` indexes `codes`, `raised` indexes `exceptions` (-1: returned), `thread` counts the
    threads of all processes from 0 in the order of their start, `entered` grows with the time of the call within
    its thread. What a thread or a process called first hangs under the call that started it.
    """

    codes: tuple[Code, ...]
    exceptions: tuple[str, ...]
    code: IntArray
    parent: IntArray
    raised: IntArray
    thread: IntArray
    entered: IntArray


def decode(traces: Sequence[Trace]) -> RawTree:
    """The one tree of an execution's processes and threads (`traces` as `load_all` gives them)."""
    codes: dict[Code, int] = {}
    exceptions: dict[str, int] = {}
    parts = _Parts()
    starts = _starts(traces)
    for trace in traces:
        known = (*trace.codes, LOST)  # the last is for words whose code's record was lost
        code_of = np.array([codes.setdefault(code, len(codes)) for code in known], np.int32)
        type_of = np.array([exceptions.setdefault(name, len(exceptions)) for name in trace.exceptions], np.int32)
        resumable = np.array([code.kind == "generator" for code in known])
        for stream in trace.streams:
            asked = starts.get((trace.pid, stream.number), [])
            nodes = _replay(stream.words, resumable, np.array([place.words for place in asked], np.int64))
            parts.add(trace, stream.number, stream.started_at, nodes, code_of, type_of, asked)
    return parts.join(tuple(codes), tuple(exceptions))


def _starts(traces: Sequence[Trace]) -> dict[tuple[int, int], list[Place]]:
    """For each (pid, stream), the places in it at which threads and processes were started, in order."""
    places: dict[tuple[int, int], set[Place]] = {}
    for trace in traces:
        if trace.parent is not None:
            places.setdefault((trace.parent[0], trace.parent[1].stream), set()).add(trace.parent[1])
        for stream in trace.streams:
            if stream.started_at is not None:
                places.setdefault((trace.pid, stream.started_at.stream), set()).add(stream.started_at)
    return {key: sorted(found, key=lambda place: place.words) for key, found in places.items()}


class _Nodes(NamedTuple):
    code: IntArray  # the process's own numbers, from 0
    parent: IntArray  # -1: called by nothing recorded in this stream
    raised: IntArray
    at: IntArray  # the innermost call at each asked place, -1: none


class _Parts:
    """The streams of all processes, laid one after another before they become one preorder."""

    def __init__(self) -> None:
        self.count = 1
        self.columns: list[tuple[IntArray, IntArray, IntArray, IntArray]] = []
        self.node_at: dict[tuple[int, Place], int] = {}

    def add(  # noqa: PLR0917 - the columns of one stream
        self,
        trace: Trace,
        number: int,
        started_at: Place | None,
        nodes: _Nodes,
        code_of: IntArray,
        type_of: IntArray,
        asked: Sequence[Place],
    ) -> None:
        base = self.count
        if started_at is not None:
            above = self.node_at.get((trace.pid, started_at), 0)
        else:
            above = self.node_at.get(trace.parent, 0) if trace.parent is not None else 0
        for place, node in zip(asked, nodes.at.tolist(), strict=True):
            self.node_at[trace.pid, place] = base + node if node >= 0 else above
        parent = np.where(nodes.parent < 0, above, nodes.parent + base).astype(np.int32)
        raised = np.where(nodes.raised < 0, -1, type_of[np.clip(nodes.raised, 0, len(type_of) - 1)]).astype(np.int32)
        thread = np.full(len(parent), len(self.columns), np.int32)
        self.columns.append((code_of[nodes.code], parent, raised, thread))
        self.count += len(parent)

    def join(self, codes: tuple[Code, ...], exceptions: tuple[str, ...]) -> RawTree:
        first = np.array([-1], np.int32)
        columns = [(first, first, first, np.zeros(1, np.int32)), *self.columns]
        code, parent, raised, thread = (np.concatenate(column) for column in zip(*columns, strict=True))
        order, parent = preorder(parent)
        return RawTree(codes, exceptions, code[order], parent, raised[order], thread[order], order)


def _replay(words: Words, resumable: NDArray[np.bool_], asked: NDArray[np.int64]) -> _Nodes:
    """The calls of one stream in the order of their first enter."""
    return _Nodes(*_nodes(words.astype(np.int64), resumable, asked))


@compiled_above(200_000)
def _nodes(  # noqa: PLR0912, PLR0915 - one loop for the compiler
    words: NDArray[np.int64], resumable: NDArray[np.bool_], asked: NDArray[np.int64]
) -> Any:
    """Replay enters and leaves. A leave that fits no open call is dropped, one that fits a deeper call ends those
    above it: after a lost event the rest of the tree stays right.

    Each greenlet has a stack of its own, linked through `below`; a new one's first calls hang under the call that
    switched to it. The first switch of a stream names the greenlet that runs already.
    """
    most = len(words)
    lost = len(resumable) - 1
    code = np.zeros(most, np.int32)
    parent = np.zeros(most, np.int32)
    raised = np.full(most, -1, np.int32)
    at = np.full(len(asked), -1, np.int32)
    below = np.full(most, -1, np.int32)  # the call beneath an open one in its stack
    is_open = np.zeros(most, np.bool_)
    begun = np.zeros(most + 1, np.int32)  # serial number of a generator -> its node
    greenlets = 1
    for word in words:
        greenlets += (word & 7) == SWITCH
    top_of = np.full(greenlets + 1, -1, np.int32)
    base_of = np.full(greenlets + 1, -2, np.int32)  # -2: not seen yet
    current = 0  # the greenlet's number; 0 before the first switch
    top = base = -1  # the innermost call, and what calls hang under when there is none
    count = serial = place = index = 0
    while index < most:
        while place < len(asked) and asked[place] <= index:
            at[place] = top if top >= 0 else base
            place += 1
        word = words[index]
        event = word & 7
        what = (word >> 3) - 1
        if what < 0 or what > lost:
            what = lost
        extra = 0
        index += 1
        if event in (RAISE, RESUME, SWITCH):
            if index == most:
                break
            extra = words[index]
            index += 1
        if event == SWITCH:
            if extra > greenlets or extra == 0:
                continue
            if current:
                innermost = top if top >= 0 else base
                top_of[current] = top
                top, base = top_of[extra], base_of[extra]
                if base == -2:
                    base = base_of[extra] = innermost
            else:
                base_of[extra] = base
            current = extra
        elif event == RESUME and 0 < extra <= serial and not is_open[begun[serial - extra + 1]]:
            node = begun[serial - extra + 1]
            below[node] = top
            is_open[node] = True
            top = node
        elif event in (ENTER, RESUME):
            code[count] = what
            parent[count] = top if top >= 0 else base
            if resumable[what]:
                if event == ENTER:
                    serial += 1
                    begun[serial] = count
                elif 0 < extra <= serial:
                    begun[serial - extra + 1] = count
            below[count] = top
            is_open[count] = True
            top = count
            count += 1
        elif event in (LEAVE, RAISE):
            found = top
            while found >= 0 and code[found] != what:
                found = below[found]
            if found >= 0:
                while top != found:
                    is_open[top] = False
                    top = below[top]
                is_open[found] = False
                top = below[found]
                if event == RAISE:
                    raised[found] = extra - 1
    while place < len(asked):
        at[place] = top if top >= 0 else base
        place += 1
    return code[:count], parent[:count], raised[:count], at


SPLICED, IMPORT = -1, -2  # labels of calls that are not nodes: their children rise, or go with them


def fold(raw: RawTree, name: Callable[[Code], Function | None]) -> CallTree:
    """The call tree of the functions that `name` gives for the raw tree's codes; see `fold_nodes`."""
    return fold_nodes(raw, name)[0]


def fold_nodes(raw: RawTree, name: Callable[[Code], Function | None]) -> tuple[CallTree, IntArray]:
    """The call tree, and for each of its nodes the raw node that it was, shape (n,).

    A code named None is spliced out, its calls rising to its caller; module-level import work is left out whole. A
    lambda or comprehension belongs to the function around it: called from there it is no node of its own.
    """
    functions: dict[Function, int] = {}
    label_of = np.full(len(raw.codes) + 1, SPLICED, np.int32)  # the last entry serves node 0, whose code is -1
    inner = np.zeros(len(raw.codes) + 1, np.bool_)
    for number, code in enumerate(raw.codes):
        function = None if code.kind in ("import", "module") else name(code)
        if function is not None:
            label_of[number] = functions.setdefault(function, len(functions))
            inner[number] = code.name.startswith("<")
        elif code.kind == "import":
            label_of[number] = IMPORT
    label = label_of[raw.code]
    kept, parent = _kept(label, inner[raw.code], np.array(raw.parent, np.int32))
    tree = CallTree.from_columns(
        functions=tuple(functions),
        exceptions=raw.exceptions,
        label=label[kept],
        parent=parent,
        raised=raw.raised[kept],
        thread=raw.thread[kept],
    )
    return tree, kept


def call_numbers(raw: RawTree) -> IntArray:
    """For each raw node how many calls of the same code its thread had begun before, shape (n,)."""
    order = np.lexsort((raw.entered, raw.code, raw.thread))
    code, thread = raw.code[order], raw.thread[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (code[1:] != code[:-1]) | (thread[1:] != thread[:-1])
    starts = np.flatnonzero(new)
    run = np.cumsum(new) - 1
    numbers = np.empty(len(order), np.int32)
    numbers[order] = np.arange(len(order)) - starts[run]
    return numbers


def imported_calls(raw: RawTree) -> int:
    """How many calls were module-level import work, which the call tree leaves out."""
    is_import = np.array([code.kind == "import" for code in raw.codes] + [False])
    label = np.where(is_import[raw.code], IMPORT, 0).astype(np.int32)
    kept, _ = _kept(label, np.zeros(len(label), np.bool_), np.array(raw.parent, np.int32))
    return len(label) - len(kept)


@compiled_above(100_000)
def _kept(label: IntArray, inner: NDArray[np.bool_], parent: IntArray) -> tuple[IntArray, IntArray]:
    """The raw nodes that stay, and the parents of those under their new numbers."""
    count = len(label)
    kept = np.zeros(count, np.int32)
    above = np.full(count, -1, np.int32)
    new = np.zeros(count, np.int32)  # the new number of the node itself, or of what its children hang under
    fresh = 1
    for node in range(1, count):
        up = new[parent[node]]
        if label[node] == IMPORT or up == IMPORT:
            new[node] = IMPORT
        elif label[node] == SPLICED or (inner[node] and up > 0 and label[kept[up]] == label[node]):
            new[node] = up
        else:
            new[node] = fresh
            kept[fresh] = node
            above[fresh] = up
            fresh += 1
    return kept[:fresh].copy(), above[:fresh].copy()
