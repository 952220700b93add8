"""From leads and tests to a patch: candidates are made by the agent, judged by all tests, and the best one is kept."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, Field
from xlocal.ranking.source import SourceIndex
from xlocal.swe_pipeline.agent import Assistant, GaveUp, Rejected, as_data, prompt
from xlocal.swe_pipeline.checks import Check, Results, Suite, baseline, run_directly, run_suite
from xlocal.swe_pipeline.cleaning import clean_patch, new_files
from xlocal.swe_pipeline.conversation import Task, Tool
from xlocal.swe_pipeline.leads import Lead, Leads, TreeScope
from xlocal.swe_pipeline.limits import LimitReached
from xlocal.swe_pipeline.reproduce import Reproduction
from xlocal.swe_pipeline.tools import work_tools
from xlocal.swe_pipeline.workspace import SCRATCH, State
from xlocal.tracer.errors import CheckoutError

TEMPERATURE = 0.5
ROUNDS = 8  # patches that may be handed in
_SOURCE_BYTES = 40_000  # of suspects in the prompt
UNPROVEN = "unproven: no test shows the bug"


@dataclass(frozen=True, slots=True)
class Patch:
    """A repair as a unified diff (empty when there is none), its tests, and what was left out of it.

    `ended` says why the work stopped: green, unproven, a limit, or the model gave up. `proven`: a test that failed
    before the patch passes with it.
    """

    diff: str
    results: Results
    ended: str
    left_out: tuple[str, ...] = ()
    candidate: int = 1
    proven: bool = False

    @property
    def green(self) -> bool:
        """Whether it passes all tests, and one of them shows that the bug is gone."""
        return bool(self.diff) and self.proven and self.results.green

    @property
    def verdict(self) -> str:
        """`green`, `unproven` (all tests pass, and none shows the bug), `not green`, or `no patch`."""
        if not self.diff:
            return "no patch"
        if not self.results.green:
            return "not green"
        return "green" if self.proven else "unproven"

    @property
    def new_files(self) -> tuple[str, ...]:
        """The files that the patch makes."""
        return new_files(self.diff)

    @property
    def changed_lines(self) -> int:
        """Added and removed lines."""
        lines = self.diff.splitlines()
        return sum(line[:1] in "+-" and not line.startswith(("+++", "---")) for line in lines if line)


class PatchReady(BaseModel):
    """The repair is done."""

    cause: str = Field(description="the cause of the bug, in one or two sentences")
    function: str = Field(description="the function that was at fault, as path::qualname")
    disputed_tests: list[str] = Field(
        default_factory=list,
        description="validation or existing tests, by name, that you are certain ask for something wrong, such as the "
        "reported behaviour itself",
    )


def repair(
    assistant: Assistant,
    statement: str,
    *,
    reproduction: Reproduction | None,
    suite: Suite,
    places: Leads | None = None,
    actions: int = 200,
    top: int = 20,
    candidates: int = 1,
) -> tuple[Patch, Results]:
    """Repair the work tree; returns the best patch and the results before it.

    Without `reproduction` the agent gets the issue alone, and existing tests are chosen near to `places`. Up to
    `candidates` repairs are made independently, until one passes all tests, one of which failed before; the tests
    choose, then the smaller patch.
    A limit ends the work, and the best so far is kept.
    """
    near = reproduction.leads if reproduction is not None else places or Leads("the issue alone", ())
    before = baseline(assistant, suite, near)
    start = assistant.state()
    best: Patch | None = None
    for number in range(1, candidates + 1):
        if number > 1:
            _go_back(assistant, start)
        patch = _candidate(assistant, statement, reproduction, suite, before, actions=actions, top=top)
        patch = replace(patch, candidate=number)
        if best is None or _is_better(patch, best):
            best = patch
        if best.green or (patch.ended.startswith("limit") and "actions" not in patch.ended):
            break
    if best is None:
        raise ValueError("at least one candidate is needed")
    return _finish(assistant, suite, best, before), before


def _go_back(assistant: Assistant, start: State) -> None:
    def work() -> Any:
        assistant.workspace.restore(start)
        return start.digest()

    assistant.execute({"go back": "to the state before the repair"}, work)


def _is_better(patch: Patch, other: Patch) -> bool:
    if bool(patch.diff) != bool(other.diff):
        return bool(patch.diff)
    mine, others = ((it.green, it.results.score(), -it.changed_lines) for it in (patch, other))
    return mine > others


def _candidate(
    assistant: Assistant,
    statement: str,
    reproduction: Reproduction | None,
    suite: Suite,
    before: Results,
    *,
    actions: int,
    top: int,
) -> Patch:
    tries = _Tries(assistant, suite, before)
    localized = reproduction is not None
    leads = reproduction.leads.leads[:top] if reproduction is not None else ()
    task = Task(
        phase="repair",
        instructions=prompt(
            "repair" if localized else "vanilla", scratch=SCRATCH, python=assistant.workspace.checkout.python
        ),
        prompt=_prompt(assistant, statement, reproduction, suite, before, leads),
        answer=PatchReady,
        submit="submit_patch",
        submit_help="Hand in the repair that is in the work tree now.",
        temperature=TEMPERATURE,
        actions=actions,
        tools=(*_following(assistant, leads), Tool(tries.run_tests, writes=True)),
        attempts=ROUNDS,
        check=tries.check,
    )
    try:
        assistant.ask(task)
        ended = tries.ended()
    except GaveUp as error:
        ended = f"gave up: {error}"
    except LimitReached as error:
        ended = f"limit: {error}"
    finally:
        assistant.suspect = ""
    tries.keep_what_is_there()
    best = tries.best or Patch("", before, ended)
    return replace(best, ended=ended)


def _following(assistant: Assistant, leads: Sequence[Lead]) -> Iterator[Tool]:
    """The tools, telling the user which suspect the agent is looking at."""
    for tool in work_tools(assistant.workspace):
        if tool.function.__name__ == "view":
            yield Tool(_noticing(assistant, leads, tool), tool.writes)
        else:
            yield tool


def _noticing(assistant: Assistant, leads: Sequence[Lead], tool: Tool) -> Any:
    @functools.wraps(tool.function)
    def view(path: str, start: int = 1, end: int = 0) -> str:
        seen = [
            lead for lead in leads if lead.path == path and lead.end_line >= start and (not end or lead.line <= end)
        ]
        if seen:
            assistant.suspect = seen[0].name
        return tool.function(path, start, end)

    return view


def _prompt(
    assistant: Assistant,
    statement: str,
    reproduction: Reproduction | None,
    suite: Suite,
    before: Results,
    leads: Sequence[Lead],
) -> str:
    parts = [as_data("issue", statement)]
    if reproduction is not None:
        parts.append(f"Suspicious functions, from {reproduction.leads.how}:\n" + _listed(assistant, leads))
    labels = {test.name: test.label for test in suite.validation}
    lines = [f"- {check.kind} {labels.get(check.name, check.name)}: {_word(check)}" for check in before.of(
        "reproduction", "reference", "validation")]  # fmt: skip
    kept = len(before.of("regression"))
    if kept:
        lines.append(f"- {kept} existing tests near to the suspects, all passing")
    parts.append("The tests before the repair:\n" + ("\n".join(lines) or "- none"))
    for check in before.of("reproduction"):
        parts.append(f"Output of {SCRATCH}/{check.name}:\n{as_data('output', check.output)}")
    if suite.pair is not None:
        parts.append(as_data("script", f"{SCRATCH}/buggy.py:\n{suite.pair.buggy}"))
    return "\n\n".join(parts)


def _word(check: Check) -> str:
    return "passes" if check.passed else "fails"


def _listed(assistant: Assistant, leads: Sequence[Lead]) -> str:
    """The list with its reasons, and the source of the first ones while there is room."""
    index = SourceIndex(TreeScope(assistant.workspace.tree))
    lines, size = [], 0
    for number, lead in enumerate(leads, 1):
        reasons = "; ".join(lead.reasons[:3]) or "executed in the buggy run"
        lines.append(f"{number}. {lead.name} (lines {lead.line}-{lead.end_line}): {reasons}")
        source = next((s for s in index.functions(lead.path) if s.function.qualname == lead.qualname), None)
        if source is not None and size + len(source.text) <= _SOURCE_BYTES:
            size += len(source.text)
            lines.append(as_data("source", source.text))
    return "\n".join(lines) or "(none)"


class _Tries:
    """Judges each state that is handed in, and keeps the best."""

    def __init__(self, assistant: Assistant, suite: Suite, before: Results) -> None:
        self._assistant = assistant
        self._suite = suite
        self._before = before
        self._rounds = 0
        self.best: Patch | None = None

    def run_tests(self) -> str:
        """Run all tests that judge the repair: the reproduction, validation tests, and the nearest existing tests."""
        return _report(run_directly(self._assistant, self._suite))

    def check(self, answer: PatchReady) -> None:
        """Raise Rejected with what fails."""
        diff, left_out = clean_patch(self._assistant.state().diff)
        if not diff.strip():
            raise Rejected("The work tree holds no change to the project's code: repair it with `edit` first.")
        self._rounds += 1
        results = run_suite(self._assistant, self._suite, what=f"try {self._rounds}")
        self._keep(Patch(diff, results, "", left_out, proven=results.shows_repair(self._before)))
        disputed = frozenset(answer.disputed_tests)
        failing = [check for check in results.checks if not check.passed]
        if [c for c in failing if not (c.kind in ("validation", "regression") and c.name in disputed)]:
            raise Rejected(f"Not yet:\n{_report(results)}")

    def ended(self) -> str:
        """How an accepted patch stands."""
        results = self.best.results if self.best is not None else Results(())
        if results.green:
            return "green" if results.shows_repair(self._before) else UNPROVEN
        return "accepted with disputed tests" if results.checks else "accepted without any test"

    def _keep(self, patch: Patch) -> None:
        if self.best is None or _is_better(patch, self.best):
            self.best = patch

    def keep_what_is_there(self) -> None:
        """After a limit: a change that nobody handed in is still better than none; it is not tested any more."""
        diff, left_out = clean_patch(self._assistant.state().diff)
        if self.best is None and diff.strip():
            self.best = Patch(diff, Results(()), "", left_out)


def _report(results: Results) -> str:
    failing = [check for check in results.checks if not check.passed]
    outputs = "\n\n".join(f"{check.kind} {check.name} fails:\n{check.output}" for check in failing[:6])
    more = f"\n... and {len(failing) - 6} more fail" if len(failing) > 6 else ""
    return f"{results.summary()}\n\n{outputs}{more}".rstrip()


def _finish(assistant: Assistant, suite: Suite, patch: Patch, before: Results) -> Patch:
    """The patch on a fresh work tree: without tests and scripts it must still apply and give the same results."""
    diff, left_out = patch.diff, patch.left_out
    if not diff.strip():
        return patch

    def work() -> Any:
        assistant.workspace.clean()
        try:
            assistant.workspace.checkout.apply(diff)
        except CheckoutError as error:
            return str(error)
        return ""

    try:
        problem = assistant.execute({"apply": "the final patch"}, work)
    except LimitReached:
        return patch  # as it was seen last; time is up
    if problem:
        return replace(patch, diff="", left_out=(*left_out, problem), ended=f"the patch does not apply: {problem}")
    try:
        results = run_suite(assistant, suite, what="final")
    except LimitReached:
        results = patch.results  # as it was seen last; time is up
    found = replace(patch, results=results, proven=results.shows_repair(before))
    if found.ended in ("green", UNPROVEN) and found.verdict not in found.ended:
        return replace(found, ended=f"on a fresh work tree the patch gives {results.summary()}")
    return found
