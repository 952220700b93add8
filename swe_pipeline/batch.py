"""Many issues through some steps, each job at most once: resumed where it ended, on one machine or on many.

FOLDER/run.json                 the manifest: versions, seeds, arguments, instances, costs
FOLDER/INSTANCE/STEP.json       what a step came to; there only when it ended
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from xlocal.swe_pipeline.engines import Answer, Engine, Key, answer, closing
from xlocal.swe_pipeline.grade import write_text
from xlocal.swe_pipeline.issue import Issue
from xlocal.swe_pipeline.manifest import open_manifest, write_manifest
from xlocal.tracer.errors import SessionError, UsageError

FORMAT = 1
Status = Literal["done", "failed", "gave up", "skipped"]
_RETOLD = 1.0  # seconds after which progress is shown again though nothing happened


class Job(Protocol):
    """The work of one step on one issue: it can be pickled and knows of no other issue."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Plain JSON: all that the result rests on besides the former steps. A stored result of others is not used."""
        ...

    def __call__(self, folder: Path, former: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Do the work and return plain JSON, in which `cost` may hold `dollars` and `tokens`.

        `folder` is the instance's own, for further files. `former` holds the results of the steps before, by name.
        """
        ...


class Step(Protocol):
    """One kind of work, such as `prepare`, `localize`, `solve` or `grade`."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Plain JSON that must be the same when a run is resumed."""
        ...

    @property
    def faults(self) -> tuple[type[BaseException], ...]:
        """Errors of the infrastructure, after which the same job is worth another attempt."""
        ...

    def job(self, issue: Issue) -> Job:
        """The work on one issue. Only a step that grades gives its job anything that grades."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step of one instance came to.

    `failed`: the work itself ended in an error. `gave up`: the infrastructure failed in every attempt, or something is
    missing here; a resumed run tries it again. `skipped`: a step before did not end well (nothing is stored). `before`
    marks what a former run did.
    """

    instance: str
    step: str
    status: Status
    result: Mapping[str, Any] | None = None
    error: str | None = None
    attempts: int = 0
    seconds: float = 0.0
    identity: str = ""
    details: str = ""
    before: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Board:
    """How a run stands: for each step, how many are in each status (those from a former run as `before`).

    `running` lists jobs and the seconds they take so far.
    """

    steps: tuple[str, ...]
    instances: int
    counts: Mapping[str, Mapping[str, int]]
    running: tuple[tuple[Key, float], ...]
    dollars: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Options:
    """How a batch goes about it. `pause` is the wait before the second attempt, in seconds; it doubles with each."""

    retries: int = 2
    pause: float = 1.0
    seed: int = 0
    again: bool = False  # whether work that failed in a former run is done again


@dataclass(slots=True)
class _Run:
    """The state of a run that goes on; the coordinator alone writes it."""

    issues: Sequence[Issue]
    steps: Sequence[Step]
    folder: Path
    options: Options
    outcomes: dict[Key, Outcome] = field(default_factory=dict)
    attempts: Counter[Key] = field(default_factory=Counter)
    waiting: list[tuple[float, Issue, int]] = field(default_factory=list)
    running: dict[Key, tuple[Issue, int, float]] = field(default_factory=dict)


def run_batch(
    issues: Sequence[Issue],
    steps: Sequence[Step],
    *,
    folder: Path,
    engine: Engine,
    options: Options = Options(),
    arguments: Mapping[str, Any] | None = None,
    told: Callable[[Outcome], None] = lambda outcome: None,
    progress: Callable[[Board], None] = lambda board: None,
) -> tuple[Outcome, ...]:
    """Take every issue through the steps in order and return all outcomes, by issue and step.

    What a former run in `folder` did is not done again. `told` hears of each outcome as it is known, `progress` every
    second. `arguments` go to the manifest. An interrupt ends the jobs that run and leaves the folder fit to resume.
    Raises SessionError when another run uses the folder, UsageError when it holds a run of other steps or arguments,
    and CheckoutError when it cannot be written.
    """
    _check(issues, steps)
    with _only_one(folder), closing(engine):
        manifest = open_manifest(
            folder,
            steps={step.name: dict(step.arguments) for step in steps},
            seed=options.seed,
            told={
                "engine": dict(engine.describe()),
                "options": asdict(options),
                "arguments": dict(arguments or {}),
                "instances": [issue.id for issue in issues],
            },
        )
        run = _Run(issues, steps, folder, options)
        started = time.monotonic()
        state = "interrupted"
        try:
            for issue in issues:
                _advance(run, issue, 0, told)
            progress(_board(run, started))
            while run.waiting or run.running:
                _start(run, engine)
                for key, got in engine.finished(_RETOLD if run.running else 0.05):
                    _take(run, key, got, told)
                progress(_board(run, started))
            state = "ended"
        finally:
            _conclude(folder, manifest, run, state, time.monotonic() - started)
    return tuple(run.outcomes[key] for issue in issues for key in _keys(issue, steps))


def _check(issues: Sequence[Issue], steps: Sequence[Step]) -> None:
    for what, names in (("step", [step.name for step in steps]), ("instance", [issue.id for issue in issues])):
        if not names:
            raise UsageError(f"a batch needs at least one {what}")
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise UsageError(f"the {what} {twice[0]} is there twice")


def _keys(issue: Issue, steps: Sequence[Step]) -> list[Key]:
    return [Key(issue.id, step.name) for step in steps]


def _advance(run: _Run, issue: Issue, number: int, told: Callable[[Outcome], None]) -> None:
    """Take an issue over the steps that are done to the first that is not, or note that none can follow."""
    for place in range(number, len(run.steps)):
        stored = _stored(run, issue, place)
        if stored is None:
            # The later steps of issues under way come first, so that folders fill one by one.
            run.waiting.append((0.0, issue, place))
            run.waiting.sort(key=lambda row: -row[2])
            return
        _note(run, stored, told)
        if stored.status != "done":
            _skip(run, issue, place + 1, told)
            return


def _note(run: _Run, outcome: Outcome, told: Callable[[Outcome], None]) -> None:
    run.outcomes[Key(outcome.instance, outcome.step)] = outcome
    told(outcome)


def _skip(run: _Run, issue: Issue, number: int, told: Callable[[Outcome], None]) -> None:
    for step in run.steps[number:]:
        _note(
            run, Outcome(issue.id, step.name, "skipped", error=f"{run.steps[number - 1].name} did not end well"), told
        )


def _start(run: _Run, engine: Engine) -> None:
    """Start what may start now, as far as there are workers."""
    now = time.monotonic()
    for row in [row for row in run.waiting if row[0] <= now][: max(0, engine.workers - len(run.running))]:
        run.waiting.remove(row)
        _, issue, place = row
        step = run.steps[place]
        key = Key(issue.id, step.name)
        former = {other.step: dict(other.result or {}) for other in _before(run, issue, place)}
        work = partial(step.job(issue), _folder(run, issue), former)
        run.attempts[key] += 1
        run.running[key] = (issue, place, now)
        engine.start(key, partial(answer, work, step.faults))


def _before(run: _Run, issue: Issue, place: int) -> list[Outcome]:
    return [run.outcomes[key] for key in _keys(issue, run.steps)[:place]]


def _folder(run: _Run, issue: Issue) -> Path:
    return run.folder / issue.id


def _take(run: _Run, key: Key, got: Answer, told: Callable[[Outcome], None]) -> None:
    """Store what a job came to, or let it wait for another attempt."""
    issue, place, _ = run.running.pop(key)
    attempts = run.attempts[key]
    if got.error is not None and got.transient and attempts <= run.options.retries:
        pause = run.options.pause * 2 ** (attempts - 1)
        run.waiting.append((time.monotonic() + pause, issue, place))
        return
    status: Status = "done" if got.error is None else "gave up" if got.transient or got.missing else "failed"
    outcome = Outcome(
        instance=key.instance,
        step=key.step,
        status=status,
        result=got.result,
        error=got.error,
        attempts=attempts,
        seconds=round(got.seconds, 2),
        identity=_identity(run, issue, place),
        details=got.details,
    )
    write_text(_file(run, key), json.dumps({"format": FORMAT, **asdict(outcome)}, indent=1) + "\n")
    _note(run, outcome, told)
    if status == "done":
        _advance(run, issue, place + 1, told)
    else:
        _skip(run, issue, place + 1, told)


def _file(run: _Run, key: Key) -> Path:
    return run.folder / key.instance / f"{key.step}.json"


def _identity(run: _Run, issue: Issue, place: int) -> str:
    """A digest of the job's facts and of what the steps before came to."""
    step = run.steps[place]
    former = [[other.step, other.identity, other.result] for other in _before(run, issue, place)]
    text = json.dumps([step.name, dict(step.arguments), dict(step.job(issue).facts), former], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _stored(run: _Run, issue: Issue, place: int) -> Outcome | None:
    """The outcome of a former run, when it is one of the same work and stands."""
    outcome = read_outcome(run.folder, Key(issue.id, run.steps[place].name))
    if outcome is None or outcome.identity != _identity(run, issue, place):
        return None
    if outcome.status == "done" or (outcome.status == "failed" and not run.options.again):
        return replace(outcome, before=True)
    return None


def read_outcome(folder: Path, key: Key) -> Outcome | None:
    """The stored outcome of a step in a run's folder; None when there is none, or only a damaged one."""
    try:
        document = json.loads((folder / key.instance / f"{key.step}.json").read_text("utf-8"))
        if document.pop("format") != FORMAT:
            return None
        return Outcome(**document)
    except (OSError, ValueError, KeyError, TypeError):
        # Cut off by a crash of the machine, or not ours: the work is done again.
        return None


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Keep a second run out of the folder; the system drops the lock of a dead process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    except OSError as error:
        raise UsageError(f"{folder}: cannot hold a run: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SessionError(f"{folder}: another run is going on there; wait for it, or use another folder") from None
        yield


def _conclude(folder: Path, manifest: dict[str, Any], run: _Run, state: str, seconds: float) -> None:
    """Write the manifest with what the run came to."""
    counts = Counter((outcome.step, outcome.status) for outcome in run.outcomes.values())
    manifest |= {
        "state": state,
        "seconds": round(seconds, 1),
        "outcomes": {step.name: {s: n for (name, s), n in counts.items() if name == step.name} for step in run.steps},
        "cost": {
            "dollars": str(_dollars(run)),  # as text, since cents must stay exact
            "tokens": sum(int(_cost(o).get("tokens") or 0) for o in run.outcomes.values()),
        },
    }
    write_manifest(folder, manifest)


def _cost(outcome: Outcome) -> Mapping[str, Any]:
    cost = (outcome.result or {}).get("cost")
    return cost if isinstance(cost, Mapping) else {}


def _dollars(run: _Run) -> Decimal:
    return sum((Decimal(str(_cost(outcome).get("dollars") or 0)) for outcome in run.outcomes.values()), Decimal(0))


def _board(run: _Run, started: float) -> Board:
    now = time.monotonic()
    counts: dict[str, Counter[str]] = {step.name: Counter() for step in run.steps}
    for key, outcome in run.outcomes.items():
        counts[key.step]["before" if outcome.before and outcome.status == "done" else outcome.status] += 1
    running = tuple((key, now - since) for key, (_, _, since) in run.running.items())
    names = tuple(step.name for step in run.steps)
    return Board(names, len(run.issues), counts, running, float(_dollars(run)), now - started)
