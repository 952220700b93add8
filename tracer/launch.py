"""Starting the target's interpreter: who it is, whether it compiles a script, and a run that leaves nothing behind."""

from __future__ import annotations

import ast
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from xlocal.tracer.command import Command
from xlocal.tracer.errors import ScriptError, UsageError
from xlocal.tracer.family import killed_at_last

OLDEST = (3, 6)
ANSWER_SECONDS = 60  # for an interpreter to start and answer
FINISH_SECONDS = 2  # for what a program left running to end by itself

# Understood by any Python since 2.6; answers with a literal, so that nothing is imported from the working directory.
_ASK = """
import sys
made = getattr(sys, "implementation", None)
print("")
print(repr((sys.executable, tuple(sys.version_info[:3]), getattr(made, "name", "cpython"), sys.prefix,
            "t" in getattr(sys, "abiflags", ""))))
"""
_COMPILE = """
import sys
problem = None
try:
    with open(sys.argv[1], "rb") as file:
        source = file.read()
    compile(source, sys.argv[1], "exec", dont_inherit=True)
except SyntaxError as error:
    problem = (type(error).__name__, str(error.msg), error.lineno)
except (OSError, ValueError, RecursionError, MemoryError) as error:
    problem = (type(error).__name__, str(error), None)
print(repr(problem))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The target's Python: `version` is (major, minor, micro), `prefix` the environment it belongs to."""

    path: str
    version: tuple[int, int, int]
    implementation: str
    prefix: str
    free_threaded: bool


def find_python(python: str | Path) -> str:
    """The absolute path of an interpreter given by path or by a name on PATH; links stay, for they mark environments.

    Raises UsageError when it is not there.
    """
    given = os.path.expanduser(python)
    if os.path.isdir(given):
        raise UsageError(f"--python {python}: is a folder; name the interpreter in it, as in {given}/bin/python")
    found = os.path.abspath(given) if os.path.dirname(given) else shutil.which(given)
    if found is None or not os.path.exists(found):
        raise UsageError(f"--python {python}: no such interpreter")
    return os.path.abspath(found)


def check_interpreter(python: str | Path) -> Interpreter:
    """Start an interpreter and ask it who it is; UsageError when it cannot start, is no Python, or is too old."""
    path = find_python(python)
    answer = _answer(path, ["-c", _ASK], f"--python {python}")
    match answer:
        case (str(executable), (int(), int(), int()) as version, str(implementation), str(prefix), bool(threaded)):
            pass
        case _:
            raise UsageError(f"--python {python}: is not a Python interpreter")
    if version < OLDEST:
        name = ".".join(map(str, version))
        raise UsageError(f"--python {python}: is Python {name}; programs are observed from Python 3.6 on")
    # A wrapper that chooses by working directory (as pyenv's do) must not choose anew in another one.
    real = executable if executable and os.path.exists(executable) else path
    return Interpreter(real, version, implementation, prefix, threaded)


def check_script(command: Command, *, python: str | Path) -> None:
    """Compile the script, or the file of the test, in the target interpreter without running it.

    Raises ScriptError that names file and line.
    """
    if command.file is None or not command.file.is_file():
        return
    answer = _answer(find_python(python), ["-I", "-c", _COMPILE, str(command.file)], f"--python {python}")
    match answer:
        case None:
            return
        case (str(kind), str(message), line):
            place = f"{command.file}:{line}" if line else str(command.file)
            raise ScriptError(f"{place}: {kind}: {message}")
        case _:
            raise UsageError(f"--python {python}: cannot compile {command.file}")


def _answer(path: str, arguments: Sequence[str], who: str) -> Any:
    """The literal that the last line of the output holds."""
    try:
        done = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{who}: gave no answer in {ANSWER_SECONDS} seconds") from None
    except OSError as error:
        raise UsageError(f"{who}: cannot be started: {error.strerror}") from None
    if done.returncode:
        raise UsageError(f"{who}: does not run Python code (exit status {done.returncode}{_complaint(done.stderr)})")
    try:
        return ast.literal_eval(done.stdout.splitlines()[-1])
    except (ValueError, SyntaxError, IndexError):
        raise UsageError(f"{who}: is not a Python interpreter") from None


def _complaint(stderr: str) -> str:
    """The line of stderr that tells what went wrong, short; of a traceback that is the last, else the first."""
    lines = stderr.strip().splitlines() or ["no output"]
    line = lines[-1] if any(each.startswith("Traceback ") for each in lines) else lines[0]
    # Other programs quote the code that they took for the name of a file.
    return "" if "import sys" in stderr else f": {line[:120]}"


def fixed_addresses() -> tuple[str, ...]:
    """The words to put before a command so that addresses are not randomised; none where that cannot be done."""
    return _address_fixer()[0]


def why_addresses_vary() -> str | None:
    """What keeps addresses from being fixed, as a clause; None where they are."""
    return _address_fixer()[1]


@cache
def _address_fixer() -> tuple[tuple[str, ...], str | None]:
    """The words, or why there are none; proven once by a real process, since containers often forbid it."""
    setarch, cat = shutil.which("setarch"), shutil.which("cat")
    if setarch is None:
        return (), "the program setarch (of util-linux) is not on the path"
    if cat is None:
        return (), "the program cat, which shows whether setarch works, is not on the path"
    prefix = (setarch, platform.machine(), "-R")
    try:
        done = subprocess.run(
            [*prefix, cat, "/proc/self/personality"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=False,
        )
        if done.returncode:
            said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
            return (), f"{setarch} was refused: {said}"
        if int(done.stdout, 16) & 0x0040000:
            return prefix, None
        return (), f"{setarch} had no effect"
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return (), f"{setarch} could not be tried: {error}"


class Ending(NamedTuple):
    """How a program ended by itself: `exit_status`, or the `signal` that ended it; neither after a timeout.

    `left` counts processes that it left running and that had to be ended.
    """

    exit_status: int | None
    signal: int | None
    timed_out: bool
    seconds: float
    left: int


def run_to_end(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: Path, timeout: float, mark: str
) -> Ending:
    """Run a program in a session of its own, without input, and end everything it started.

    Its output goes to `stdout.txt` and `stderr.txt` in the folder `output`. After `timeout` seconds, or on an interrupt
    of ours, all its processes get SIGTERM and soon SIGKILL. `mark` is a text in `env` that
    tells them from any other program's. Raises UsageError when it cannot start.
    """
    started = time.monotonic()
    timed_out = False
    with open(output / "stdout.txt", "wb") as out, open(output / "stderr.txt", "wb") as err:
        try:
            process = subprocess.Popen(
                arguments, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as error:
            raise UsageError(f"{arguments[0]} cannot be started in {cwd}: {error.strerror}") from None
        with killed_at_last(process, mark) as family:
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                seconds = time.monotonic() - started
                finished = process.returncode is not None
                left = family.end(patience=FINISH_SECONDS if finished else 0)
    code = process.returncode
    return Ending(
        exit_status=None if timed_out or code < 0 else code,
        signal=None if timed_out or code >= 0 else -code,
        timed_out=timed_out,
        seconds=seconds,
        left=left if finished else 0,
    )
