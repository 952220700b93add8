"""A failing test localized: its nearest passing relatives become the references of an ordinary comparison."""

from __future__ import annotations

import dataclasses
import difflib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from xlocal.executed import Executed, Place, TestRun, run_tests
from xlocal.question import Progress, Question, investigate, with_warnings
from xlocal.ranking.comparison import Comparison, Localization
from xlocal.ranking.evidence import Evidence, Suspect
from xlocal.ranking.signals import traceback_findings, weigh
from xlocal.ranking.source import SourceIndex
from xlocal.ranking.spectrum import ochiai
from xlocal.tracer.calltree import Function
from xlocal.tracer.command import parse_command
from xlocal.tracer.errors import ScriptError, UsageError, Warned
from xlocal.tracer.launch import check_interpreter
from xlocal.tracer.scope import Scope, find_scope

MOST_CANDIDATES = 8  # relatives that are run to see which is nearest
COLLECT_SECONDS = 60.0  # that collecting the tests beside a failing one may take
FEW = 3  # functions that set a failing test apart from one relative clearly enough
HALF = 0.5  # of what the nearest relative shares: less is too far off to be one more reference
NEAR = 0.75  # in common, from which one relative may do
MOST_SEEN = 100  # relatives to choose from where all tests were seen already
TEST_FOLDERS = frozenset({"test", "tests"})
TEST_FILES = ("test_*.py", "*_test.py", "conftest.py")


@dataclass(frozen=True, slots=True)
class TestQuestion:
    """A failing test and where to look for passing ones.

    `nodeid` and `relatives` are node ids below `rootdir`. Without it, the path in `nodeid` starts from `cwd`, pytest is
    asked for the rest, and the tests of the same file are the relatives. `collecting` are options to look for tests
    beside the failing one that the run left out; None where it left none out. `unfit` are those known not to pass.
    `options` go to pytest in every run. `references` is how many relatives to compare with at most. `tests` lets the
    tests' own functions be suspects. `whole` is what all tests of a run executed, for spectrum evidence, and `seen`
    what a run of this test with its likely relatives showed.
    """

    __test__ = False

    nodeid: str
    relatives: tuple[str, ...] = ()
    collecting: tuple[str, ...] | None = None
    unfit: tuple[str, ...] = ()
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
    seen: Executed | None = None


@dataclass(frozen=True, slots=True)
class Relative:
    """A passing test chosen as reference: how many of the functions that either test executes both do.

    `missing` counts those that the failing test executes and this one does not. All are None where they were not seen.
    """

    __test__ = False

    nodeid: str
    common: int | None
    either: int | None
    missing: int | None = None

    @property
    def share(self) -> float:
        """The share in common, from 0 to 1; 0 where it was not seen."""
        return (self.common or 0) / (self.either or 1)

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
        raise ScriptError(f"{question.nodeid}: {ended} when it runs with few others: it depends on what ran before it")
    passing = [name for name in relatives if name in runs and runs[name].outcome == "passed"]
    if not passing:
        raise ScriptError(f"{question.nodeid}: no test near it passes, so there is nothing to compare it with")
    command = parse_command(_command(question, question.nodeid), cwd=Path.cwd())
    scope, _ = find_scope([command], given=question.scope, python=question.python, cwd=question.cwd, env=question.env)
    found = nearest(failing, {name: runs[name] for name in passing}, _in_scope(scope, question))
    chosen = references(found, most=question.references)
    compared = chosen or found[:1]  # for want of a relative: what that one alone executes is left out
    asked = Question(
        buggy=_command(question, question.nodeid),
        references=tuple(_command(question, relative.nodeid) for relative in compared),
        scope=question.scope,
        python=question.python,
        cwd=question.cwd,
        env={**question.env, "PYTEST_ADDOPTS": shlex.join(question.options)},
        timeout=question.timeout,
        repeat=question.repeat,
        values=bool(chosen),
        thrifty=True,
    )
    enrich = _enricher(question, failing, related=bool(chosen))
    answer = investigate(asked, session=session, ranker=ranker, enrich=enrich, progress=progress)
    # That a test fails only with the status of pytest is no doubt about the recording.
    return LocalizedTest(with_warnings(answer, tuple(_doubts(failing, found, chosen))), tuple(chosen))


def _doubts(failing: TestRun | None, found: Sequence[Relative], chosen: Sequence[Relative]) -> Iterator[Warned]:
    if failing is None or failing.places is None:
        yield Warned(
            "relatives-unseen",
            "another tool held the profile hook while the tests ran, so the references were chosen by name alone",
        )
    if not chosen:
        text = (
            f"of {len(found)} passing tests near it none executes a function of the project that it executes too, so "
            "the list is of all that it executes, and rests on where it raised more than on a comparison"
        )
        yield Warned("relatives-apart", text)


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


def _run(question: TestQuestion, arguments: Sequence[str], *, timeout: float | None = None) -> Executed:
    return run_tests(
        [*question.options, *arguments],
        python=question.python,
        cwd=question.cwd,
        env={**question.env, "PYTEST_ADDOPTS": ""},
        timeout=timeout or question.timeout,
    )


def look(questions: Sequence[TestQuestion], *, progress: Progress = lambda _: None) -> list[TestQuestion]:
    """The questions, which are of one run, with what a run of all their tests and likely relatives shows.

    One start of pytest then serves for all; where that does not work out, each question looks by itself.
    """
    progress("looking for passing relatives")
    widened = _with_tests_beside(questions)
    if len(questions) < 2 or any(question.whole is not None for question in questions):
        return widened
    wanted = {name for question in widened for name in (question.nodeid, *_likely(question)[:MOST_CANDIDATES])}
    try:
        seen = _run(questions[0], [_argument(questions[0], name) for name in sorted(wanted)])
    except ScriptError:
        return widened
    return [dataclasses.replace(question, seen=seen) for question in widened]


def _with_tests_beside(questions: Sequence[TestQuestion]) -> list[TestQuestion]:
    """The questions with the tests of the same files as relatives too, where the run left tests out."""
    asking = [question for question in questions if question.collecting is not None]
    if not asking:
        return list(questions)
    first = asking[0]
    files = dict.fromkeys(_argument(first, _file(question.nodeid)) for question in asking)
    wanted = ["--collect-only", "-q", *(first.collecting or ()), *files]
    try:
        listed = _run(first, wanted, timeout=min(first.timeout, COLLECT_SECONDS)).collected
    except ScriptError:  # then there are those of the run alone
        return list(questions)
    return [
        dataclasses.replace(question, collecting=None, relatives=_beside(question, listed))
        if question.collecting is not None
        else question
        for question in questions
    ]


def _beside(question: TestQuestion, listed: Sequence[str]) -> tuple[str, ...]:
    unfit = {question.nodeid, *question.unfit}
    more = (name for name in listed if name not in unfit and _file(name) == _file(question.nodeid))
    return tuple(dict.fromkeys((*question.relatives, *more)))


def _likely(question: TestQuestion) -> list[str]:
    return by_name(question.nodeid, {name for name in question.relatives if name != question.nodeid})


def _run_relatives(question: TestQuestion) -> tuple[Mapping[str, TestRun], Sequence[str]]:
    """What the test and its likely relatives execute, and the relatives, most likely first."""
    [question] = _with_tests_beside([question])
    likely = _likely(question)
    whole = question.whole
    if whole is not None and whole.held_by is None and question.nodeid in whole.tests:
        known = [name for name in likely[:MOST_CANDIDATES] if name in whole.tests]
        if len(known) == len(likely[:MOST_CANDIDATES]):
            return whole.tests, likely[:MOST_SEEN]
    likely = likely[:MOST_CANDIDATES]
    seen = question.seen.tests if question.seen is not None else {}
    if question.nodeid in seen and seen[question.nodeid].outcome == "failed":
        return seen, likely
    return _run(question, [_argument(question, name) for name in (question.nodeid, *likely)]).tests, likely


def _argument(question: TestQuestion, nodeid: str) -> str:
    """A node id, or its file, as it is given to pytest."""
    return shlex.split(_command(question, nodeid))[1]


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
        if run.places is None:
            found.append(Relative(name, None, None))
            continue
        there = set(filter(in_scope, run.places))
        found.append(Relative(name, len(here & there), len(here | there), len(here - there)))
    return sorted(found, key=lambda relative: -relative.share)


def references(found: Sequence[Relative], *, most: int) -> list[Relative]:
    """The relatives to compare with, of those that `nearest` sorted: none that has nothing in common.

    One alone where a few functions set the failing test apart from it; others only where they are about as near,
    because what an unlike test executes besides says nothing about the failing one.
    """
    usable = [relative for relative in found if relative.common != 0]
    if not usable or usable[0].common is None:
        return usable[:most]
    first = usable[0]
    if first.missing is not None and 0 < first.missing <= FEW and first.share >= NEAR:
        return [first]
    return [relative for relative in usable if relative.share >= HALF * first.share][:most]


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


def _enricher(
    question: TestQuestion, failing: TestRun | None, *, related: bool
) -> Callable[[Comparison, Scope], Comparison]:
    """Leaves the tests' own functions out, and adds what only the test run tells: where the test raised, and the
    spectrum of the whole run. Where the reference is not `related`, what it alone executes is left out."""

    def enrich(comparison: Comparison, scope: Scope) -> Comparison:
        is_test = test_code(question)
        kept = [suspect for suspect in comparison.suspects if not is_test(suspect.function.path)]
        if not related:
            kept = [suspect for suspect in kept if suspect.executed]
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
