"""Where the real cases run: the interpreters of this machine, a cached environment per released package, and prepared
checkouts of repositories."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

OLDEST = (3, 6)
NEWEST = (3, 14)


class Interpreter(NamedTuple):
    """A Python that starts here: its full version and its path."""

    version: tuple[int, int, int]
    path: Path

    @property
    def minor(self) -> str:
        """As `3.9`."""
        return f"{self.version[0]}.{self.version[1]}"


class UnavailableError(Exception):
    """A case cannot run on this machine; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One real bug: where its scripts are, what they observe, and what the fix changed.

    `kind` is `pypi` (a released package, see `requirements`) or `swe-bench-lite` (a repository at its base commit).
    `true_functions` are `path::qualname`; `references` come in the order to prefer them; `in_repo` says that the
    scripts run in the checkout instead of an empty folder.
    """

    id: str
    kind: str
    folder: Path
    python: str
    scope: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    issue: str
    references: tuple[Path, ...]
    true_functions: tuple[str, ...]
    requirements: tuple[str, ...]
    in_repo: bool

    @property
    def buggy(self) -> Path:
        """The script that shows the bug."""
        return self.folder / "buggy.py"

    @property
    def repository(self) -> str:
        """The project the bug is in: `django/django` of a repository, the name of a released package."""
        if self.kind == "pypi":
            return re.split(r"[=<>!~ \[;]", self.requirements[0], maxsplit=1)[0]
        return self.id.rpartition("-")[0].replace("__", "/")


def load_cases(folder: Path) -> list[Case]:
    """Every case under `folder`, by id. Raises FileNotFoundError when there is none.

    A case without issue text of its own takes it from `../data/swe_bench_lite.jsonl` beside `folder`.
    """
    files = sorted(folder.glob("*/case.json"))
    if not files:
        raise FileNotFoundError(f"no case in {folder}: expected {folder}/ID/case.json")
    statements = _problem_statements(folder.resolve().parent / "data" / "swe_bench_lite.jsonl")
    return [_load_case(file, statements) for file in files]


def _load_case(file: Path, statements: dict[str, str]) -> Case:
    row = json.loads(file.read_text(encoding="utf-8"))
    return Case(
        id=row["id"],
        kind=row["kind"],
        folder=file.parent.resolve(),
        python=row["python"],
        scope=tuple(row["scope"]),
        env=tuple(row["env"].items()),
        issue=row["issue"] or statements.get(row.get("instance_id", ""), ""),
        references=tuple(file.parent.resolve() / name for name in row["references"]),
        true_functions=tuple(row["true_functions"]),
        requirements=tuple(row.get("requirements", ())),
        in_repo=row.get("cwd") == "repo",
    )


def _problem_statements(file: Path) -> dict[str, str]:
    if not file.is_file():
        return {}
    with file.open(encoding="utf-8") as lines:
        rows = (json.loads(line) for line in lines)
        return {row["instance_id"]: row["problem_statement"] for row in rows}


@cache
def found_interpreters() -> tuple[Interpreter, ...]:
    """One interpreter per minor version from 3.6 up, oldest first: this one, then pyenv's, uv's and those on PATH."""
    by_minor: dict[str, Interpreter] = {}
    for path in _candidates():
        interpreter = _started(path)
        if interpreter is not None:
            by_minor.setdefault(interpreter.minor, interpreter)
    return tuple(sorted(by_minor.values()))


def find_interpreter(minor: str) -> Interpreter:
    """The interpreter of this machine of that minor version (`3.9`). Raises UnavailableError."""
    for interpreter in found_interpreters():
        if interpreter.minor == minor:
            return interpreter
    raise UnavailableError(f"no Python {minor} here")


def _candidates() -> Iterator[Path]:
    yield Path(getattr(sys, "_base_executable", sys.executable))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob("versions/*/bin/python"), reverse=True)
    data = Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share"))
    managed = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", data / "uv" / "python"))
    yield from sorted(managed.glob("cpython-*/bin/python3"), reverse=True)
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        on_path = shutil.which(f"python3.{minor}")
        if on_path:
            yield Path(on_path)


def _started(path: Path) -> Interpreter | None:
    """Ask the interpreter itself: a shim on PATH may name a version that is not installed."""
    code = "import sys; print(*sys.version_info[:3]); print(sys.implementation.name)"
    try:
        answer = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    numbers, implementation = answer.stdout.splitlines()
    major, minor, micro = (int(number) for number in numbers.split())
    if implementation != "cpython" or not OLDEST <= (major, minor) <= NEWEST:
        return None
    return Interpreter((major, minor, micro), path)


def environment(minor: str, requirements: tuple[str, ...], *, folder: Path) -> Path:
    """The Python of a virtual environment under `folder` that holds `requirements`; made once, then reused.

    Raises UnavailableError when there is no such interpreter or the requirements do not install.
    """
    base = find_interpreter(minor)
    key = hashlib.sha256("\n".join([str(base.path), *requirements]).encode()).hexdigest()[:12]
    home = folder.resolve() / f"py{minor}-{key}"
    python, complete = home / "bin" / "python", home / ".complete"
    if complete.is_file():
        return python
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    _uv("venv", "--quiet", "--python", str(base.path), str(home))
    if requirements:
        _uv("pip", "install", "--quiet", "--python", str(python), *requirements)
    complete.touch()
    return python


def _uv(*arguments: str) -> None:
    # VIRTUAL_ENV would make uv warn about, or prefer, the environment that this program runs in.
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    result = subprocess.run(
        [sys.executable, "-m", "uv", *arguments], capture_output=True, text=True, env=env, check=False
    )
    if result.returncode:
        lines = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
        raise UnavailableError(f"uv {arguments[0]}: {' '.join(line.strip() for line in lines)[:400]}")


class Place(NamedTuple):
    """What runs a case: an interpreter with the package in it, and the checkout to stand in (None: an empty folder)."""

    python: Path
    cwd: Path | None


def place_of(case: Case, *, checkouts: Path | None, environments: Path) -> Place:
    """Where `case` runs; makes the environment of a released package. Raises UnavailableError."""
    if case.kind == "pypi":
        return Place(environment(case.python, case.requirements, folder=environments / case.id), None)
    if checkouts is None:
        raise UnavailableError("needs a prepared checkout (--checkouts)")
    folder = checkouts.resolve() / case.id
    named, repo = folder / "python", folder / "repo"
    if not named.is_file() or not repo.is_dir():
        raise UnavailableError(f"no prepared checkout: {folder} needs repo/ and a text file python")
    python = Path(named.read_text(encoding="utf-8").strip())
    if not python.is_absolute():
        python = folder / python
    if not python.is_file():
        raise UnavailableError(f"{named} names {python}, which does not exist")
    return Place(python, repo if case.in_repo else None)
