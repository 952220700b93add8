"""One issue from its text to a patch: reproduce, compare, add tests, repair; recorded, limited, and able to go on."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xlocal.swe_pipeline.agent import Assistant, Progress
from xlocal.swe_pipeline.augment import Dropped, ValidationTest, augment
from xlocal.swe_pipeline.checkout import Checkout
from xlocal.swe_pipeline.checks import Regression, Results, Suite
from xlocal.swe_pipeline.leads import Leads, nearest_by_text
from xlocal.swe_pipeline.limits import Ledger, LimitReached, Limits, Meter, Spent
from xlocal.swe_pipeline.models import ModelName, context_window, open_model, parse_model, secrets
from xlocal.swe_pipeline.options import Options, header_of, options_of, pricing_for, require_same
from xlocal.swe_pipeline.repair import Patch, repair
from xlocal.swe_pipeline.reproduce import Reproduction, compare_given, reproduce
from xlocal.swe_pipeline.trajectory import FILE, Record, Step, Trajectory, phase, plan_cut
from xlocal.swe_pipeline.workspace import Workspace, remove_index
from xlocal.tracer.errors import AgentError, UsageError, XlocalError

PATCH, RESULT = "patch.diff", "result.json"


@dataclass(frozen=True, slots=True)
class Solution:
    """What came out of one issue; `patch` is None when the work ended before any repair; `ended` says why.

    `existing` are the files of existing tests that judged it, `chosen_how` tells why those.
    """

    issue_id: str
    model: str
    ended: str
    spent: Spent
    reproduction: Reproduction | None = None
    tests: tuple[ValidationTest, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    before: Results | None = None
    patch: Patch | None = None
    existing: tuple[str, ...] = ()
    chosen_how: str = ""
    differences: tuple[str, ...] = ()

    @property
    def diff(self) -> str:
        """The patch's text, empty without one."""
        return self.patch.diff if self.patch is not None else ""

    @property
    def green(self) -> bool:
        """Whether there is a patch that passes all tests, one of which failed without it."""
        return self.patch is not None and self.patch.green

    @property
    def verdict(self) -> str:
        """That of the patch: `green`, `unproven`, `not green` or `no patch`."""
        return self.patch.verdict if self.patch is not None else "no patch"

    def as_json(self) -> dict[str, Any]:
        """For result.json."""
        found = self.reproduction
        return {
            "issue": self.issue_id,
            "model": self.model,
            "ended": self.ended,
            "green": self.green,
            "verdict": self.verdict,
            "spent": self.spent.as_json(),
            "reproduced": found is not None and found.pair is not None,
            "why_not": found.why_not if found is not None else None,
            "localization": found.leads.as_json() if found is not None else None,
            "validation": [asdict(test) for test in self.tests],
            "dropped": [asdict(test) for test in self.dropped],
            "existing": {"files": list(self.existing), "how": self.chosen_how},
            "before": self.before.summary() if self.before is not None else None,
            "after": self.patch.results.summary() if self.patch is not None else None,
            "new_files": list(self.patch.new_files) if self.patch is not None else [],
            "left_out": list(self.patch.left_out) if self.patch is not None else [],
            "candidate": self.patch.candidate if self.patch is not None else None,
        }


def solve(  # noqa: PLR0913 - one issue, where it is kept, and what it may use
    checkout: Checkout,
    *,
    folder: Path,
    options: Options,
    regression: Regression | None = None,
    ledger: Ledger | None = None,
    resume: bool = False,
    step: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
    failed: Callable[[Solution], None] = lambda solution: None,
) -> Solution:
    """Solve the issue of a prepared, confined checkout; everything is kept in `folder`, step by step.

    With `resume`, the run in `folder` goes on from its end, or from `step`: what is recorded is neither done nor billed
    again. A limit ends the run and is told in `ended`; the best patch so far is kept. Raises AgentError when the model
    cannot be used, after `failed` heard of what there is by then, UsageError for options that contradict each other or
    the record.
    """
    name = parse_model(options.model)
    header = header_of(checkout, options)
    meter = Meter(options.limits, pricing=pricing_for(name, options), batch=ledger)
    with _one_at_a_time(folder):
        if not (name.kind == "scripted" and Path(name.name).is_dir()):
            open_model(name)  # refused, where it must be, before anything is done to a record
        record, cut = _record(folder, header, resume=resume, step=step, say=say)
        recorded = record.steps if record is not None else ()
        hidden = secrets(os.environ)
        trajectory = Trajectory(folder, header=header, hidden=hidden, recorded=recorded, before_first=cut)
        return _run(
            checkout,
            trajectory,
            meter,
            name=name,
            options=options,
            recorded=recorded,
            regression=regression,
            progress=progress,
            failed=failed,
        )


def replay(
    checkout: Checkout,
    *,
    source: Path,
    folder: Path,
    regression: Regression | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Follow the run in `source` without a model: its recorded answers, with the tools working again in `checkout`.

    What came out otherwise this time is in `differences`. Raises AgentError when the record cannot be followed.
    """
    record, _ = plan_cut(source, None, say=lambda text: None)
    options = options_of(record)
    header = header_of(checkout, options)
    require_same(record.header, header, source)
    if folder.resolve() == source.resolve():
        raise UsageError(f"{folder}: a replay needs a folder of its own")
    with _one_at_a_time(folder):
        serve = frozenset({"model"})
        trajectory = Trajectory(folder, header=header, recorded=record.steps, serve=serve)
        meter = Meter(
            Limits(None, None, None, options.limits.reproduce_actions, options.limits.repair_actions), pricing=None
        )

        def no_model() -> Any:
            from pydantic_ai.models.function import FunctionModel

            def end(_messages: Any, _info: Any) -> Any:
                raise AgentError(f"{source}: the recorded answers end here")

            return FunctionModel(end, model_name="replay")

        name = ModelName(options.model, "replay", options.model)
        return _run(
            checkout,
            trajectory,
            meter,
            name=name,
            options=options,
            recorded=(),
            regression=regression,
            progress=progress,
            opener=no_model,
        )


def _run(  # noqa: PLR0913 - the parts of a run, put together here
    checkout: Checkout,
    trajectory: Trajectory,
    meter: Meter,
    *,
    name: ModelName,
    options: Options,
    recorded: tuple[Step, ...],
    regression: Regression | None,
    progress: Callable[[Progress], None] | None,
    opener: Callable[[], Any] | None = None,
    failed: Callable[[Solution], None] = lambda solution: None,
) -> Solution:
    index = trajectory.folder / "index"
    remove_index(index)
    workspace = Workspace(checkout, index=index, time_left=meter.time_left)
    workspace.clean()
    open_one = opener or (lambda: open_model(name, issue_id=checkout.issue.id))
    assistant = Assistant(
        name=name,
        opener=open_one,
        trajectory=trajectory,
        meter=meter,
        workspace=workspace,
        window=options.window or (context_window(name, open_one()) if opener is None else None),
        hidden=secrets(os.environ),
        progress=progress,
    )
    assistant.count_recorded(recorded)
    work = _Work(assistant, checkout.issue.statement, options, regression)
    try:
        ended = work.do()
    except LimitReached as reached:
        ended = f"limit: {reached}"
    except XlocalError as error:
        solution = work.solution(f"error: {error}")
        trajectory.note("end", {"spent": solution.spent.as_json()}, solution.ended)
        _save(trajectory.folder, solution)
        if isinstance(error, AgentError):
            failed(solution)
        raise
    solution = work.solution(ended)
    trajectory.note("end", {"spent": solution.spent.as_json()}, ended)
    _save(trajectory.folder, solution)
    return solution


class _Work:
    """The phases in their order, and what each gave so far, so that a limit loses nothing."""

    def __init__(self, assistant: Assistant, statement: str, options: Options, regression: Regression | None) -> None:
        self._assistant = assistant
        self._statement = statement
        self._options = options
        self._regression = regression
        self._reproduction: Reproduction | None = None
        self._tests: tuple[ValidationTest, ...] = ()
        self._dropped: tuple[Dropped, ...] = ()
        self._before: Results | None = None
        self._patch: Patch | None = None
        self._suite = Suite()

    def do(self) -> str:
        """All phases of the variant; returns how the repair ended."""
        options, assistant = self._options, self._assistant
        if options.variant != "vanilla":
            with phase(assistant.trajectory, "reproduce"):
                self._reproduce()
        found = self._reproduction
        if options.stop_after == "reproduce":
            return "reproduced" if found is not None and found.pair is not None else "not reproduced"
        if options.variant == "full" and found is not None and found.pair is not None:
            with phase(assistant.trajectory, "augment"):
                self._tests, self._dropped = augment(assistant, self._statement, found.pair, found.leads)
        self._suite = Suite(
            pair=found.pair if found is not None else None, validation=self._tests, regression=self._regression
        )
        with phase(assistant.trajectory, "repair"):
            self._patch, self._before = repair(
                assistant,
                self._statement,
                reproduction=found,
                suite=self._suite,
                places=None
                if found is not None
                else Leads("text", nearest_by_text(assistant.workspace, self._statement)),
                actions=options.limits.repair_actions,
                top=options.top,
                candidates=options.candidates,
            )
        return self._patch.ended

    def _reproduce(self) -> None:
        options = self._options
        how: dict[str, Any] = {"ranker": options.ranker, "encoder": options.encoder}
        if options.pair is not None:
            self._reproduction = compare_given(self._assistant, self._statement, options.pair, **how)
        else:
            actions = options.limits.reproduce_actions
            self._reproduction = reproduce(self._assistant, self._statement, actions=actions, **how)

    def solution(self, ended: str) -> Solution:
        """What there is now."""
        return Solution(
            issue_id=self._assistant.workspace.checkout.issue.id,
            model=self._options.model,
            ended=ended,
            spent=self._assistant.meter.spent(),
            reproduction=self._reproduction,
            tests=self._tests,
            dropped=self._dropped,
            before=self._before,
            patch=self._patch,
            existing=self._suite.chosen,
            chosen_how=self._suite.how,
            differences=tuple(self._assistant.trajectory.differences),
        )


def _record(
    folder: Path, header: Mapping[str, Any], *, resume: bool, step: int | None, say: Callable[[str], None]
) -> tuple[Record | None, Callable[[], None]]:
    """The record to go on with, if any, and what cuts it; all that can be refused is refused here."""
    exists = (folder / FILE).is_file()
    if not resume:
        if exists:
            raise UsageError(f"{folder}: holds a run already; go on with it (--resume) or choose another folder")
        return None, lambda: None
    if not exists:
        raise UsageError(f"{folder}: holds no run to go on with")
    record, cut = plan_cut(folder, step, say=say)
    require_same(record.header, header, folder)
    return record, cut


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Two processes must not write one record."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{folder}: another xlocal is working on this run") from None
        yield


def _save(folder: Path, solution: Solution) -> None:
    """The result and the patch, and the scripts and tests as files to look at."""
    _write(folder / RESULT, json.dumps(solution.as_json(), indent=1) + "\n")
    _write(folder / PATCH, solution.diff)
    found = solution.reproduction
    texts = dict(found.pair.scripts()) if found is not None and found.pair is not None else {}
    texts.update({test.name: test.source for test in solution.tests})
    for name, text in texts.items():
        _write(folder / "scripts" / name, text)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.new")
    new.write_text(text, "utf-8", "surrogateescape")
    new.replace(file)
