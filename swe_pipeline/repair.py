"""From leads and tests to a patch: candidates are made by the agent, judged by all tests, and the best one is kept."""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from pydantic import BaseModel, Field
from xlocal.ranking.source import SourceIndex
from xlocal.swe_pipeline.agent import Assistant, GaveUp, Rejected, as_data, prompt
from xlocal.swe_pipeline.augment import ValidationTest
from xlocal.swe_pipeline.checkout import Checkout
from xlocal.swe_pipeline.conversation import Task, Tool
from xlocal.swe_pipeline.covering import Choice
from xlocal.swe_pipeline.leads import Lead, Leads, TreeScope, is_test
from xlocal.swe_pipeline.limits import LimitReached
from xlocal.swe_pipeline.patches import check_paths, touched_paths
from xlocal.swe_pipeline.reproduce import Reproduction, ScriptPair, run_script
from xlocal.swe_pipeline.tools import work_tools
from xlocal.swe_pipeline.workspace import SCRATCH, State, describe
from xlocal.tracer.errors import CheckoutError

TEMPERATURE = 0.5
ROUNDS = 8  # patches that may be handed in
_SOURCE_BYTES = 40_000  # of suspects in the prompt
_MODES = re.compile(r"(?m)^(?:old|new) mode \d+\n")
_FILE = re.compile(r"(?m)^(?=diff --git )")
# Left in a work tree by programs that ran there.
_OF_BUG = ("reproduction", "validation")  # kinds of tests that can fail because of the bug
UNPROVEN = "unproven: no test shows the bug"
_LITTER = (".orig", ".rej", ".pyc", ".log", ".swp", ".bak", ".tmp")


class Regression(Protocol):
    """Existing tests near to the suspects, chosen at the base commit alone."""

    def choose(self, checkout: Checkout, places: Sequence[tuple[str, str]]) -> Choice:
        """Test files for functions (path, qualname), the nearest first, and how they were chosen."""
        ...

    def run(self, checkout: Checkout, files: Sequence[str]) -> Mapping[str, bool]:
        """The tests in some files by name, and whether each passes; skipped ones are left out."""
        ...


@dataclass(frozen=True, slots=True)
class Check:
    """One test's outcome: `kind` is reproduction, reference, validation or regression."""

    kind: str
    name: str
    passed: bool
    output: str = ""


@dataclass(frozen=True, slots=True)
class Results:
    """All tests on one state of the work tree."""

    checks: tuple[Check, ...]

    def of(self, *kinds: str) -> tuple[Check, ...]:
        """Those of some kinds."""
        return tuple(check for check in self.checks if check.kind in kinds)

    @property
    def green(self) -> bool:
        """Whether all pass; no tests at all are no proof."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def shows_repair(self, before: Results) -> bool:
        """Whether a test of the bug passes here and failed in `before`: existing tests alone show no repair."""
        failed = {(check.kind, check.name) for check in before.of(*_OF_BUG) if not check.passed}
        return any(check.passed and (check.kind, check.name) in failed for check in self.of(*_OF_BUG))

    def score(self) -> tuple[int, int, int]:
        """To choose by: the reproduction first, then nothing broken, then the validation tests."""
        return (
            sum(check.passed for check in self.of("reproduction")),
            -sum(not check.passed for check in self.of("regression", "reference")),
            sum(check.passed for check in self.of("validation")),
        )

    def summary(self) -> str:
        """For people: `reproduction 1/1, validation 2/3, regression 40/40`."""
        counted = []
        for kind in ("reproduction", "reference", "validation", "regression"):
            of_kind = self.of(kind)
            if of_kind:
                counted.append(f"{kind} {sum(check.passed for check in of_kind)}/{len(of_kind)}")
        return ", ".join(counted) or "no tests"


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


@dataclass
class Suite:
    """The tests that judge a patch. `chosen` are files of existing tests, and `how` tells why those; of them, the tests
    that passed at the base commit (`passing`) count.
    """

    pair: ScriptPair | None = None
    validation: tuple[ValidationTest, ...] = ()
    regression: Regression | None = None
    chosen: tuple[str, ...] = ()
    how: str = ""
    passing: frozenset[str] = field(default_factory=frozenset)


class PatchReady(BaseModel):
    """The repair is done."""

    cause: str = Field(description="the cause of the bug, in one or two sentences")
    function: str = Field(description="the function that was at fault, as path::qualname")
    disputed_tests: list[str] = Field(
        default_factory=list,
        description="validation or existing tests, by name, that you are certain ask for something wrong, such as the "
        "reported behaviour itself",
    )


def baseline(assistant: Assistant, suite: Suite, leads: Leads) -> Results:
    """Run all tests before any repair, and fix which regression tests count."""
    if suite.regression is not None:
        checkout, places = assistant.workspace.checkout, [(lead.path, lead.qualname) for lead in leads.leads[:20]]
        choice = assistant.execute(
            {"choose tests near": [f"{path}::{qualname}" for path, qualname in places]},
            lambda: _undisturbed(assistant, lambda: asdict(_regression(suite).choose(checkout, places))),
        )
        chosen = suite.chosen = tuple(choice["files"])
        outcome = _run_regression(assistant, suite, suite.chosen, "before")
        suite.passing = frozenset(name for name, passed in outcome.items() if passed)
        # A file that took too long, or none of whose tests passed, would only cost time again and again.
        useful = {name.partition("::")[0] for name in suite.passing}
        suite.chosen = tuple(file for file in chosen if file in useful) or suite.chosen
        suite.how = choice["how"] if suite.passing or not chosen else f"{choice['how']}; none of them passes here"
    return run_suite(assistant, suite, what="before", known=suite.passing)


def _regression(suite: Suite) -> Regression:
    if suite.regression is None:
        raise ValueError("no regression tests were asked for")
    return suite.regression


def _run_regression(assistant: Assistant, suite: Suite, files: Sequence[str], what: str) -> Mapping[str, bool]:
    if not files:
        return {}
    outcome: Mapping[str, bool] = assistant.execute(
        {"regression tests": list(files), "what": what},
        lambda: _undisturbed(assistant, lambda: dict(_regression(suite).run(assistant.workspace.checkout, files))),
    )
    return outcome


def _undisturbed(assistant: Assistant, work: Callable[[], Any]) -> Any:
    """What `work` returns, with the work tree put back: what tests leave behind must not get into a patch."""
    workspace = assistant.workspace
    before = workspace.snapshot()
    result = work()
    if workspace.snapshot().digest() != before.digest():
        workspace.restore(before)
    return result


def run_suite(assistant: Assistant, suite: Suite, *, what: str, known: frozenset[str] | None = None) -> Results:
    """Every test on the work tree as it is. `known` are regression tests whose passing was just seen."""
    _write_scripts(assistant, suite)
    checks = []
    for name, text in (suite.pair.scripts() if suite.pair else {}).items():
        run = run_script(assistant, name, text)
        kind = "reproduction" if name == "buggy.py" else "reference"
        checks.append(Check(kind, name, run.exit_status == 0, describe(run)))
    for test in suite.validation:
        run = run_script(assistant, test.name, test.source)
        checks.append(Check("validation", test.name, run.exit_status == 0, describe(run)))
    if suite.passing:
        seen = dict.fromkeys(known, True) if known else _run_regression(assistant, suite, suite.chosen, what)
        checks += [Check("regression", name, bool(seen.get(name))) for name in sorted(suite.passing)]
    return Results(tuple(checks))


def _write_scripts(assistant: Assistant, suite: Suite) -> None:
    """The scripts as they were checked, whatever the agent made of them since."""
    texts = dict(suite.pair.scripts()) if suite.pair else {}
    texts.update({test.name: test.source for test in suite.validation})

    def work() -> Any:
        for name, text in texts.items():
            assistant.workspace.write(f"{SCRATCH}/{name}", text)
        return None

    if texts:
        assistant.execute({"write": sorted(texts)}, work)


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
        return _report(self._direct())

    def _direct(self) -> Results:
        """As `run_suite`, but as one step: the tool around it is recorded already."""
        workspace, suite = self._assistant.workspace, self._suite
        checks = []
        scripts = dict(suite.pair.scripts()) if suite.pair else {}
        scripts.update({test.name: test.source for test in suite.validation})
        for name, text in scripts.items():
            workspace.write(f"{SCRATCH}/{name}", text)
            run = workspace.python(f"{SCRATCH}/{name}", timeout=120, env={"PYTHONHASHSEED": "0"})
            kind = "reproduction" if name == "buggy.py" else "reference" if name.startswith("ref") else "validation"
            checks.append(Check(kind, name, run.exit_status == 0, describe(run)))
        if suite.passing:
            seen = _undisturbed(self._assistant, lambda: _regression(suite).run(workspace.checkout, suite.chosen))
            checks += [Check("regression", name, bool(seen.get(name))) for name in sorted(suite.passing)]
        return Results(tuple(checks))

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


def clean_patch(diff: str) -> tuple[str, tuple[str, ...]]:
    """A diff without what no repair needs, and the names of what was left out, some with a reason.

    That is: tests, scripts and litter; links that leave the work tree, files that steer git, and changes of a file's
    mode, which would do more to the user's tree than its text says.
    """
    pieces = [piece if piece.endswith("\n") else piece + "\n" for piece in _FILE.split(diff) if piece.strip()]
    # By file: one that becomes a link is a deletion and a creation.
    left_out: dict[str, str] = {}
    for piece in pieces:
        names = touched_paths(piece)
        reasons = [reason for name in names if (reason := _why_unwanted(name, piece)) is not None]
        left_out.update(dict.fromkeys(names, reasons[0]) if reasons else {})
    kept = [piece for piece in pieces if not any(name in left_out for name in touched_paths(piece))]
    modes = {name: " (its mode)" for piece in kept if _MODES.search(_head(piece)) for name in touched_paths(piece)}
    text = "".join(_MODES.sub("", _head(piece)) + piece[len(_head(piece)) :] for piece in kept)
    check_paths(text)
    return text, tuple(f"{name}{reason}" for name, reason in {**modes, **left_out}.items())


def new_files(diff: str) -> tuple[str, ...]:
    """The files that a diff makes, by name."""
    pieces = [piece for piece in _FILE.split(diff) if "\nnew file mode" in _head(piece)]
    return tuple(name for piece in pieces for name in touched_paths(piece))


def _head(piece: str) -> str:
    """What stands before the first hunk of a file's diff."""
    return re.split(r"(?m)^(?=@@ |GIT binary patch)", piece, maxsplit=1)[0]


def _why_unwanted(name: str, piece: str) -> str | None:
    """A reason to leave a file out, empty where its name tells it; None when it is to be kept."""
    if name.rpartition("/")[2].startswith(".git"):
        return " (steers git)"
    if re.search(r"(?m)^(new file mode|new mode|index \S+) 160000$", _head(piece)):
        return " (another repository)"
    if re.search(r"(?m)^(new file mode|index \S+) 120000$", _head(piece)) and _leaves_tree(name, piece):
        return " (a link out of the work tree)"
    if _MODES.search(_head(piece)) and _head(piece) == piece and "\nrename " not in piece:
        return " (its mode)"
    return "" if _is_unwanted(name, piece) else None


def _leaves_tree(name: str, piece: str) -> bool:
    """Whether the new target of a link is outside of the work tree, or in git's own folder."""
    targets = re.findall(r"(?m)^\+(?!\+\+ )(.*)$", piece[len(_head(piece)) :])
    places = [posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) for target in targets]
    return any(place.startswith("/") or {"..", ".git"} & set(place.split("/")) for place in places)


def _is_unwanted(name: str, piece: str) -> bool:
    new = "\nnew file mode" in piece
    binary = "\nGIT binary patch" in piece or "\nBinary files" in piece
    script = new and "/" not in name and name.endswith((".py", ".sh", ".txt", ".md", ".patch", ".diff"))
    folder = name.split("/", maxsplit=1)[0]
    return is_test(name) or binary or script or name.endswith(_LITTER) or folder == SCRATCH
