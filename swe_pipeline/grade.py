"""Grading: a patch is applied in a prepared checkout, the issue's own tests run, and the benchmark's rules judge.

Everything is in the file layout of the benchmark's harness, so that its tools read it. Results of a local checkout are
no leaderboard results; `calibrate` says which tests behave here at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xlocal.swe_pipeline.checkout import Checkout, Run
from xlocal.swe_pipeline.environments import locked
from xlocal.swe_pipeline.httpbin import served
from xlocal.swe_pipeline.issue import Gold
from xlocal.swe_pipeline.official import APPLIED, END, NOT_APPLIED, START, TIMED_OUT, official, passed, test_output
from xlocal.swe_pipeline.predictions import Prediction
from xlocal.swe_pipeline.specs import revision, spec_of
from xlocal.tracer.errors import CheckoutError, PatchError, UsageError

FORMAT = 1
TIMEOUT = 1800.0  # the harness's own
LOGS = Path("logs") / "run_evaluation"
CALIBRATION = "calibration.json"
_MODIFIED = re.compile(r"^--- a/(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the tests said of one patch. `log` is in the harness's format; `statuses` is empty when nothing was tested.

    `problem` says in a line why not: the patch does not apply, or the tests took too long.
    """

    applied: bool
    timed_out: bool
    seconds: float
    log: str
    statuses: Mapping[str, str]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Statuses of the tests of an issue in this place, without its fix (`before`) and with it (`gold`)."""

    id: str
    before: Mapping[str, str]
    gold: Mapping[str, str]
    seconds: float

    def behaving(self, tests: Gold) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The fail-to-pass and pass-to-pass tests that do here what their names say."""
        fail = (test for test in tests.fail_to_pass if not passed(test, self.before) and passed(test, self.gold))
        keep = (test for test in tests.pass_to_pass if passed(test, self.before) and passed(test, self.gold))
        return tuple(fail), tuple(keep)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The grade of one patch.

    `resolved` is the official rule over all tests. `practical` is the same rule over the tests that behave here, None
    without calibration or when no fail-to-pass test behaves. `valid` says whether all fail-to-pass tests behave here,
    None without calibration. `tests` has the form of report.json's `tests_status`.
    """

    id: str
    model: str
    patch_exists: bool
    applied: bool
    resolved: bool
    practical: bool | None
    valid: bool | None
    seconds: float
    tests: Mapping[str, Any]
    problem: str | None = None

    @property
    def completed(self) -> bool:
        """Whether the tests ran to their end."""
        return self.applied and self.problem is None


def evaluate(checkout: Checkout, gold: Gold, patch: str, *, timeout: float = TIMEOUT) -> Evaluation:
    """Run the issue's tests on the base commit with `patch`, in the order of the official harness.

    The patch comes first, then the test files are put back and the test patch applied, so that a patch cannot soften
    the tests. The work tree is reset before and after. Raises CheckoutError when the checkout itself fails.
    """
    checkout.reset()
    try:
        try:
            checkout.apply(patch)
        except PatchError as error:
            return Evaluation(False, False, 0.0, f"{NOT_APPLIED}:\n{error}\n", {}, str(error))
        said = _put_tests(checkout, gold.test_patch)
        command = [*spec_of(checkout.issue).test, *official().directives(checkout.issue.repository, gold.test_patch)]
        with served(checkout) as variables:
            run = checkout.run(command, timeout=timeout, env=variables)
    finally:
        checkout.reset()
    return _evaluation(checkout.issue.repository, command, said, run, timeout)


def _put_tests(checkout: Checkout, test_patch: str) -> str:
    """Restore the test files and apply the test patch; a failure is said in the log, as officially, and tests go on."""
    files = [name.split("\t")[0] for name in _MODIFIED.findall(test_patch)]
    said = ""
    if files:
        said = checkout.run(["git", "checkout", checkout.issue.base_commit, "--", *files], timeout=300).log
    try:
        checkout.apply(test_patch)
    except PatchError as error:
        said += f"error: test patch: {error}\n"
    return said


def _evaluation(repository: str, command: Sequence[str], said: str, run: Run, timeout: float) -> Evaluation:
    head = f"{APPLIED}\n{said}+ : '{START}'\n+ {' '.join(command)}\n"
    if run.timed_out:
        problem = f"the tests took longer than {timeout:g} seconds"
        log = f"{head}{run.log}\n{TIMED_OUT}\n\nTimeout error: {timeout:g} seconds exceeded.\n"
        return Evaluation(True, True, run.seconds, log, {}, problem)
    log = f"{head}{run.log}\n+ : '{END}'\n"
    return Evaluation(True, False, run.seconds, log, read_log(repository, log))


def read_log(repository: str, log: str) -> dict[str, str]:
    """Status of each test in a log of the harness's format; empty when nothing was tested."""
    output = test_output(log)
    return {} if output is None else official().statuses(repository, output)


def judge(
    prediction: Prediction, gold: Gold, evaluation: Evaluation, calibration: Calibration | None = None
) -> Verdict:
    """The verdict on an evaluation, by the rules of the benchmark's own package."""
    rules = official()
    tests = rules.report(evaluation.statuses, gold.fail_to_pass, gold.pass_to_pass)
    tested = bool(evaluation.applied and evaluation.problem is None)
    practical = valid = None
    if calibration is not None:
        fail, keep = calibration.behaving(gold)
        valid = bool(fail) and len(fail) == len(gold.fail_to_pass)
        if fail:
            practical = tested and rules.resolved(rules.report(evaluation.statuses, fail, keep))
    return Verdict(
        id=prediction.id,
        model=prediction.model,
        patch_exists=bool(prediction.patch),
        applied=evaluation.applied,
        resolved=tested and rules.resolved(tests),
        practical=practical,
        valid=valid,
        seconds=round(evaluation.seconds, 2),
        tests=tests if tested else {},
        problem=evaluation.problem,
    )


def grade(
    checkout: Checkout,
    gold: Gold,
    prediction: Prediction,
    *,
    timeout: float = TIMEOUT,
    calibration: Calibration | None = None,
) -> tuple[Verdict, Evaluation]:
    """Evaluate and judge one prediction. One without a patch is not run: it cannot resolve anything."""
    if not (prediction.patch or "").strip():
        nothing = Evaluation(False, False, 0.0, "", {}, "there is no patch")
        return judge(prediction, gold, nothing, calibration), nothing
    evaluation = evaluate(checkout, gold, prediction.patch or "", timeout=timeout)
    return judge(prediction, gold, evaluation, calibration), evaluation


def calibrate(checkout: Checkout, gold: Gold, *, folder: Path, timeout: float = TIMEOUT) -> Calibration:
    """Run the tests without and with the issue's own fix, once: the result is kept in `folder` and read from there.

    A result for another test command, environment or patch is not used. Raises CheckoutError when the checkout fails,
    and UsageError when the gold patch does not apply or the tests do not end in time: then nothing is kept.
    """
    file = folder / CALIBRATION
    identity = _identity(checkout, gold)
    if (stored := _stored(file, identity)) is not None:
        return stored
    before = evaluate(checkout, gold, "", timeout=timeout)
    after = evaluate(checkout, gold, gold.patch, timeout=timeout)
    for name, evaluation in (("without its fix", before), ("with its fix", after)):
        if evaluation.problem:
            problem = evaluation.problem.removeprefix(f"{gold.id}: ")
            raise UsageError(f"{gold.id}: cannot be calibrated: {name}, {problem}")
    found = Calibration(gold.id, before.statuses, after.statuses, round(before.seconds + after.seconds, 2))
    write_text(folder / "calibration" / "before.txt", before.log)
    write_text(folder / "calibration" / "gold.txt", after.log)
    write_text(file, json.dumps({"format": FORMAT, "identity": identity, **asdict(found)}, indent=1) + "\n")
    return found


def _identity(checkout: Checkout, gold: Gold) -> str:
    """A digest of all that the result rests on."""
    issue = checkout.issue
    facts = [FORMAT, type(checkout).__name__, revision(), spec_of(issue).facts(), issue.repository, issue.base_commit]
    text = json.dumps([*facts, asdict(gold)], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _stored(file: Path, identity: str) -> Calibration | None:
    try:
        document = json.loads(file.read_text("utf-8"))
        if document["identity"] != identity:
            return None
        return Calibration(document["id"], document["before"], document["gold"], document["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        # Not there, or damaged: it can be made again.
        return None


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the work tree of a local checkout's folder; waits for whoever grades there now."""
    with locked(folder / ".work.lock"):
        yield


def write_text(file: Path, text: str) -> None:
    """Write a file whole or not at all, with its folders. Raises CheckoutError when the disk refuses."""
    new = file.with_name(f".{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, "utf-8", errors="surrogateescape")
        new.replace(file)
    except OSError as error:
        raise CheckoutError(f"{file}: cannot be written: {error.strerror}") from error
