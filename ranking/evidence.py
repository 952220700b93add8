"""Evidence: what the comparison of two runs says about each function."""

from __future__ import annotations

from dataclasses import dataclass, field

from xlocal.tracer.calltree import Function


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation about a function: its kind, its weight in this trace (0..1], and one plain clause."""

    kind: str
    weight: float
    detail: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """A function that may be to blame, before it is ranked.

    `line`..`end_line` is its source range (1-based, decorators included; 0, 0 when the source is not there).
    `executed` says whether the buggy run called it; `calls` how often (buggy run, best reference). `depth` is its
    least depth in the buggy tree (-1: not executed there), `first_call` its first preorder position (-1 likewise).
    `callees` are the functions that it calls directly in the buggy run.
    """

    function: Function
    line: int
    end_line: int
    executed: bool = True
    calls: tuple[int, int] = (0, 0)
    depth: int = -1
    first_call: int = -1
    callees: tuple[Function, ...] = field(default=(), repr=False)
    evidence: tuple[Evidence, ...] = ()

    def has(self, *kinds: str) -> bool:
        """True when any evidence is of one of `kinds`."""
        return any(item.kind in kinds for item in self.evidence)


Named = tuple[tuple[str, str], ...]
Counted = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CallView:
    """One call seen closely, as it is shown: `number` counts the function's calls in its run from 1.

    `given` are its arguments, `left` the arguments and attributes of `self` that it changed, `lines` how often it ran
    each line. `returned` is empty when the exception `raised` left it. `hidden` names what differs from its partner
    although its text is the same: NAME of `given`, `then NAME` of `left`, `outcome`. `unsure` names likewise what looks
    alike, but was not looked at whole.
    """

    number: int
    given: Named
    left: Named
    returned: str
    raised: str | None
    lines: Counted
    hidden: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionView:
    """One function seen closely in the buggy run and a reference: the lines of all its calls that were seen, and the
    pairs of aligned calls that tell most."""

    function: Function
    reference: str
    lines: tuple[Counted, Counted]
    pairs: tuple[tuple[CallView, CallView], ...]


@dataclass(frozen=True, slots=True)
class RankedSuspect:
    """A suspect with its place: `rank` from 1, `score` in the ranker's own units (higher is worse news)."""

    rank: int
    score: float
    suspect: Suspect
