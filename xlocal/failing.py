"""A failing test localized: its nearest passing relatives become the references of an ordinary comparison."""

from __future__ import annotations

import dataclasses
import difflib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from xlocal.executed import Executed, Place, TestRun, run_tests
from xlocal.question import Progress, Question, investigate, with_warnings
from xlocal.ranking.evidence import Evidence, Suspect
from xlocal.ranking.localize import Comparison, Localization
from xlocal.ranking.signals import traceback_findings, weigh
from xlocal.ranking.source import SourceIndex
from xlocal.ranking.spectrum import ochiai
from xlocal.tracer.calltree import Function
from xlocal.tracer.command import parse_command
from xlocal.tracer.errors import ScriptError, UsageError, Warned
from xlocal.tracer.launch import check_interpreter
from xlocal.tracer.scope import Scope, find_scope

MOST_CANDIDATES = 8  # relatives that are run to see which is nearest
MOST_SEEN = 100  # relatives to choose from where all tests were seen already
TEST_FOLDERS = frozenset({"test", "tests"})
TEST_FILES = ("test_*.py", "*_test.py", "conftest.py")


@dataclass(frozen=True, slots=True)
class TestQuestion:
    """A failing test and where to look for passing ones.

    `nodeid` and `relatives` are node ids below `rootdir`. Without it, the path in `nodeid` starts from `cwd`, pytest is
    asked for the rest, and the tests of the same file are the relatives. `options` go to pytest in every run.
    `references` is how many relatives to compare with. `tests` lets the tests' own functions be suspects. `whole` is
    what all tests of a run executed, for spectrum evidence.
    """

    __test__ = False

    nodeid: str
    relatives: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    rootdir: Path | None = None
    scope: tuple[str, ...] = ()
    python: str = sys.executable
    cwd: Path = field(default_factory=Path.cwd)
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 300.0
    repeat: int = 2
    references: int = 2
    tests: bool = False
    test_files: tuple[str, ...] = TEST_FILES
    whole: Executed | None = None


@dataclass(frozen=True, slots=True)
class Relative:
    """A passing test chosen as reference: how many of the functions that either test executes both do."""

    __test__ = False

    nodeid: str
    common: int | None
    either: int | None

    def __str__(self) -> str:
        if self.common is None:
            return f"{self.nodeid} (a relative by name)"
        return f"{self.nodeid} ({self.common} of {self.either} functions in common)"


@dataclass(frozen=True, slots=True)
class LocalizedTest:
    """The answer for one test, and what it was compared with."""

    found: Localization
    relatives: tuple[Relative, ...]


def localize_test(
    question: TestQuestion, *, session: Path, ranker: str = "fused", progress: Progress = lambda _: None
) -> LocalizedTest:
    """Localize a failing test by its nearest passing relatives, and keep the session.

    Raises ScriptError when the test passes by itself, when no relative passes, or when pytest does not run them;
    otherwise what `investigate` raises.
    """
    progress("looking for passing relatives")
    question = dataclasses.replace(question, python=check_interpreter(question.python).path)
    if question.rootdir is None:
        question = _collected(question)
    runs, relatives = _run_relatives(question)
    failing = runs.get(question.nodeid)
    if failing is not None and failing.outcome != "failed":
        ended = "is skipped" if failing.outcome == "other" else "passes"
        raise ScriptError(f"{question.nodeid} {ended} when it runs with few others: it depends on what ran before it")
    passing = [name for name in relatives if name in runs and runs[name].outcome == "passed"]
    if not passing:
        raise ScriptError(f"{question.nodeid}: no test near it passes, so there is nothing to compare it with")
    command = parse_command(_command(question, question.nodeid), cwd=Path.cwd())
    scope, _ = find_scope([command], given=question.scope, python=question.python, cwd=question.cwd, env=question.env)
    chosen = nearest(failing, {name: runs[name] for name in passing}, _in_scope(scope, question))[: question.references]
    asked = Question(
        buggy=_command(question, question.nodeid),
        references=tuple(_command(question, relative.nodeid) for relative in chosen),
        scope=question.scope,
        python=question.python,
        cwd=question.cwd,
        env={**question.env, "PYTEST_ADDOPTS": shlex.join(question.options)},
        timeout=question.timeout,
        repeat=question.repeat,
    )
    enrich = _enricher(question, failing)
    found = investigate(asked, session=session, ranker=ranker, enrich=enrich, progress=progress)
    # That a test fails only with the status of pytest is no doubt about the recording.
    return LocalizedTest(with_warnings(found, _doubts(failing)), tuple(chosen))


def _doubts(failing: TestRun | None) -> tuple[Warned, ...]:
    if failing is not None and failing.places is not None:
        return ()
    text = "another tool held the profile hook while the tests ran, so the references were chosen by their names alone"
    return (Warned("relatives-unseen", text),)


def _collected(question: TestQuestion) -> TestQuestion:
    """The question with pytest's own node ids and root folder, and the tests of the same file as relatives."""
    nodeid = absolute_nodeid(question.nodeid, cwd=question.cwd)
    file, colons, test = nodeid.partition("::")
    listed = _run(question, ["--collect-only", "-q", file])
    root = Path(listed.rootdir or question.cwd)
    nodeid = f"{PurePosixPath(os.path.relpath(question.cwd / file, root))}{colons}{test}"
    if nodeid not in listed.collected:
        near = difflib.get_close_matches(nodeid, listed.collected, n=1, cutoff=0.3)
        raise UsageError(f"{question.nodeid}: no such test" + (f"; did you mean {near[0]}?" if near else ""))
    relatives = question.relatives or tuple(name for name in listed.collected if name != nodeid)
    return dataclasses.replace(question, nodeid=nodeid, relatives=relatives, rootdir=root)


def _run(question: TestQuestion, arguments: Sequence[str]) -> Executed:
    return run_tests(
        [*question.options, *arguments],
        python=question.python,
        cwd=question.cwd,
        env={**question.env, "PYTEST_ADDOPTS": ""},
        timeout=question.timeout,
    )


def _run_relatives(question: TestQuestion) -> tuple[Mapping[str, TestRun], Sequence[str]]:
    """What the test and its likely relatives execute, and the relatives, most likely first."""
    likely = by_name(question.nodeid, question.relatives)
    whole = question.whole
    if whole is not None and whole.held_by is None and question.nodeid in whole.tests:
        return whole.tests, likely[:MOST_SEEN]
    likely = likely[:MOST_CANDIDATES]
    wanted = [word for name in (question.nodeid, *likely) for word in shlex.split(_command(question, name))[1:]]
    return _run(question, wanted).tests, likely


def _command(question: TestQuestion, nodeid: str) -> str:
    """`pytest NODEID` as it is typed in `cwd`."""
    file, colons, test = nodeid.partition("::")
    path = os.path.join(question.rootdir or question.cwd, file)
    shown = os.path.relpath(path, Path.cwd())
    return shlex.join(["pytest", f"{path if shown.startswith(os.pardir) else shown}{colons}{test}"])


def by_name(nodeid: str, others: Iterable[str]) -> list[str]:
    """Node ids in the order of their kinship with `nodeid`: another parameter of the same test, then the same class,
    file and folder, and within each the most similar names."""
    return sorted(others, key=lambda other: (_distance(nodeid, other), -_likeness(nodeid, other), other))


def _distance(nodeid: str, other: str) -> int:
    for number, kin in enumerate((_function, _class, _file, _folder)):
        if kin(nodeid) == kin(other):
            return number
    return 4


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def _class(nodeid: str) -> str:
    return _function(nodeid).rpartition("::")[0]


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _folder(nodeid: str) -> str:
    return str(PurePosixPath(_file(nodeid)).parent)


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def nearest(
    failing: TestRun | None, passing: Mapping[str, TestRun], in_scope: Callable[[Place], bool]
) -> list[Relative]:
    """The passing tests in the order of the share of functions that they have in common with the failing one; those
    whose functions were not seen keep their order and come last."""
    if failing is None or failing.places is None:
        return [Relative(name, None, None) for name in passing]
    here = set(filter(in_scope, failing.places))
    found = []
    for name, run in passing.items():
        there = None if run.places is None else set(filter(in_scope, run.places))
        found.append(Relative(name, *((None, None) if there is None else (len(here & there), len(here | there)))))
    return sorted(found, key=lambda relative: -(relative.common or 0) / (relative.either or 1))


def _in_scope(scope: Scope, question: TestQuestion) -> Callable[[Place], bool]:
    is_test = test_code(question)
    paths: dict[str, bool] = {}

    def check(place: Place) -> bool:
        if place[0] not in paths:
            path = scope.relative(place[0])
            paths[place[0]] = path is not None and not is_test(path)
        return paths[place[0]]

    return check


def test_code(question: TestQuestion) -> Callable[[str], bool]:
    """Tells whether a path (as of `Function.path`) belongs to the tests: by its name, or by the folder of tests that
    the failing test lies in."""
    above = PurePosixPath(_file(question.nodeid)).parent.parts
    depth = max((number for number, part in enumerate(above, start=1) if part in TEST_FOLDERS), default=0)
    folder = "/".join(above[:depth])

    def check(path: str) -> bool:
        if question.tests:
            return False
        name = path.rpartition("/")[2]
        return any(fnmatch(name, pattern) for pattern in (*question.test_files, "conftest.py")) or (
            bool(folder) and f"/{folder}/" in f"/{path}"
        )

    return check


test_code.__test__ = False  # type: ignore[attr-defined]  # it is no test


def _enricher(question: TestQuestion, failing: TestRun | None) -> Callable[[Comparison, Scope], Comparison]:
    """Leaves the tests' own functions out, and adds what only the test run tells: where the test raised, and the
    spectrum of the whole run."""

    def enrich(comparison: Comparison, scope: Scope) -> Comparison:
        is_test = test_code(question)
        kept = [suspect for suspect in comparison.suspects if not is_test(suspect.function.path)]
        index = SourceIndex(scope)
        more: dict[Function, list[Evidence]] = {}
        raised = failing.raised if failing is not None else ()
        raising = {f: finding for f, finding in traceback_findings(raised, index) if not is_test(f.path)}
        executed = sum(suspect.executed for suspect in kept)
        for function, items in weigh({"traceback": raising}, executed).items():
            more.setdefault(function, []).extend(items)
        if question.whole is not None:
            for function, item in _spectrum(question.whole, index, _in_scope(scope, question)).items():
                more.setdefault(function, []).append(item)
        runs = comparison.runs
        if raised:
            first = dataclasses.replace(runs[0], exception=raised[0].type, message=raised[0].message)
            runs = (first, *runs[1:])
        suspects = tuple(add_evidence(suspect, more.get(suspect.function, ())) for suspect in kept)
        return dataclasses.replace(comparison, runs=runs, suspects=suspects)

    return enrich


def add_evidence(suspect: Suspect, more: Sequence[Evidence]) -> Suspect:
    """The suspect with further evidence, heaviest first."""
    if not more:
        return suspect
    evidence = sorted((*suspect.evidence, *more), key=lambda item: (-item.weight, item.kind))
    return dataclasses.replace(suspect, evidence=tuple(evidence))


def _spectrum(whole: Executed, index: SourceIndex, in_scope: Callable[[Place], bool]) -> Mapping[Function, Evidence]:
    named: dict[Place, Function | None] = {}

    def functions(run: TestRun) -> frozenset[Function]:
        for place in run.places or ():
            if place not in named:
                named[place] = index.locate(*place) if in_scope(place) else None
        return frozenset(f for place in run.places or () if (f := named[place]) is not None)

    seen = [(run.outcome, functions(run)) for run in whole.tests.values() if run.places is not None]
    failing = [executed for outcome, executed in seen if outcome == "failed"]
    return ochiai(failing, [executed for outcome, executed in seen if outcome == "passed"]) if failing else {}


def absolute_nodeid(nodeid: str, *, cwd: Path) -> str:
    """A node id with the path of its file from `cwd` normalised; UsageError when there is no such file."""
    file, colons, test = nodeid.partition("::")
    if not colons or not test:
        raise UsageError(f"{nodeid}: name one test, as in tests/test_a.py::test_b")
    if not (cwd / file).is_file():
        raise UsageError(f"{nodeid}: no such test file (looked in {cwd})")
    return f"{os.path.relpath(os.path.abspath(cwd / file), cwd)}{colons}{test}"
