"""Where the jobs of a batch run: in processes of this machine. A job that dies takes no other job with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, NoReturn, Protocol

from xlocal.tracer.errors import MissingError, PatchError, XlocalError

# For a job that is told to end: it resets its work tree and ends what it started.
PATIENCE = 10.0


class Key(NamedTuple):
    """One job: a step of an instance."""

    instance: str
    step: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a job came to: its `result`, or the `error` in one line, with the traceback of one that is ours (`details`).

    `transient` marks a fault of the infrastructure, which another attempt may not meet; `missing` what another attempt
    would miss as well, but perhaps not another run: a program, an interpreter, a commit.
    """

    result: Mapping[str, Any] | None
    error: str | None = None
    transient: bool = False
    details: str = ""
    seconds: float = 0.0
    missing: bool = False


Call = Callable[[], Answer]


class Engine(Protocol):
    """Runs jobs, `workers` at a time; the caller starts no more than that."""

    @property
    def workers(self) -> int: ...

    def start(self, key: Key, call: Call) -> None:
        """Run a job that can be pickled."""
        ...

    def finished(self, timeout: float) -> list[tuple[Key, Answer]]:
        """The jobs that ended since; waits for one, but not longer than `timeout` seconds."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What the manifest tells of it."""
        ...

    def close(self) -> None:
        """End what still runs, and all that it started."""
        ...


def answer(work: Callable[[], Mapping[str, Any]], faults: tuple[type[BaseException], ...]) -> Answer:
    """Do the work and put what came of it into an Answer; errors of the types `faults` are transient.

    What is missing, and a patch that does not fit, stay so in another attempt, though they are errors of a checkout.
    """
    started = time.monotonic()
    try:
        result = work()
    except XlocalError as error:
        missing = isinstance(error, MissingError)
        transient = isinstance(error, faults) and not missing and not isinstance(error, PatchError)
        return Answer(None, str(error), transient, "", time.monotonic() - started, missing)
    except Exception as error:  # noqa: BLE001
        # The boundary of one issue: a mistake in one must not end the hundreds of others; it is told in full.
        line = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        transient = isinstance(error, faults)
        return Answer(None, line, transient, traceback.format_exc(), time.monotonic() - started)
    return Answer(result, seconds=time.monotonic() - started)


class LocalEngine:
    """One process for each job."""

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        # Neither inherits our threads nor our open files, as a fork would.
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[Key, tuple[multiprocessing.process.BaseProcess, Connection, float]] = {}

    @property
    def workers(self) -> int:
        """How many jobs run at a time."""
        return self._workers

    def describe(self) -> Mapping[str, Any]:
        """Name and size."""
        return {"name": "local", "workers": self._workers}

    def start(self, key: Key, call: Call) -> None:
        """Start a process for the job."""
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_serve, args=(theirs, call), name="/".join(key))
        process.start()
        # With our copy closed, the end of the process ends the pipe.
        theirs.close()
        self._running[key] = (process, ours, time.monotonic())

    def finished(self, timeout: float) -> list[tuple[Key, Answer]]:
        """The answers that came, and a transient fault for each process that died without one."""
        ready = wait([pipe for _, pipe, _ in self._running.values()], timeout)
        done = []
        for key, (process, pipe, started) in list(self._running.items()):
            if pipe in ready:
                done.append((key, _receive(process, pipe, time.monotonic() - started)))
                del self._running[key]
        return done

    def close(self) -> None:
        """Tell every process to end, and kill those that have not after `PATIENCE` seconds."""
        for process, _, _ in self._running.values():
            process.terminate()
        end = time.monotonic() + PATIENCE
        for process, pipe, _ in self._running.values():
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        self._running.clear()


def _receive(process: multiprocessing.process.BaseProcess, pipe: Connection, seconds: float) -> Answer:
    try:
        got: Answer = pipe.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        got = Answer(None, f"the worker process ended {how} without an answer", True, "", seconds)
    else:
        process.join()
    pipe.close()
    return got


def _serve(pipe: Connection, call: Call) -> None:
    """The life of a worker process."""
    # An interrupt from the terminal reaches every process; the batch decides and tells us by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_follow_parent, daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        pipe.send(call())


def _end(number: int, _frame: object) -> NoReturn:
    # An exception, so that `finally` blocks end what was started and reset what was changed.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def _follow_parent() -> None:
    """End this process when its parent is gone, killed perhaps: nobody would read the answer."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def closing(engine: Engine) -> Iterator[Engine]:
    """Close the engine at the end, also after an interrupt; a second interrupt does not keep it from that."""
    try:
        yield engine
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            engine.close()
