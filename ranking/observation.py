"""What was seen of one script: its call tree, its ending, and which functions behave unlike from run to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xlocal.ranking.diff import TreeDiff, diff
from xlocal.ranking.source import SourceIndex
from xlocal.tracer.calltree import CallTree, Function, IntArray
from xlocal.tracer.decode import call_numbers, decode, fold, fold_nodes
from xlocal.tracer.errors import Warned
from xlocal.tracer.record import Recording
from xlocal.tracer.scope import Scope
from xlocal.tracer.trace import Code, Trace, UncaughtException, same_calls

NOISE_BUDGET = 1e9  # cells: telling noise apart needs no optimal mapping


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """One script's runs, seen as one.

    `tree` is the first run's. `noisy` are the functions whose calls differ between runs of this same script;
    `steady` those called in every run. `uncaught` is the exception that ended the script, then its causes, with its
    frames still as code locations. `outside` names executed files out of the scope.
    For each node of the tree, shape (n,): `code` indexes `codes` (-1: node 0), `index` counts the calls of that code
    before it in its thread, `visible` says whether a second pass can find it (a function's own call, in a thread of the
    first process that is the first or has a name of its own). `threads` are these names, by the tree's numbers.
    """

    recording: Recording
    tree: CallTree
    codes: tuple[Code, ...]
    code: IntArray
    index: IntArray
    visible: NDArray[np.bool_]
    threads: tuple[str | None, ...]
    noisy: frozenset[Function]
    steady: frozenset[Function]
    uncaught: tuple[UncaughtException, ...]
    outside: tuple[str, ...]
    warnings: tuple[Warned, ...]

    @property
    def role(self) -> str:
        """What the script is for: buggy, or reference and its number."""
        return self.recording.role


def observe(
    recording: Recording, index: SourceIndex, scope: Scope, *, progress: Callable[[str, float], None] | None = None
) -> Observation:
    """Read a recording's traces and tell noise apart by comparing the script's runs with one another.

    Raises TraceFormatError for a trace that cannot be read.
    """
    name = namer(recording, index, scope)
    first, *others = [run.traces() for run in recording.executions]
    raw = decode(first)
    tree, nodes = fold_nodes(raw, name)
    plain = np.array([not code.name.startswith("<") for code in raw.codes] + [False])
    threads = _thread_names(first)
    again = np.array([name is not None for name in threads])
    noisy: set[Function] = set()
    steady = set(tree.counts())
    for traces in others:
        if same_calls(first, traces):
            continue
        other = fold(decode(traces), name)
        steady &= other.counts().keys()
        noisy |= unlike(diff(tree, other, budget=NOISE_BUDGET, progress=progress))
    return Observation(
        recording=recording,
        tree=tree,
        codes=raw.codes,
        code=raw.code[nodes],
        index=call_numbers(raw)[nodes],
        visible=plain[raw.code[nodes]] & again[tree.thread],
        threads=threads,
        noisy=frozenset(noisy),
        steady=frozenset(steady),
        uncaught=first[0].uncaught,
        outside=tuple(sorted({path for trace in first for path in trace.outside})),
        warnings=tuple(_warnings(recording, first, noisy)),
    )


def _thread_names(traces: Sequence[Trace]) -> tuple[str | None, ...]:
    """What a second pass knows each thread by: '' for the first, its name where no other has it, else None."""
    own = Counter(stream.name for stream in traces[0].streams if stream.number)
    names = ["" if not s.number else s.name if s.name and own[s.name] == 1 else None for s in traces[0].streams]
    return (*names, *(None for trace in traces[1:] for _ in trace.streams))


def namer(recording: Recording, index: SourceIndex, scope: Scope) -> Callable[[Code], Function | None]:
    """Names the functions of the project; those that the script itself defines count only if it is in scope alone."""
    script = recording.command.file
    scripts = {str(script), str(script.resolve())} if script is not None else set()
    scripts -= {root.directory for root in scope.roots}

    def name(code: Code) -> Function | None:
        if code.filename in scripts:
            return None
        return index.locate(code.filename, code.line, code.name)

    return name


def unlike(noise: TreeDiff) -> set[Function]:
    """Functions with a call in one tree that has no partner in the other, their callers among them."""
    found: set[Function] = set()
    for tree, nodes in ((noise.buggy, noise.deleted), (noise.reference, noise.inserted)):
        touched = np.concatenate([nodes, tree.parent[nodes]])
        labels = np.unique(tree.label[touched[touched > 0]])
        found.update(tree.functions[label] for label in labels.tolist())
    return found


def _warnings(recording: Recording, traces: Sequence[Trace], noisy: set[Function]) -> list[Warned]:
    found = list(recording.warnings)
    found += [Warned(w.slug, f"{recording.role}: {w.text}") for w in traces[0].warnings]
    if noisy:
        shown = ", ".join(str(function.qualname) for function in sorted(noisy)[:3])
        more = f" and {len(noisy) - 3} more" if len(noisy) > 3 else ""
        text = (
            f"{recording.role}: the script's runs differ from one another in {shown}{more}; "
            "what differs so is left out of the evidence"
        )
        found.append(Warned("runs-differ", text))
    return found
