"""The tests that judge a patch: which there are, running them on the work tree, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from xlocal.swe_pipeline.agent import Assistant
from xlocal.swe_pipeline.augment import ValidationTest
from xlocal.swe_pipeline.checkout import Checkout
from xlocal.swe_pipeline.covering import Choice
from xlocal.swe_pipeline.leads import Leads
from xlocal.swe_pipeline.reproduce import ScriptPair, run_script
from xlocal.swe_pipeline.workspace import SCRATCH, describe

_OF_BUG = ("reproduction", "validation")  # kinds of tests that can fail because of the bug


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


def run_directly(assistant: Assistant, suite: Suite) -> Results:
    """As `run_suite`, but as one step: the tool around it is recorded already."""
    workspace = assistant.workspace
    checks = []
    scripts = dict(suite.pair.scripts()) if suite.pair else {}
    scripts.update({test.name: test.source for test in suite.validation})
    for name, text in scripts.items():
        workspace.write(f"{SCRATCH}/{name}", text)
        run = workspace.python(f"{SCRATCH}/{name}", timeout=120, env={"PYTHONHASHSEED": "0"})
        kind = "reproduction" if name == "buggy.py" else "reference" if name.startswith("ref") else "validation"
        checks.append(Check(kind, name, run.exit_status == 0, describe(run)))
    if suite.passing:
        seen = _undisturbed(assistant, lambda: _regression(suite).run(workspace.checkout, suite.chosen))
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
