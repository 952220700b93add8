"""More tests for a repair: what the reproduction looked at is the context of three tests, written without tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field
from xlocal.ranking.source import SourceIndex
from xlocal.swe_pipeline.agent import Assistant, GaveUp, as_data, prompt
from xlocal.swe_pipeline.checkout import Run
from xlocal.swe_pipeline.conversation import Task
from xlocal.swe_pipeline.leads import Leads, TreeScope, find_functions
from xlocal.swe_pipeline.reproduce import ScriptPair, run_script
from xlocal.swe_pipeline.trajectory import EFFECTS, digest, read_trajectory
from xlocal.swe_pipeline.workspace import SCRATCH, ToolError, describe, shorten

TEMPERATURES = (0.4, 0.6, 0.8)
_SOURCE_BYTES = 40_000  # of context for one test
_TRAIL_BYTES = 30_000  # of the reproduction's record

_DOES_NOT_RUN = frozenset(
    ("SyntaxError", "IndentationError", "TabError", "NameError", "ModuleNotFoundError", "ImportError")
)

Checks = Literal["the reported behaviour", "related behaviour", "behaviour to keep"]


@dataclass(frozen=True, slots=True)
class ValidationTest:
    """A test script. `checks` says what it checks, `kind` of which sort it is; `fails_before`: at the base commit."""

    name: str
    source: str
    checks: str
    kind: Checks
    temperature: float
    fails_before: bool
    mended: bool = False

    @property
    def label(self) -> str:
        """One line for people and models."""
        when = "fails before the repair" if self.fails_before else "passes before the repair"
        return f"{self.name}: {self.kind}: {self.checks} ({when})"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A test that was not kept, and why."""

    name: str
    why: str


class ProgramContext(BaseModel):
    """What the reproduction found to matter."""

    files: list[str] = Field(description="paths in the repository, at most 8", default_factory=list)
    functions: list[str] = Field(description="as path::qualname or dotted names, at most 20", default_factory=list)


class TestScript(BaseModel):
    """One test."""

    __test__ = False  # not one of ours, whatever its name

    source: str = Field(description="the whole Python script")
    checks: str = Field(description="in one sentence, what it checks")
    kind: Checks = Field(description="what the checked behaviour is to the issue")


def augment(
    assistant: Assistant, statement: str, pair: ScriptPair, leads: Leads
) -> tuple[tuple[ValidationTest, ...], tuple[Dropped, ...]]:
    """Three tests around the issue, those that cannot be right left out with the reason.

    A test that fails at the base commit because it does not run, or that gives another result each time, is sent back
    once. Raises LimitReached.
    """
    found = _extract_context(assistant, statement)
    source = _source_of(assistant, found, leads)
    kept: list[ValidationTest] = []
    dropped: list[Dropped] = []
    for number, temperature in enumerate(TEMPERATURES, 1):
        name = f"validation_{number}.py"
        try:
            script = _write(assistant, statement, pair, source, kept, number=number, temperature=temperature)
            outcome = _settle(assistant, name, script, temperature)
        except GaveUp as error:
            outcome = Dropped(name, str(error))
        if isinstance(outcome, Dropped):
            dropped.append(outcome)
            assistant.trajectory.note("dropped", {"test": name}, outcome.why)
        else:
            kept.append(outcome)
    return tuple(kept), tuple(dropped)


def _extract_context(assistant: Assistant, statement: str) -> ProgramContext:
    trail = shorten("\n".join(_trail(assistant)), _TRAIL_BYTES)
    task = Task(
        phase="context",
        instructions=prompt("context"),
        prompt=f"{as_data('issue', statement)}\n\nThe record:\n{as_data('record', trail or '(nothing was looked at)')}",
        answer=ProgramContext,
        submit="submit_context",
        submit_help="Hand in the files and functions.",
        temperature=0.0,
    )
    try:
        found: ProgramContext = assistant.ask(task)
    except GaveUp:
        found = ProgramContext()  # the suspects alone are context too
    return found


def _trail(assistant: Assistant) -> Iterator[str]:
    """What the reproduction did, a line for each step and the start of what came back.

    Only steps of tools count: how often a server was busy must not change what is asked.
    """
    for step in read_trajectory(assistant.trajectory.file).steps:
        if step.phase != "reproduce" or step.kind not in EFFECTS or "tool" not in step.request:
            continue
        arguments = " ".join(f"{key}={str(value)[:300]!r}" for key, value in step.request["args"].items())
        yield f"{step.request['tool']} {arguments}\n{str(step.result)[:600]}"


def _source_of(assistant: Assistant, found: ProgramContext, leads: Leads) -> str:
    """Source of the functions named, then of the first suspects, then the starts of the files, while there is room."""
    workspace = assistant.workspace
    index = SourceIndex(TreeScope(workspace.tree))
    texts: dict[str, str] = {}
    named = [function for name in found.functions[:20] for function in find_functions(index, name)]
    for function in (*named, *((lead.path, lead.qualname) for lead in leads.leads[:8])):
        path, qualname = function
        name = f"{path}::{qualname}"
        source = next((s for s in index.functions(path) if s.function.qualname == qualname), None)
        if source is not None and name not in texts:
            texts[name] = source.text
    for path in found.files[:8]:
        try:
            texts.setdefault(path, shorten(workspace.read(path), 6000))
        except ToolError:
            continue  # the model named a file that is not there
    chosen, size = [], 0
    for name, text in texts.items():
        size += len(text)
        if size > _SOURCE_BYTES:
            break
        chosen.append(f"# {name}\n{text}")
    return "\n\n".join(chosen)


def _write(
    assistant: Assistant,
    statement: str,
    pair: ScriptPair,
    source: str,
    kept: Sequence[ValidationTest],
    *,
    number: int,
    temperature: float,
) -> TestScript:
    scripts = [as_data("script", f"{name}:\n{text}") for name, text in pair.scripts().items()]
    others = "\n".join(f"- {test.checks}" for test in kept) or "- (none yet)"
    text = [as_data("issue", statement), *scripts, as_data("source", source or "(no source is known)")]
    text.append(f"Tests that exist already check:\n{others}\n\nWrite test {number} of {len(TEMPERATURES)}.")
    task = Task(
        phase="augment",
        instructions=prompt("augment"),
        prompt="\n\n".join(text),
        answer=TestScript,
        submit="submit_test",
        submit_help="Hand in the test.",
        temperature=temperature,
    )
    answer: TestScript = assistant.ask(task)
    return answer


def _settle(assistant: Assistant, name: str, script: TestScript, temperature: float) -> ValidationTest | Dropped:
    """Run a test at the base commit; send it back once when it cannot be right."""
    for mended in (False, True):
        runs = _run_twice(assistant, name, script.source)
        fault = _fault(name, runs)
        if fault is None:
            return ValidationTest(
                name=name,
                source=script.source,
                checks=script.checks,
                kind=script.kind,
                temperature=temperature,
                fails_before=runs[0].exit_status != 0,
                mended=mended,
            )
        if not mended:
            script = _mend(assistant, script, runs, fault)
    return Dropped(name, fault or "")


def _run_twice(assistant: Assistant, name: str, source: str) -> list[Run]:
    def write() -> Any:
        assistant.workspace.write(f"{SCRATCH}/{name}", source)
        return None

    assistant.execute({"write": name, "text": digest(source)}, write)
    return [run_script(assistant, name, source, seed=seed) for seed in ("0", "1")]


def _fault(name: str, runs: Sequence[Run]) -> str | None:
    """Why a test cannot be right, whatever the project does; None when it can."""
    first, second = runs
    last = next((line for line in reversed(first.log.splitlines()) if line.strip()), "")
    kind = last.partition(":")[0].strip()
    if first.timed_out:
        return "it does not end"
    if (first.exit_status == 0) != (second.exit_status == 0):
        return "it gives another result each time"
    # Raised by the script itself: the same error raised inside the project may be the very bug.
    own = [line for line in first.log.splitlines() if line.lstrip().startswith('File "')][-1:]
    if kind in _DOES_NOT_RUN and own and f"/{name}" in own[0]:
        return f"it does not run: {last[:200]}"
    if first.exit_status is None:
        return "it was ended by a signal"
    return None


def _mend(assistant: Assistant, script: TestScript, runs: Sequence[Run], fault: str) -> TestScript:
    shown = f"{as_data('script', script.source)}\n\nThe fault: {fault}\n\n{as_data('output', describe(runs[0]))}"
    task = Task(
        phase="mend",
        instructions=prompt("mend"),
        prompt=shown,
        answer=TestScript,
        submit="submit_test",
        submit_help="Hand in the repaired test.",
        temperature=0.0,
    )
    answer: TestScript = assistant.ask(task)
    return answer
