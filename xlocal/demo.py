"""The demonstration: a real bug of a real release, installed into a cached environment, traced, ranked, explained."""

from __future__ import annotations

import importlib.resources
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from xlocal.doctor import find_program, interpreters
from xlocal.question import Progress, Question, investigate
from xlocal.ranking.comparison import Localization
from xlocal.report import plain, reason, short_name
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import XlocalError

PACKAGE = "werkzeug"
BUGGY_RELEASE = "2.2.0"
FIXED_RELEASE = "2.2.1"
# What the fix in werkzeug 2.2.1 changed.
CULPRIT = Function("werkzeug/routing/matcher.py", "StateMachineMatcher.match")
# The release uses ast.Str, which Python 3.14 removed.
OLDEST, NEWEST = (3, 8), (3, 13)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What the demo found, and a few sentences that say what it means."""

    found: Localization
    explanation: tuple[str, ...]
    next_steps: tuple[str, ...]


def run_demo(*, session: Path, progress: Progress) -> Demonstration:
    """Install the buggy release unless it is cached, trace the example pair, rank.

    Raises XlocalError when the release is neither cached nor to be had.
    """
    python = demo_python(progress=progress)
    example = example_folder("werkzeug_slashes")
    question = Question(
        buggy=str(example / "buggy.py"),
        references=(str(example / "reference.py"),),
        scope=(PACKAGE,),
        python=str(python),
        issue=(example / "issue.txt").read_text("utf-8"),
        timeout=60.0,
    )
    found = investigate(question, session=session, progress=progress)
    return Demonstration(found, explain(found), _next_steps(session, example))


def example_folder(name: str) -> Path:
    """The folder of an example pair, as installed with the package."""
    return Path(str(importlib.resources.files("xlocal.examples"))) / name


def explain(found: Localization) -> tuple[str, ...]:
    """What is seen, in plain sentences."""
    buggy, reference, *_ = found.runs
    failed = f"it ends with {short_name(buggy.exception)}" if buggy.exception else f"it exits with {buggy.exit_status}"
    passed = "ends well" if reference.exit_status == 0 else f"exits with {reference.exit_status}"
    sentences = [
        f"{PACKAGE} {BUGGY_RELEASE} does not find the page /about/, although its rule says that a final slash does not "
        f"matter: {failed}. The second script asks for /about and {passed}."
    ]
    if not found.suspects:
        return tuple(sentences)
    first = found.suspects[0]
    why = reason(first, issue=found.issue)
    sentences.append(f"First of {len(found.suspects)} functions is {first.suspect.function.qualname}: {why}")
    fix = f"{PACKAGE} {FIXED_RELEASE} repaired the bug in {CULPRIT.qualname}"
    culprit = next((item for item in found.suspects if is_culprit(item.suspect.function)), None)
    if culprit is None:
        sentences.append(f"{fix}, which is not in this list.")
    elif culprit.rank == 1:
        sentences.append(f"{fix}: the first suspect is the culprit.")
    else:
        why = reason(culprit, issue=found.issue)
        sentences.append(f"{fix}: the culprit is number {culprit.rank} of this list. {why}")
    return tuple(sentences)


def is_culprit(function: Function) -> bool:
    """Whether this is what the fix changed, or a function defined inside of that."""
    inside = function.qualname == CULPRIT.qualname or function.qualname.startswith(f"{CULPRIT.qualname}.")
    return inside and function.path == CULPRIT.path


def _next_steps(session: Path, example: Path) -> tuple[str, ...]:
    return (
        f"cat {example / 'buggy.py'}",
        f"xlocal rank --session {session} --format json",
        "xlocal trace BUGGY REFERENCE      (your own two scripts)",
        "xlocal doctor                     (what works on this machine)",
    )


def cache_folder() -> Path:
    """Where xlocal keeps what it can make again: XLOCAL_CACHE, else the platform's cache folder for users."""
    if given := os.environ.get("XLOCAL_CACHE"):
        return Path(given).absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "xlocal"


def demo_python(*, progress: Progress) -> Path:
    """The interpreter of an environment that holds the buggy release; made once, aside, and renamed into place."""
    base, version = _base_interpreter()
    home = cache_folder() / "demo" / f"{PACKAGE}-{BUGGY_RELEASE}-py{version[0]}.{version[1]}"
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    # A link to an interpreter that was removed since does not exist, and the environment is made anew.
    if python.exists():
        return python
    progress(f"installing {PACKAGE} {BUGGY_RELEASE} into {home.parent}")
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=home.parent) as aside:
            fresh = Path(aside) / home.name
            _install(base, fresh)
            shutil.rmtree(home, ignore_errors=True)
            fresh.rename(home)
    except OSError as error:
        # Another demo may have put the same environment there a moment ago: then that one serves.
        if not python.exists():
            raise XlocalError(f"{home}: cannot make the demo's environment: {error.strerror or error}") from error
    return python


def _base_interpreter() -> tuple[str, tuple[int, int]]:
    """This interpreter when the release runs on it, else the newest one found that it runs on."""
    here = (sys.version_info[0], sys.version_info[1])
    if OLDEST <= here <= NEWEST:
        return sys.executable, here
    fitting = [item for item in interpreters() if OLDEST <= item.version[:2] <= NEWEST]
    if not fitting:
        raise XlocalError(f"The demo needs a Python from 3.8 to 3.13 for {PACKAGE} {BUGGY_RELEASE}, and found none")
    newest = max(fitting, key=lambda item: item.version)
    return newest.path, newest.version[:2]


def _install(base: str, home: Path) -> None:
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    requirement = f"{PACKAGE}=={BUGGY_RELEASE}"
    uv = find_program("uv")
    if uv is not None:
        _run(uv, "venv", "--quiet", "--python", base, str(home))
        _run(uv, "pip", "install", "--quiet", "--python", str(python), requirement)
    else:
        _run(base, "-m", "venv", str(home))
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1")
        _run(str(python), *pip, requirement)


def _run(*command: str) -> None:
    # VIRTUAL_ENV would make uv warn about, or prefer, the environment that xlocal itself runs in.
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env, check=False)
    if done.returncode:
        said = plain(done.stderr) or f"exit status {done.returncode}"
        raise XlocalError(
            f"The demo needs {PACKAGE} {BUGGY_RELEASE} from the package index once, and it could not be installed "
            f"(is this machine offline?): {said[-300:]}"
        )
