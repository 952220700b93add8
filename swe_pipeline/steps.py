"""The steps of a batch that need no model: preparing, validating and grading.

A step that grades hands each job what grades its own issue; the jobs of all other steps know of none of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from xlocal.swe_pipeline.checkout import Checkout, LocalCheckout, Workplace
from xlocal.swe_pipeline.grade import TIMEOUT, alone, calibrate, grade
from xlocal.swe_pipeline.issue import GRADING_FIELDS, Gold, Issue
from xlocal.swe_pipeline.official import official
from xlocal.swe_pipeline.predictions import Prediction
from xlocal.swe_pipeline.reports import LABELS, write_instance
from xlocal.swe_pipeline.specs import revision, spec_of
from xlocal.tracer.errors import CheckoutError, UsageError

Backend = Literal["local", "docker"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
_NAMED = 5  # at most, of the issues that a complaint is about
_RULE = 2  # of `validate`; raise it when its verdicts come to mean something else
# A clone, an installation, a disk: what fails once may work the next time.
FAULTS: tuple[type[BaseException], ...] = (CheckoutError, OSError, MemoryError)


def facts_of(issue: Issue) -> dict[str, Any]:
    """What the checkout of an issue rests on. Of one that cannot be installed, the reason, which its job tells."""
    try:
        spec = json.loads(json.dumps(spec_of(issue).facts()))
    except UsageError as error:
        spec = str(error)
    return {"commit": issue.base_commit, "revision": revision(), "spec": spec}


@contextlib.contextmanager
def opened(issue: Issue, workplace: Workplace, backend: Backend) -> Iterator[Checkout]:
    """The prepared checkout of an issue, for the caller alone: in `workplace`, or a container of the official image."""
    if backend == "docker":
        from xlocal.swe_pipeline.container import DockerCheckout

        with DockerCheckout(issue) as container:
            yield container
        return
    checkout = LocalCheckout(issue, workplace)
    checkout.prepare()
    with alone(checkout.folder):
        yield checkout


def digest(value: Any) -> str:
    """A short name for a value of plain JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class PrepareStep:
    """Clone and install: the later steps find the checkout ready.

    With `anew`, a checkout that is gone since is made again: what rests on the result of this step would be, too.
    """

    workplace: Workplace
    anew: bool = False
    name: str = "prepare"
    faults: tuple[type[BaseException], ...] = FAULTS

    @property
    def arguments(self) -> Mapping[str, Any]:
        """None that a resumed run must share."""
        return {}

    def job(self, issue: Issue) -> PrepareJob:
        """The preparation of one issue."""
        return PrepareJob(issue, self.workplace, self.anew)


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """Prepares one checkout."""

    issue: Issue
    workplace: Workplace
    anew: bool

    @property
    def facts(self) -> Mapping[str, Any]:
        """Commit and installation, and where it is; with `anew` also whether it is there."""
        facts = {**facts_of(self.issue), "root": str(self.workplace.root.absolute())}
        return {**facts, "there": self._is_there()} if self.anew else facts

    def _is_there(self) -> bool:
        try:
            return LocalCheckout(self.issue, self.workplace).is_prepared()
        except UsageError:
            # Without facts to install it by it cannot be; the job says so.
            return False

    def __call__(self, folder: Path, former: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Whether it had to be made."""
        return {"made": LocalCheckout(self.issue, self.workplace).prepare()}


@dataclass(frozen=True, slots=True)
class ValidateStep:
    """Run the tests of each issue without and with its own fix."""

    workplace: Workplace
    gold: Mapping[str, Gold] = field(repr=False)
    timeout: float = TIMEOUT
    backend: Backend = "local"
    name: str = "validate"
    faults: tuple[type[BaseException], ...] = FAULTS

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The timeout, and where the tests run."""
        return {"timeout": self.timeout, "backend": self.backend}

    def job(self, issue: Issue) -> ValidateJob:
        """The validation of one issue."""
        return ValidateJob(issue, self.workplace, gold_of(self.gold, issue), self.timeout, self.backend)


@dataclass(frozen=True, slots=True)
class ValidateJob:
    """Calibrates one issue and says whether its gold patch resolves it and an empty one does not."""

    issue: Issue
    workplace: Workplace
    gold: Gold
    timeout: float
    backend: Backend

    @property
    def facts(self) -> Mapping[str, Any]:
        """The checkout, all that grades, and which rule makes the verdicts."""
        return {**facts_of(self.issue), "gold": digest(asdict(self.gold)), "rule": _RULE}

    def __call__(self, folder: Path, former: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Raise UsageError without a fail-to-pass test; else tell, as plain JSON, how both patches do.

        `gold` and `empty`: whether each resolves here; `official`: whether gold does by all tests; counts of tests.

        A patch resolves here when every fail-to-pass test passes with it, and it breaks no pass-to-pass test that
        passes without it; an empty one breaks none. The counts are of the tests that behave, which say more: some
        fail-to-pass tests of the benchmark failed there for want of a network, and pass here without any patch.
        """
        if not self.gold.fail_to_pass:
            raise UsageError(f"{self.issue.id}: there is no fail-to-pass test to judge by (FAIL_TO_PASS is empty)")
        with opened(self.issue, self.workplace, self.backend) as checkout:
            found = calibrate(checkout, self.gold, folder=self.workplace.root / self.issue.id, timeout=self.timeout)
        rules = official()
        fail, keep = found.behaving(self.gold)
        reports = {
            name: rules.report(statuses, self.gold.fail_to_pass, self.gold.pass_to_pass)
            for name, statuses in (("before", found.before), ("gold", found.gold))
        }
        kept = set(reports["before"]["PASS_TO_PASS"]["success"])
        broken = sorted(kept & set(reports["gold"]["PASS_TO_PASS"]["failure"]))
        return {
            "gold": _all_pass(reports["gold"]) and not broken,
            "empty": _all_pass(reports["before"]),
            "official": rules.resolved(reports["gold"]),
            "fail_to_pass": [len(fail), len(self.gold.fail_to_pass)],
            "pass_to_pass": [len(keep), len(self.gold.pass_to_pass)],
            "broken": broken[:10],
            "seconds": found.seconds,
        }


def _all_pass(report: Mapping[str, Any]) -> bool:
    """Whether there are fail-to-pass tests and all of them pass."""
    found = report["FAIL_TO_PASS"]
    return bool(found["success"]) and not found["failure"]


@dataclass(frozen=True, slots=True)
class GradeStep:
    """Grade a patch for each issue: one of `predictions`, or else what the step `solve` came to.

    The harness's files go under `out`, for the run `run_id`. With `calibrated`, tests that do not behave here are told
    apart, which takes two further runs of the tests, once.
    """

    workplace: Workplace
    gold: Mapping[str, Gold] = field(repr=False)
    out: Path
    run_id: str
    predictions: Mapping[str, Prediction] | None = field(default=None, repr=False)
    model: str = "xlocal"
    timeout: float = TIMEOUT
    calibrated: bool = True
    backend: Backend = "local"
    name: str = "grade"
    faults: tuple[type[BaseException], ...] = FAULTS

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The timeout, whether it is calibrated, and where the tests run."""
        return {"timeout": self.timeout, "calibrated": self.calibrated, "backend": self.backend}

    def job(self, issue: Issue) -> GradeJob:
        """The grading of one issue."""
        given = (
            None
            if self.predictions is None
            else self.predictions.get(issue.id) or Prediction(issue.id, self.model, None)
        )
        return GradeJob(
            issue,
            self.workplace,
            gold_of(self.gold, issue),
            given,
            self.model,
            self.out,
            self.run_id,
            self.timeout,
            self.calibrated,
            self.backend,
        )


@dataclass(frozen=True, slots=True)
class GradeJob:
    """Grades one patch, and writes the harness's files about it."""

    issue: Issue
    workplace: Workplace
    gold: Gold
    given: Prediction | None
    model: str
    out: Path
    run_id: str
    timeout: float
    calibrated: bool
    backend: Backend

    @property
    def facts(self) -> Mapping[str, Any]:
        """The checkout, all that grades, and the patch."""
        patch = None if self.given is None else self.given.patch
        return {**facts_of(self.issue), "gold": digest(asdict(self.gold)), "patch": digest(patch)}

    def __call__(self, folder: Path, former: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """The verdict as plain JSON."""
        prediction = self.given or Prediction(self.issue.id, self.model, former.get("solve", {}).get("patch"))
        kept = self.workplace.root / self.issue.id
        with opened(self.issue, self.workplace, self.backend) as checkout:
            calibration = None
            if self.calibrated:
                calibration = calibrate(checkout, self.gold, folder=kept, timeout=self.timeout)
            verdict, evaluation = grade(checkout, self.gold, prediction, timeout=self.timeout, calibration=calibration)
        write_instance(self.out, self.run_id, prediction, verdict, evaluation, label=LABELS[self.backend])
        return asdict(verdict)


def check_gold(gold: Mapping[str, Gold], issues: Iterable[Issue], dataset: str) -> None:
    """Raise UsageError that names the issues which nothing can grade, before any work is done."""
    missing = [issue.id for issue in issues if issue.id not in gold]
    if missing:
        names = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
        fields = ", ".join(GRADING_FIELDS)
        raise UsageError(
            f"--dataset {dataset}: nothing can grade {names}: no test_patch (grading needs {fields}); choose others by "
            "--instances"
        )


def gold_of(gold: Mapping[str, Gold], issue: Issue) -> Gold:
    """What grades an issue. Raises UsageError when the dataset has nothing of it."""
    if issue.id not in gold:
        raise UsageError(f"{issue.id}: the dataset has no test patch for it, so that nothing can grade it")
    return gold[issue.id]
