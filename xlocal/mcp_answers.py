"""What the tools of the MCP server answer: rankings, explanations, sources and differences, in an agent's words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from xlocal.ranking.comparison import Localization
from xlocal.ranking.evidence import RankedSuspect
from xlocal.ranking.rank import DEFAULT_RANKER
from xlocal.tracer.errors import UsageError

MOST_SOURCE = 400  # lines of a function


@dataclass(frozen=True)
class EvidenceRow:
    """One observation: what kind, how much it weighs (0 to 1), and a clause for people."""

    kind: str
    weight: float
    detail: str


@dataclass(frozen=True)
class SuspectRow:
    """A function that may be to blame; `line` is 0 where its source is not there."""

    rank: int
    function: str
    path: str
    line: int
    end_line: int
    score: float
    reason: str
    evidence: list[EvidenceRow] = field(default_factory=list)


@dataclass(frozen=True)
class RunRow:
    """One program that was run and how it ended."""

    role: str
    command: str
    ended: str
    calls: int
    functions: int


@dataclass(frozen=True)
class Ranking:
    """The suspects in order of blame, the first of `total`; `warnings` say what could not be seen."""

    session: str
    runs: list[RunRow]
    distance: str
    total: int
    suspects: list[SuspectRow]
    warnings: list[str]
    compared_with: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Explained:
    """A suspect in words: its evidence, calls of both runs side by side, lines taken, values."""

    suspect: SuspectRow
    text: str


@dataclass(frozen=True)
class Source:
    """The source of a function, whole or its beginning."""

    function: str
    path: str
    line: int
    end_line: int
    text: str
    whole: bool


@dataclass(frozen=True)
class Differences:
    """The call tree of only the differences between the buggy run and one reference, as indented text."""

    session: str
    reference: str
    only_buggy: int
    only_reference: int
    exact: bool
    text: str


def ranking_of(found: Localization, session: str, top: int, compared_with: Sequence[str]) -> Ranking:
    """The answer about a session that was ranked, with the first `top` suspects."""
    from xlocal.report import all_warnings, distance, outcome

    return Ranking(
        session=session,
        runs=[RunRow(run.role, run.command, outcome(run), run.calls, run.functions) for run in found.runs],
        distance=distance(found.comparison),
        total=len(found.suspects),
        suspects=[_row(ranked, issue=found.issue, ranker=found.ranker) for ranked in found.suspects[:top]],
        warnings=[f"{warned.slug}: {for_agents(warned.text)}" for warned in all_warnings(found)],
        compared_with=list(compared_with),
    )


def _row(ranked: RankedSuspect, *, issue: str | None = None, ranker: str = DEFAULT_RANKER) -> SuspectRow:
    from xlocal.report import reason

    suspect = ranked.suspect
    return SuspectRow(
        rank=ranked.rank,
        function=suspect.function.qualname,
        path=suspect.function.path,
        line=suspect.line,
        end_line=suspect.end_line,
        score=round(ranked.score, 4),
        reason=reason(ranked, issue=issue, ranker=ranker),
        evidence=[EvidenceRow(item.kind, item.weight, item.detail) for item in suspect.evidence],
    )


def explained(folder: Path, function: str) -> Explained:
    """Why a function of a session is suspected. Raises UsageError, SessionError."""
    from xlocal.explain import explain, print_explanation
    from xlocal.report import make_console

    found = explain(folder, function)
    paper = StringIO()
    print_explanation(found, make_console(paper))
    return Explained(_row(found.ranked), paper.getvalue())


def source_of(folder: Path, function: str) -> Source:
    """The source of a suspect of a session. Raises UsageError when it is not there, SessionError."""
    from xlocal.explain import explain

    found = explain(folder, function)
    source = found.source
    if source is None:
        raise UsageError(f"{function}: its source is not there")
    lines = source.text.splitlines()
    text = "\n".join(lines[:MOST_SOURCE])
    identity = found.ranked.suspect.function
    whole = len(lines) <= MOST_SOURCE
    return Source(identity.qualname, identity.path, source.line, source.end_line, text, whole)


def differences(folder: Path, session: str, *, reference: int, most: int) -> Differences:
    """The differences from one reference, counted from 1, in at most `most` lines. Raises UsageError, SessionError."""
    from xlocal.diff_view import chosen_role, print_diff, read_again, roles_of
    from xlocal.report import make_console, plain

    role = chosen_role(roles_of(folder), reference)
    compared = read_again(folder, (role,), budget=60.0)[0]
    paper = StringIO()
    paper.writelines(f"warning: {warned.slug}: {plain(warned.text)}\n" for warned in compared.warnings)
    print_diff(compared, make_console(paper), most=most)
    difference = compared.difference
    counts = len(difference.deleted), len(difference.inserted)
    return Differences(session, role, *counts, difference.exact, paper.getvalue())


# What the command line calls otherwise; longer texts first.
_TOOLS = {
    "xlocal trace BUGGY REFERENCE": "trace_pair",
    "pytest --xlocal-spectrum": "pytest --xlocal-spectrum",
    "pytest --xlocal": "localize_test",
    "xlocal trace": "trace_pair",
    "xlocal rank": "localize",
    "xlocal explain": "explain",
    "xlocal diff": "diff_tree",
}
_SAID = re.compile(
    "|".join(map(re.escape, _TOOLS)) + r"|--(?:xlocal-)?(scope|timeout|issue|python|ranker|session|top)\b"
)


def for_agents(text: str) -> str:
    """A message of the command line with what an agent has in place of commands and options: tools and parameters."""
    return _SAID.sub(lambda found: found[1] or _TOOLS[found[0]], text)
