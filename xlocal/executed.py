"""What the tests of a run executed, as `xlocal.tracer.executed` wrote it; and running pytest to find that out."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlocal.tracer import launch
from xlocal.tracer.errors import ScriptError
from xlocal.tracer.trace import UncaughtException

# As in the plugin, which is not imported, because pytest may be in the target alone; a test compares them.
VERSION = 1
VARIABLE = "XLOCAL_EXECUTED"
PLUGIN = Path(launch.__file__).with_name("executed.py")
_MODULE = "xlocal_executed"  # what the plugin is called in the target, where xlocal is not installed
# As the command `pytest` does: without the working directory on sys.path.
_PYTEST = "import sys; del sys.path[0]; import pytest; sys.exit(pytest.main())"

Place = tuple[str, int, str]  # file, first line and name of a function's code


@dataclass(frozen=True, slots=True)
class TestRun:
    """One test: `outcome` is passed, failed or other (skipped, or expected to fail).

    `places` are the codes that its setup and call executed, None when they could not be seen. `raised` holds the
    exception that failed it, then its causes.
    """

    __test__ = False  # pytest collects classes by such names

    outcome: str
    places: frozenset[Place] | None
    raised: tuple[UncaughtException, ...]


@dataclass(frozen=True, slots=True)
class Executed:
    """The tests of one run by node id, and all that were collected; `held_by` names what kept the hook from us."""

    tests: Mapping[str, TestRun]
    collected: tuple[str, ...] = ()
    rootdir: str | None = None
    held_by: str | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Executed:
        """Read what the plugin wrote; ValueError when another version of xlocal wrote it."""
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']}")
        places: list[Place] = [(row[0], row[1], row[2]) for row in document["codes"]]
        tests = {nodeid: _test_run(row, places) for nodeid, row in document["tests"].items()}
        held_by = document["hook_held_by"]
        return cls(tests, tuple(document["collected"]), document.get("rootdir"), held_by)

    @classmethod
    def merged(cls, parts: Iterable[Executed]) -> Executed:
        """The tests of several processes of one run; seen whole only when every one of them could be seen."""
        each = list(parts)
        return cls(
            {nodeid: run for part in each for nodeid, run in part.tests.items()},
            tuple(dict.fromkeys(nodeid for part in each for nodeid in part.collected)),
            next((part.rootdir for part in each if part.rootdir), None),
            next((part.held_by for part in each if part.held_by), None),
        )


def _test_run(row: Mapping[str, Any], places: Sequence[Place]) -> TestRun:
    codes = row["codes"]
    raised = tuple(
        UncaughtException(error["type"], error["message"], tuple(tuple(frame) for frame in error["frames"]))
        for error in row["raised"] or ()
    )
    return TestRun(row["outcome"], None if codes is None else frozenset(places[code] for code in codes), raised)


def run_tests(arguments: Sequence[str], *, python: str, cwd: Path, env: Mapping[str, str], timeout: float) -> Executed:
    """Run pytest with these arguments in the target's interpreter, and tell what each test executed.

    Raises ScriptError, with the last line that pytest wrote, when it did not get to its end.
    """
    with tempfile.TemporaryDirectory(prefix="xlocal-tests-") as name:
        folder = Path(name)
        (folder / "plugin").mkdir()
        shutil.copy(PLUGIN, folder / "plugin" / f"{_MODULE}.py")
        wanted = folder / "executed.json"
        paths = [str(folder / "plugin"), *filter(None, [env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))])]
        environment = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: str(wanted)}
        program = [python, "-c", _PYTEST, "-p", _MODULE, *arguments]
        ending = launch.run_to_end(program, cwd=cwd, env=environment, output=folder, timeout=timeout, mark=name)
        if not wanted.exists():
            how = f"still ran after {timeout:g} seconds" if ending.timed_out else f"exit status {ending.exit_status}"
            raise ScriptError(f"pytest did not run the tests ({how}): {_last_line(folder)}")
        return Executed.from_json(json.loads(wanted.read_text("utf-8", "surrogateescape")))


def _last_line(folder: Path) -> str:
    for name in ("stderr.txt", "stdout.txt"):
        lines = [line.strip() for line in (folder / name).read_text("utf-8", "replace").splitlines()]
        for line in reversed(lines):
            if line:
                return line
    return "it wrote nothing"
