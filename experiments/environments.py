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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from xlocal.tracer.launch import Interpreter

from xlocal.doctor import interpreters


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
    """One interpreter per minor version from 3.6 up, oldest first; no virtual environment where there is another."""
    by_minor: dict[str, Interpreter] = {}
    for interpreter in sorted(interpreters(), key=_in_environment):
        by_minor.setdefault(minor_of(interpreter), interpreter)
    return tuple(sorted(by_minor.values(), key=lambda interpreter: interpreter.version))


def minor_of(interpreter: Interpreter) -> str:
    """As `3.9`."""
    return ".".join(map(str, interpreter.version[:2]))


def find_interpreter(minor: str) -> Interpreter:
    """The interpreter of this machine of that minor version (`3.9`). Raises UnavailableError."""
    for interpreter in found_interpreters():
        if minor_of(interpreter) == minor:
            return interpreter
    raise UnavailableError(f"no Python {minor} here")


def _in_environment(interpreter: Interpreter) -> bool:
    return (Path(interpreter.prefix) / "pyvenv.cfg").is_file()


def environment(minor: str, requirements: tuple[str, ...], *, folder: Path) -> Path:
    """The Python of a virtual environment under `folder` that holds `requirements`; made once, then reused.

    Raises UnavailableError when there is no such interpreter or the requirements do not install.
    """
    base = find_interpreter(minor)
    key = hashlib.sha256("\n".join([base.path, *requirements]).encode()).hexdigest()[:12]
    home = folder.resolve() / f"py{minor}-{key}"
    python, complete = home / "bin" / "python", home / ".complete"
    if complete.is_file():
        return python
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    _uv("venv", "--quiet", "--python", base.path, str(home))
    if requirements:
        install(python, *requirements)
    complete.touch()
    return python


def install(python: Path, *requirements: str) -> None:
    """Install into the environment of `python`. Raises UnavailableError when it cannot be done."""
    _uv("pip", "install", "--quiet", "--python", str(python), *requirements)


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
