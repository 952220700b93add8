"""Recording: runs a command under the probe, several times alike, and keeps what each run did in a folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from xlocal.tracer.closeup import Closeup, Focus, steady
from xlocal.tracer.command import Command, parse_command
from xlocal.tracer.errors import ScriptError, SessionError, UsageError, Warned
from xlocal.tracer.launch import (
    Interpreter,
    check_interpreter,
    check_script,
    find_python,
    fixed_addresses,
    run_to_end,
    why_addresses_vary,
)
from xlocal.tracer.native import Built, native_for
from xlocal.tracer.scope import Scope
from xlocal.tracer.trace import Trace, load_all, same_calls

__all__ = [
    "BACKENDS",
    "Command",
    "Execution",
    "Interpreter",
    "Recording",
    "check_interpreter",
    "closeups",
    "parse_command",
    "record",
]

Progress = Callable[[str], None]

BACKENDS = ("auto", "setprofile", "monitoring", "native")
FORMAT = "xlocal-recording"
VERSION = 1
FILE = "recording.json"
MAIN = "main.xtrace"  # of the first process
_PROBE = Path(__file__).with_name("probe.py")
_TAIL_BYTES = 16_384
_NO_PYTEST = "No module named 'pytest'"


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of a command; `folder` holds its traces, `stdout.txt` and `stderr.txt`.

    `exit_status` is None when a signal or the timeout ended it; `signal` tells which, when nobody of ours sent it.
    """

    command: Command
    folder: Path
    exit_status: int | None
    signal: int | None
    timed_out: bool
    seconds: float

    def traces(self) -> tuple[Trace, ...]:
        """What was recorded, the first process first; TraceFormatError when a file is damaged beyond use."""
        return load_all(self.folder)

    def stdout(self) -> str:
        """What the program wrote to stdout; bytes that are not UTF-8 are replaced."""
        return (self.folder / "stdout.txt").read_text("utf-8", "replace")

    def stderr(self) -> str:
        """What the program wrote to stderr; bytes that are not UTF-8 are replaced."""
        return (self.folder / "stderr.txt").read_text("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Recording:
    """All runs of one command, alike except for noise. `role` says what it is for: buggy, reference."""

    role: str
    command: Command
    executions: tuple[Execution, ...]
    warnings: tuple[Warned, ...] = ()

    def save(self, folder: Path) -> None:
        """Write `recording.json` into `folder`, which holds the executions' folders; whole or not at all."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "role": self.role,
            "command": asdict(self.command),
            "executions": [
                {
                    "folder": os.path.relpath(run.folder, folder),
                    "exit_status": run.exit_status,
                    "signal": run.signal,
                    "timed_out": run.timed_out,
                    "seconds": run.seconds,
                }
                for run in self.executions
            ],
            "warnings": [asdict(warning) for warning in self.warnings],
        }
        with _disk_errors(folder):
            unfinished = folder / f".{FILE}.new"
            unfinished.write_text(json.dumps(document, indent=1) + "\n", "utf-8", "surrogateescape")
            unfinished.replace(folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> Recording:
        """Read what `save` wrote, from wherever the folder lies now; SessionError when it is missing or damaged."""
        file = folder / FILE
        try:
            document = json.loads(file.read_text("utf-8", "surrogateescape"))
            if document["format"] != FORMAT or document["version"] > VERSION:
                raise SessionError(f"{file}: was not written by this xlocal or an older one; record again")
            command = Command(**{**document["command"], "argv": tuple(document["command"]["argv"])})
            executions = tuple(
                Execution(command, **{**row, "folder": Path(os.path.normpath(folder / row["folder"]))})
                for row in document["executions"]
            )
            warnings = tuple(Warned(**row) for row in document["warnings"])
            return cls(document["role"], command, executions, warnings)
        except FileNotFoundError:
            raise SessionError(f"{folder}: holds no recording; record with xlocal trace") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SessionError(f"{file}: is damaged ({error}); record again with xlocal trace") from None


def record(  # noqa: PLR0913 - each is an option of the command line
    command: Command,
    *,
    role: str,
    scope: Scope,
    python: str | Path,
    folder: Path,
    cwd: Path | Literal["temp"] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300.0,
    repeat: int = 2,
    backend: str = "auto",
    seed: int = 0,
    focus: Focus | None = None,
    progress: Progress | None = None,
) -> Recording:
    """Run a command `repeat` times under the probe, and once more where these runs differ; run i leaves its files in
    `folder/role/i`. What it makes lies at other addresses in each run, so that what depends on them differs.

    All recordings of a session share `folder`, so that their programs find the same temporary folder (`TMPDIR`, emptied
    before each run). `cwd` None is the directory xlocal started in, "temp" an empty one. `env` is added to the
    environment last. `timeout` is in seconds per run. `focus` asks for the second pass (`closeups`) instead of the
    tree. `backend` auto is the native recorder where it can be built for the target, else the better one in Python.

    Raises:
        ScriptError: it does not compile, ran longer than `timeout`, or wrote no trace. What was recorded stays.
        UsageError: the interpreter or the working directory is not there.
        SessionError: the disk refuses.
    """
    if backend not in BACKENDS:
        raise UsageError(f"--backend {backend}: choose one of {', '.join(BACKENDS)}")
    if repeat < 1 or timeout <= 0:
        raise UsageError("--repeat and --timeout must be greater than zero")
    if isinstance(cwd, Path) and not cwd.is_dir():
        raise UsageError(f"--cwd {cwd}: no such folder")
    path = find_python(python)
    if backend == "monitoring":
        _require_monitoring(path)
    check_script(command, python=path)
    built = Built(None, None) if focus else native_for(backend, path)
    place = Path(os.path.abspath(folder)) / role
    executions: list[Execution] = []
    left = 0
    with _disk_errors(place), _workspace(place.parent) as workspace:
        config = {
            "version": 1,
            "mode": command.kind,
            "target": command.target,
            "argv": list(command.argv),
            "scope": scope.prefixes(),
            "seed": seed,
            "backend": backend,
            "native": None if built.path is None else str(built.path),
            "hide": [],
            "hook": str(workspace),
            "focus": None if focus is None else {"functions": focus, "values": True, "seconds": timeout / 2},
        }
        environment = _environment(workspace / "tmp", env or {})
        shutil.rmtree(place, ignore_errors=True)
        while len(executions) < repeat or (len(executions) == repeat > 1 and _differ(executions, closely=bool(focus))):
            number = len(executions)
            if progress is not None:
                total = max(repeat, number + 1)
                progress(f"running {role}" + (f", {number + 1} of {total}" if total > 1 else ""))
            for name in ("tmp", "cwd"):
                _empty(workspace / name)
            here = workspace / "cwd" if cwd == "temp" else cwd or Path.cwd()
            run = place / str(number)
            run.mkdir(parents=True)
            program = [*fixed_addresses(), path, str(_PROBE), str(_write_config(run, {**config, "shift": number}))]
            ending = run_to_end(program, cwd=here, env=environment, output=run, timeout=timeout, mark=str(workspace))
            executions.append(
                Execution(command, run, ending.exit_status, ending.signal, ending.timed_out, ending.seconds)
            )
            left = max(left, ending.left)
            if ending.timed_out:
                break
            _require_trace(executions[-1], path)
    recording = Recording(role, command, tuple(executions), tuple(_doubts(command, left, built.warning)))
    recording.save(place)
    if executions[-1].timed_out:
        raise ScriptError(
            f"{command.text}: still ran after {timeout:g} seconds and was ended; give it longer with --timeout"
        )
    return recording


def _differ(executions: Sequence[Execution], *, closely: bool) -> bool:
    """Whether the runs made other calls, or calls seen closely were unlike: then chance may do in a third what it did
    in neither."""
    if closely:
        seen = [Closeup.load(run.folder / MAIN) for run in executions]
        return steady(seen).calls != seen[0].calls
    first, *others = [run.traces() for run in executions]
    return not all(same_calls(first, traces) for traces in others)


def _require_monitoring(python: str) -> None:
    version = check_interpreter(python).version
    if version < (3, 12):
        name = ".".join(map(str, version))
        raise UsageError(f"--backend monitoring: needs Python 3.12 or later, and {python} is Python {name}")


def closeups(recording: Recording, focus: Focus, *, timeout: float = 300.0, **options: Any) -> tuple[Closeup, ...]:
    """Run a recording's command again and look closely at the calls of `focus`; one close-up for each repeat.

    `options` are those that `record` was called with. A second pass is slower, so it has ten times as long as the
    first took where that is more than `timeout`. Raises what `record` raises.
    """
    longest = max(run.seconds for run in recording.executions)
    again = record(
        recording.command, role=f"{recording.role}-closer", focus=focus, timeout=max(timeout, 10 * longest), **options
    )
    return tuple(Closeup.load(run.folder / MAIN) for run in again.executions)


def _write_config(run: Path, config: Mapping[str, object]) -> Path:
    """The probe reads UTF-8 without escapes."""
    file = run / "config.json"
    text = json.dumps({**config, "out": str(run)}, ensure_ascii=False)
    file.write_text(text, "utf-8", "surrogateescape")
    return file


def _environment(temporary: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Ours, without what a probe around us left in it, made repeatable, with the user's own on top."""
    ours = {name: value for name, value in os.environ.items() if name != "XLOCAL_PARENT"}
    ours.setdefault("PYTHONHASHSEED", "0")
    ours.update(dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary)))
    return {**ours, **env}


@contextlib.contextmanager
def _workspace(session: Path) -> Iterator[Path]:
    """A folder whose name depends on the session alone, apart from any project, removed in the end.

    Programs look for their project upwards from where they are, so it must not lie in one.
    """
    name = hashlib.sha256(os.fsencode(os.path.realpath(session))).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"xlocal-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise SessionError(f"{folder}: belongs to somebody else; set TMPDIR to a folder of your own")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)


def _require_trace(run: Execution, python: str) -> None:
    """SessionError when the disk refused the trace, ScriptError when there is none for another reason."""
    lines = _last_lines(run.folder / "stderr.txt")
    refused = [line for line in lines if line.startswith("xlocal: cannot write ")]
    if refused or shutil.disk_usage(run.folder).free < _TAIL_BYTES:
        reason = refused[-1].removeprefix("xlocal: ") if refused else "the disk is full"
        raise SessionError(f"{run.command.text}: could not be recorded: {reason}; make room and record again")
    missing = f": No module named {run.command.target}"
    if run.command.kind == "module" and run.exit_status == 1 and lines and lines[-1].rstrip().endswith(missing):
        raise ScriptError(f"{run.command.text}: the interpreter finds no module {run.command.target}; check --python")
    # Raised by the import in our own code; a program in which pytest is missing has frames of its own.
    ours = any(line.strip().startswith('File "<pytest>", line 1') for line in lines[-3:-1])
    if run.command.kind == "pytest" and run.exit_status == 1 and ours and lines[-1].endswith(_NO_PYTEST):
        raise ScriptError(
            f"{run.command.text}: {python} has no pytest; install it there, or name another with --python"
        )
    if (run.folder / MAIN).exists():
        return
    how = f"exit status {run.exit_status}" if run.signal is None else f"ended by {_signal_name(run.signal)}"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing to stderr")
    raise ScriptError(
        f"{run.command.text}: wrote no trace ({how}): {last}; all it wrote is in {run.folder / 'stderr.txt'}"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_lines(file: Path) -> list[str]:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        return stream.read().decode("utf-8", "replace").splitlines()


def _doubts(command: Command, left: int, slower: Warned | None) -> Iterator[Warned]:
    if slower is not None:
        yield slower
    if (why := why_addresses_vary()) is not None:
        yield Warned(
            "addresses-random",
            f"memory addresses are not fixed, for {why}; what depends on them (the order of sets of objects, default "
            "hashes) may differ between runs",
        )
    if left:
        yield Warned(
            "processes-left",
            f"{command.text}: left {left} process{'es' if left > 1 else ''} running, which xlocal ended; "
            "what they did later is not recorded",
        )


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """One line for a disk that refuses: full, read-only, no permission."""
    try:
        yield
    except OSError as error:
        raise SessionError(f"{folder}: cannot be written: {error.strerror or error}") from error
