"""The record of a run, written after every step; what is recorded can be taken up again or followed without a model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlocal.swe_pipeline.models import redact
from xlocal.tracer.errors import AgentError, UsageError

FORMAT = "xlocal-trajectory"
VERSION = 1
FILE = "trajectory.jsonl"
# Steps that are asked for again when a run is taken up; the others only tell.
EFFECTS = frozenset({"model", "tool", "run", "locate"})


@dataclass(frozen=True, slots=True)
class Step:
    """One line: `request` is what was asked, `result` what came back, `state` a new state of the work tree after it."""

    number: int
    kind: str
    phase: str
    request: Mapping[str, Any]
    result: Any
    used: Mapping[str, Any] | None = None
    state: str | None = None
    seconds: float = 0.0
    elapsed: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """One line of the file, empty fields left out."""
        row = {
            "step": self.number,
            "kind": self.kind,
            "phase": self.phase,
            "request": dict(self.request),
            "result": self.result,
            "used": None if self.used is None else dict(self.used),
            "state": self.state,
            "seconds": round(self.seconds, 3),
            "elapsed": round(self.elapsed, 3),
        }
        return {key: value for key, value in row.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Record:
    """A trajectory as read: its first line, its steps, and whether the last line was cut by a crash."""

    header: Mapping[str, Any]
    steps: tuple[Step, ...]
    cut: bool = False


def read_trajectory(file: Path) -> Record:
    """Read a trajectory, also one whose writer was killed. Raises AgentError when it is missing or not ours."""
    try:
        lines = file.read_text("utf-8", "surrogateescape").split("\n")
    except OSError as error:
        raise AgentError(f"{file}: cannot be read: {error.strerror}") from None
    rows: list[dict[str, Any]] = []
    cut = False
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            rows.append(json.loads(line))
        except ValueError:
            if not rows:
                raise AgentError(f"{file}: is not a trajectory of xlocal") from None
            if number < len(lines) - 1:
                raise AgentError(
                    f"{file}: line {number + 1} is damaged; delete it and all after it to go on from there"
                ) from None
            cut = True  # the writer was killed in the middle of it
    if not rows or not isinstance(rows[0], dict) or rows[0].get("format") != FORMAT:
        raise AgentError(f"{file}: is not a trajectory of xlocal")
    if rows[0]["version"] > VERSION:
        raise AgentError(f"{file}: was written by a newer xlocal (version {rows[0]['version']}); upgrade")
    return Record(rows[0], tuple(_step(row, file) for row in rows[1:]), cut)


def _step(row: Mapping[str, Any], file: Path) -> Step:
    try:
        return Step(
            number=row["step"],
            kind=row["kind"],
            phase=row["phase"],
            request=row["request"],
            result=row.get("result"),
            used=row.get("used"),
            state=row.get("state"),
            seconds=row.get("seconds", 0.0),
            elapsed=row.get("elapsed", 0.0),
        )
    except (KeyError, TypeError) as error:
        raise AgentError(f"{file}: a step is damaged ({error!r})") from None


@dataclass
class Effect:
    """What a live step leaves besides its result."""

    used: Mapping[str, Any] | None = None
    state: str | None = None


class Trajectory:
    """Writes one line for each step; steps that are in `recorded` are answered from there instead of being done.

    `serve` names the kinds that the record answers: all when a run is taken up, only `model` when the tools shall work
    again. What is asked must be what was recorded, else AgentError. Before the first step that is done and not
    answered, `on_live` gets the last recorded state of the work tree. `before_first` is called once before anything is
    added to a record: a run that is refused before that leaves it as it was.
    """

    def __init__(
        self,
        folder: Path,
        *,
        header: Mapping[str, Any],
        hidden: Sequence[str] = (),
        recorded: Sequence[Step] = (),
        serve: frozenset[str] = EFFECTS,
        before_first: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self.file = folder / FILE
        self._hidden = tuple(hidden)
        self._waiting = [step for step in recorded if step.kind in serve]
        # What is done again although it was recorded, to be compared with the record.
        self._expected = [step for step in recorded if step.kind in EFFECTS - serve]
        self._serve = serve
        self._position = 0
        self._number = 0
        self._began = time.monotonic()
        self._earlier = 0.0
        self.phase = "start"
        self.on_live: Callable[[str | None], None] | None = None
        self.on_served: Callable[[Step], None] | None = None
        self.differences: list[str] = []
        self._before_first: Callable[[], None] | None = before_first
        folder.mkdir(parents=True, exist_ok=True)
        if recorded and serve == EFFECTS:
            self._number = recorded[-1].number
            self._earlier = recorded[-1].elapsed
            self._live = not self._waiting
            self._last_state = next((step.state for step in reversed(recorded) if step.state), None)
        else:
            # A new record, also of a replay: its tools work from the start.
            self._live = True
            self._last_state = None
            self._write({"format": FORMAT, "version": VERSION, **header}, mode="w")

    def elapsed(self) -> float:
        """Seconds of work on this run, over all its starts."""
        return self._earlier + time.monotonic() - self._began

    def effect(self, kind: str, request: Mapping[str, Any], live: Callable[[Effect], Any]) -> Any:
        """The result of a step: the recorded one, or what `live` returns now (plain JSON), which is then written."""
        served = self._serve_step(kind, request)
        if served is not None:
            return served.result
        self._go_live()
        started, extra = time.monotonic(), Effect()
        result = live(extra)
        return self._keep(kind, request, result, extra, started)

    async def async_effect(
        self, kind: str, request: Mapping[str, Any], live: Callable[[Effect], Awaitable[Any]]
    ) -> Any:
        """As `effect`, for work that is awaited."""
        served = self._serve_step(kind, request)
        if served is not None:
            return served.result
        self._go_live()
        started, extra = time.monotonic(), Effect()
        result = await live(extra)
        return self._keep(kind, request, result, extra, started)

    def note(
        self, kind: str, request: Mapping[str, Any], result: Any = None, *, used: Mapping[str, Any] | None = None
    ) -> None:
        """Tell something that is asked for by no later run; not repeated while a record is followed.

        Within a step it is written at once, so that what was `used` up is known whatever becomes of the step.
        """
        if self._live:
            self._append(kind, request, result, Effect(used=used), 0.0)

    @property
    def upcoming(self) -> int:
        """The number of the line that is written next."""
        return self._number + 1

    @property
    def live(self) -> bool:
        """Whether the record, if there was one, is used up."""
        return self._live

    def _serve_step(self, kind: str, request: Mapping[str, Any]) -> Step | None:
        if kind not in self._serve or self._position >= len(self._waiting):
            return None
        step = self._waiting[self._position]
        asked = json.loads(redact(json.dumps(dict(request)), self._hidden))
        if step.kind != kind or not self._same(step.request, asked):
            raise AgentError(
                f"{self.file}: step {step.number} was {step.kind} {_brief(step.request)}, and now {kind} "
                f"{_brief(asked)} is asked for: the record belongs to other settings, another issue or another version"
            )
        self._position += 1
        if self._serve != EFFECTS:
            self._append(kind, request, step.result, Effect(), 0.0)
        elif self.on_served is not None:
            self.on_served(step)
        return step

    def _same(self, recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
        if self._serve == EFFECTS:
            return dict(recorded) == asked
        # Where tools work again, what the model read may differ from what it read then; its place may not.
        return all(recorded.get(key) == asked.get(key) for key in ("conversation", "turn"))

    def _compare(self, kind: str, request: Mapping[str, Any], result: Any) -> None:
        if not self._expected:
            return
        step = self._expected.pop(0)
        if step.kind != kind or dict(step.request) != dict(request):
            self.differences.append(f"step {step.number}: {_brief(step.request)} became {_brief(request)}")
        elif _lasting(step.result) != _lasting(result):
            self.differences.append(f"step {step.number}: another result of {_brief(request)}")

    def _go_live(self) -> None:
        if not self._live and self._position >= len(self._waiting):
            self._live = True
            if self.on_live is not None:
                self.on_live(self._last_state)

    def _keep(self, kind: str, request: Mapping[str, Any], result: Any, extra: Effect, started: float) -> Any:
        self._append(kind, request, result, extra, time.monotonic() - started)
        self._compare(kind, request, result)
        return result

    def _append(self, kind: str, request: Mapping[str, Any], result: Any, extra: Effect, seconds: float) -> None:
        if self._before_first is not None:
            self._before_first()
            self._before_first = None
        self._number += 1
        step = Step(self._number, kind, self.phase, request, result, extra.used, extra.state, seconds, self.elapsed())
        self._write(step.as_json())

    def _write(self, row: Mapping[str, Any], *, mode: str = "a") -> None:
        text = redact(json.dumps(row, ensure_ascii=True), self._hidden)
        try:
            with self.file.open(mode, encoding="utf-8") as stream:
                stream.write(text + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise AgentError(f"{self.file}: cannot be written: {error.strerror}") from None


def _lasting(result: Any) -> Any:
    """A result without how long it took, which is never the same twice."""
    text = json.dumps(result)
    return re.sub(r'(\d+\.\d+) ?s(econds)?\b|"seconds": [\d.e-]+|in \d+\.\d+', "", text)


def _brief(request: Mapping[str, Any]) -> str:
    text = json.dumps(dict(request))
    return text if len(text) <= 120 else text[:117] + "..."


def digest(value: Any) -> str:
    """A short name of plain JSON data, equal for equal data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def plan_cut(folder: Path, step: int | None, *, say: Callable[[str], None]) -> tuple[Record, Callable[[], None]]:
    """The record to take a run up from, and what puts the steps after `step` aside (None: keep all).

    Until that is called, the file stays whole.

    The lines put aside stay beside it, and what their calls cost is kept in a line of its own, since it was billed.
    Raises AgentError for a damaged file, UsageError for a step that it has not.
    """
    file = folder / FILE
    record = read_trajectory(file)
    kept = [item for item in record.steps if step is None or item.number <= step]
    gone = record.steps[len(kept) :]
    if step is not None and step > (record.steps[-1].number if record.steps else 0):
        most = record.steps[-1].number if record.steps else 0
        raise UsageError(f"--step {step}: the run has {_counted(most, 'step')}; name one of them")
    costs = [used for item in gone for used in (item.result if item.kind == "cut" else [item.used]) if used is not None]
    if costs:
        last = kept[-1] if kept else Step(0, "", "start", {}, None)
        what = {"steps": len(gone)}
        kept.append(Step(last.number, "cut", last.phase, what, costs, elapsed=gone[-1].elapsed))

    def cut() -> None:
        if record.cut:
            say(f"{file}: the last line was cut off by a crash and is left out")
        if gone:
            aside = _free_name(folder)
            shutil.copyfile(file, aside)
            say(f"steps after {step} are kept in {aside}")
        if gone or record.cut:
            _rewrite(file, [dict(record.header), *(item.as_json() for item in kept)])

    return Record(record.header, tuple(kept)), cut


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _free_name(folder: Path) -> Path:
    number = 1
    while (folder / f"{FILE}.before-{number}").exists():
        number += 1
    return folder / f"{FILE}.before-{number}"


def _rewrite(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    new = file.with_name(f".{file.name}.new")
    with new.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(file)


class States:
    """Snapshots of a work tree by digest, one file each, beside the trajectory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "states"

    def save(self, name: str, diff: str, scratch: Mapping[str, str]) -> None:
        """Keep a snapshot, unless it is there already."""
        file = self._folder / f"{name}.json"
        if file.exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.new")
        # Escapes keep the bytes of file names and contents that are not UTF-8.
        new.write_text(json.dumps({"diff": diff, "scratch": dict(scratch)}), "utf-8")
        new.replace(file)

    def load(self, name: str) -> tuple[str, dict[str, str]]:
        """The diff and the scratch texts of a snapshot. Raises AgentError when it is gone."""
        file = self._folder / f"{name}.json"
        try:
            document = json.loads(file.read_text("utf-8"))
            return document["diff"], dict(document["scratch"])
        except (OSError, ValueError, KeyError) as error:
            raise AgentError(f"{file}: the state of the work tree cannot be read ({error})") from None


@contextlib.contextmanager
def phase(trajectory: Trajectory, name: str) -> Iterator[None]:
    """Name the phase of the steps within."""
    before, trajectory.phase = trajectory.phase, name
    try:
        yield
    finally:
        trajectory.phase = before
