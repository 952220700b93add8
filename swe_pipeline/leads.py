"""Leads for the repair: suspects of two runs compared in the sandbox, or, without a pair, the model's own choice."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from xlocal.ranking.evidence import Evidence, Suspect
from xlocal.ranking.rank import EVIDENCE_SHARE, Context, evidence_scores, get_ranker
from xlocal.ranking.source import SourceIndex
from xlocal.ranking.text import read_issue
from xlocal.swe_pipeline.agent import Assistant, GaveUp, as_data, prompt
from xlocal.swe_pipeline.clone import git
from xlocal.swe_pipeline.conversation import Task
from xlocal.swe_pipeline.workspace import SCRATCH, ToolError, Workspace, quoted
from xlocal.tracer.calltree import Function

KEPT = 60  # suspects taken from a comparison
SHORTLIST = 60  # functions that a model chooses from
NAMED = Evidence("named-by-agent", 1.0, "named by the agent that reproduced the issue")
_IN_TEXT = frozenset({"named-in-issue"})  # counts in the text's share of the fused score
_TRACE_SECONDS = 900.0
_STRUCTURAL = (
    "deleted",
    "inserted",
    "parent-of-deleted",
    "parent-of-inserted",
    "moved",
    "only-buggy",
    "only-reference",
)


@dataclass(frozen=True, slots=True)
class Lead:
    """A function to look at, and why; `line`..`end_line` is 1-based.

    `score` is that of the ranker `fused`, which rests on `evidence`; None for other orders.
    """

    path: str
    qualname: str
    line: int
    end_line: int
    reasons: tuple[str, ...]
    score: float | None = None
    evidence: tuple[Evidence, ...] = ()

    @property
    def name(self) -> str:
        """`path::qualname`."""
        return f"{self.path}::{self.qualname}"


@dataclass(frozen=True, slots=True)
class Leads:
    """Functions in the order of suspicion. `how` says what the order rests on; `noise` is the share of the functions
    executed that the two runs call differently (None without a comparison), `blind` why nothing could be seen."""

    how: str
    leads: tuple[Lead, ...]
    warnings: tuple[str, ...] = ()
    noise: float | None = None
    blind: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For the run's folder."""
        rows = [
            {"path": lead.path, "qualname": lead.qualname, "line": lead.line, "end_line": lead.end_line,
             "reasons": list(lead.reasons)}
            for lead in self.leads
        ]  # fmt: skip
        return {
            "how": self.how,
            "noise": self.noise,
            "blind": self.blind,
            "warnings": list(self.warnings),
            "suspects": rows,
        }


def compare_runs(
    assistant: Assistant,
    *,
    buggy: str,
    references: Sequence[str],
    statement: str,
    ranker: str = "fused",
    encoder: str | None = None,
    timeout: float = 120.0,
) -> Leads | str:
    """Record and compare scripts of the work tree inside its sandbox; the reason when that is impossible.

    The scripts are names in the work tree. `ranker` is one of xlocal's, `encoder` the model that some of them need.
    """
    workspace = assistant.workspace
    what = {"compare": buggy, "references": list(references), "ranker": ranker}
    document = assistant.execute(
        what,
        lambda: _trace(workspace, (buggy, *references), statement, ranker, encoder, timeout),
        kind="locate",
    )
    if "error" in document:
        return str(document["error"])
    return _leads(document, scored=ranker == "fused")


def _trace(
    workspace: Workspace,
    scripts: Sequence[str],
    statement: str,
    ranker: str,
    encoder: str | None,
    timeout: float,
) -> dict[str, Any]:
    workspace.write(f"{SCRATCH}/issue.txt", statement)
    session, answer = f"{SCRATCH}/session", f"{SCRATCH}/session.json"
    # Isolated: the work tree stands on PYTHONPATH, and may be of a package that xlocal itself imports.
    ours = [sys.executable, "-I", "-m", "xlocal"]
    trace = [*ours, "trace", *scripts, "--python", workspace.checkout.python, "--session", session]
    trace += ["--issue", f"{SCRATCH}/issue.txt", "--timeout", f"{timeout:g}", "--budget", "30", "--json"]
    rank = [*ours, "rank", "--session", session, "--ranker", ranker, "--top", str(KEPT), "--json"]
    rank += ["--model", encoder] if encoder else []
    command = f"{quoted(trace)} > /dev/null; status=$?; [ $status -gt 1 ] && exit $status; {quoted(rank)} > {answer}"
    run = workspace.checkout.run(["/bin/bash", "-c", command], timeout=_TRACE_SECONDS)
    if run.timed_out or run.exit_status not in (0, 1):
        lines = [line for line in run.log.splitlines() if line.startswith("xlocal: ")] or run.log.splitlines()[-3:]
        return {"error": "the runs took too long" if run.timed_out else " ".join(lines)[:500] or "no trace"}
    try:
        document = json.loads(workspace.read(answer))
    except (ToolError, ValueError) as error:
        return {"error": f"the comparison left no result: {error}"}
    return _slim(document)


def _slim(document: Any) -> dict[str, Any]:
    """What is used of xlocal's JSON, checked: the file was written where a model's programs run."""
    if not isinstance(document, dict) or document.get("schema") != 1:
        return {"error": "the comparison's result is not of schema 1"}
    rows = []
    for row in document.get("suspects", [])[:KEPT]:
        function = row["function"]
        rows.append(
            {
                "path": str(function["path"]),
                "qualname": str(function["qualname"]),
                "line": int(function["line"]),
                "end_line": int(function["end_line"]),
                "score": float(row["score"]),
                "evidence": [
                    {"kind": str(e["kind"]), "weight": float(e["weight"]), "detail": str(e["detail"])[:300]}
                    for e in row["evidence"]
                ][:6],
            }
        )
    functions = max((int(run.get("functions", 0)) for run in document.get("runs", [])), default=0)
    warnings = [{"slug": str(w["slug"]), "text": str(w["text"])[:500]} for w in document.get("warnings", [])]
    return {"suspects": rows, "functions": functions, "warnings": warnings}


def _leads(document: Mapping[str, Any], *, scored: bool) -> Leads:
    leads = tuple(
        Lead(
            path=row["path"],
            qualname=row["qualname"],
            line=row["line"],
            end_line=row["end_line"],
            reasons=tuple(e["detail"] for e in row["evidence"]),
            score=row["score"] if scored else None,
            evidence=tuple(Evidence(e["kind"], e["weight"], e["detail"]) for e in row["evidence"]),
        )
        for row in document["suspects"]
    )
    structural = sum(any(e["kind"] in _STRUCTURAL for e in row["evidence"]) for row in document["suspects"])
    blind = next((w["text"] for w in document["warnings"] if w["slug"] in ("nothing-seen", "same-behaviour")), None)
    if not leads:
        blind = blind or "no function of the project stands out"
    noise = structural / document["functions"] if document["functions"] >= 10 else 0.0
    return Leads(
        how="the buggy and the reference run compared",
        leads=leads,
        warnings=tuple(w["text"] for w in document["warnings"]),
        noise=round(noise, 3),
        blind=blind,
    )


class ChosenFunctions(BaseModel):
    """The functions most likely to hold the fault, the likeliest first."""

    functions: list[str] = Field(description="names as listed, path::qualname, at most 20, the likeliest first")


def choose_by_model(assistant: Assistant, *, statement: str, why: str) -> Leads:
    """Leads without a comparison: the model chooses among the functions whose text is nearest to the issue's."""
    shortlist = nearest_by_text(assistant.workspace, statement)
    listed = "\n".join(lead.name for lead in shortlist)
    task = Task(
        phase="localize",
        instructions=prompt("localize"),
        prompt=f"{as_data('issue', statement)}\n\nFunctions of the repository:\n{as_data('functions', listed)}",
        answer=ChosenFunctions,
        submit="submit_functions",
        submit_help="Hand in the names.",
        temperature=0.0,
    )
    how = f"the model's choice from the issue's text ({why})"
    try:
        chosen: Sequence[str] = assistant.ask(task).functions
    except GaveUp:
        chosen, how = (), f"likeness to the issue's text alone ({why}; and the model chose none)"
    known = {lead.name: lead for lead in shortlist}
    first = [
        replace(known[name], reasons=("chosen by the model from the issue's text",))
        for name in dict.fromkeys(chosen)
        if name in known
    ]
    names = {lead.name for lead in first}
    return Leads(how=how, leads=(*first, *(lead for lead in shortlist if lead.name not in names)))


class TreeScope:
    """All Python files that git knows in a work tree, tests left out, for the source index."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree

    def relative(self, filename: str) -> str | None:
        path = os.path.relpath(filename, self._tree)
        return None if path.startswith("..") else path.replace(os.sep, "/")

    def files(self) -> Iterator[str]:
        for name in git(self._tree, "ls-files", "-z", "--", "*.py").split("\0"):
            if name and not is_test(name) and not (self._tree / name).is_symlink():
                yield str(self._tree / name)


def is_test(name: str) -> bool:
    """Whether a file of a repository is a test by its name or folder."""
    *folders, base = name.lower().split("/")
    return (
        any(folder in ("test", "tests", "testing", "testdata", "testcases") for folder in folders)
        or base.startswith("test_")
        or base.endswith(("_test.py", "_tests.py"))
        or base in ("conftest.py", "tests.py")
    )


def nearest_by_text(workspace: Workspace, statement: str, *, count: int = SHORTLIST) -> tuple[Lead, ...]:
    """The functions of a work tree whose text is nearest to the issue's; runs nothing of it."""
    index = SourceIndex(TreeScope(workspace.tree))
    suspects = [
        Suspect(function=source.function, line=source.line, end_line=source.end_line, executed=False)
        for source in index.functions()
    ]
    ranked = get_ranker("lexical").rank(suspects, Context(sources=index, issue=read_issue(statement)))
    reason = ("its text is near to the issue's",)
    return tuple(
        Lead(
            item.suspect.function.path, item.suspect.function.qualname, item.suspect.line, item.suspect.end_line, reason
        )
        for item in ranked[:count]
    )


def with_highlighted(leads: Leads, named: Sequence[str], workspace: Workspace, *, after: int = 5) -> Leads:
    """The leads with the functions that the agent named while it reproduced.

    For those that stand out already, that is one more piece of evidence, which counts in their order. Those that are
    missing come after the first few: the comparison saw what ran, the agent only what it read.
    """
    index = SourceIndex(TreeScope(workspace.tree))
    found = [function for text in dict.fromkeys(named) for function in find_functions(index, text)]
    wanted = {*named, *(f"{function.path}::{function.qualname}" for function in found)}
    known = {lead.name for lead in leads.leads}
    added = []
    for function in found:
        source = index.source(function)
        if source is not None and f"{function.path}::{function.qualname}" not in known:
            known.add(f"{function.path}::{function.qualname}")
            added.append(Lead(function.path, function.qualname, source.line, source.end_line, (NAMED.detail,)))
    ranked = _reordered(leads.leads, wanted)
    return replace(leads, leads=(*ranked[:after], *added[:5], *ranked[after:]))


def _reordered(leads: Sequence[Lead], wanted: Set[str]) -> list[Lead]:
    """Leads with the evidence that the agent named some of them, in the order that it makes of the fused scores."""
    more = [
        replace(lead, reasons=(*lead.reasons[:2], NAMED.detail, *lead.reasons[2:]), evidence=(*lead.evidence, NAMED))
        if lead.name in wanted
        else lead
        for lead in leads
    ]
    before, after = (evidence_scores([_suspect(lead) for lead in each], without=_IN_TEXT) for each in (leads, more))
    gained = (EVIDENCE_SHARE * (after - before)).tolist()
    scored = [
        lead if lead.score is None else replace(lead, score=lead.score + gain)
        for lead, gain in zip(more, gained, strict=True)
    ]
    # Other rankers keep their order: their scores are of another kind.
    return sorted(scored, key=lambda lead: 0.0 if lead.score is None else -lead.score)


def _suspect(lead: Lead) -> Suspect:
    return Suspect(Function(lead.path, lead.qualname), lead.line, lead.end_line, evidence=lead.evidence)


def find_functions(index: SourceIndex, text: str) -> list[Function]:
    """Functions that a name means: `path::qualname`, or a dotted name that ends one; at most three."""
    path, _, qualname = text.strip().removesuffix("()").rpartition("::")
    last = qualname.rpartition(".")[2]
    if not last.isidentifier():
        return []
    found = []
    for function in index.named([last]):
        dotted = f"{function.path.removesuffix('.py').replace('/', '.')}.{function.qualname}"
        if path and function.path != path:
            continue
        if function.qualname == qualname or f".{dotted}".endswith(f".{qualname}"):
            found.append(function)
    return found[:3]
