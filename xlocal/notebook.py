"""Cell magics for IPython and Jupyter: `%%xlocal buggy` and `%%xlocal reference` compare two cells.

Each cell is a script of its own, run by the kernel's interpreter in a fresh process, in the notebook's folder.
"""

from __future__ import annotations

import argparse
import os
import shlex
import warnings
from pathlib import Path
from typing import Any, NoReturn

from xlocal.api import Found, localize
from xlocal.tracer.errors import ScriptError, UsageError, XlocalError

FOLDER = Path(".xlocal/notebook")
MAGIC = "xlocal"
USAGE = "%%xlocal buggy|reference [NAME] [--scope S] [--issue TEXT] [--repeat N] [--top N]"


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext xlocal` calls: registers the cell magic `%%xlocal`."""
    from IPython.core.error import UsageError as OneLine

    cells = Cells()

    def xlocal(line: str, cell: str) -> Found | str:
        try:
            return cells.run(line, cell)
        except XlocalError as error:
            raise OneLine(str(error)) from None  # shown without a traceback

    xlocal.__doc__ = f"{USAGE}\n\nKeeps the cell as a script, and compares once there is one of either role."
    shell.register_magic_function(xlocal, magic_kind="cell", magic_name=MAGIC)


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext xlocal` calls: `%%xlocal` is gone; scripts and session stay in `.xlocal/notebook`."""
    shell.magics_manager.magics["cell"].pop(MAGIC, None)


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%xlocal: {message}; usage: {USAGE}")


def _parser() -> _Parser:
    parser = _Parser(prog="%%xlocal", add_help=False, allow_abbrev=False)
    parser.add_argument("role", choices=("buggy", "reference"))
    parser.add_argument("name", nargs="?", default="1")
    parser.add_argument("--scope", action="append", default=[])
    parser.add_argument("--issue")
    parser.add_argument("--repeat", type=_count, default=2)
    parser.add_argument("--top", type=_count, default=10)
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


class Cells:
    """The cells of one notebook: the buggy one, and the references by name."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self.issue: str | None = None
        self.scope: tuple[str, ...] = ()
        self.buggy: Path | None = None
        self.references: dict[str, Path] = {}

    def run(self, line: str, cell: str) -> Found | str:
        """Keep the cell as a script; compare as soon as there is a buggy cell and a reference.

        The line is as USAGE says; NAME tells several references apart. Raises UsageError for other words, ScriptError
        for a cell with a syntax error, which is not kept, and what `localize` raises.
        """
        try:
            given = _parser().parse_args(shlex.split(line))
        except ValueError as error:  # quotes without an end
            raise UsageError(f"%%xlocal: {error}; usage: {USAGE}") from None
        _check_syntax(cell, given.role)
        script = self.folder / ("buggy.py" if given.role == "buggy" else f"reference-{_plain(given.name)}.py")
        self.folder.mkdir(parents=True, exist_ok=True)
        script.write_text(cell, "utf-8")
        if given.role == "buggy":
            self.buggy = script
        else:
            self.references[given.name] = script
        self.issue, self.scope = given.issue or self.issue, tuple(given.scope) or self.scope
        if self.buggy is None or not self.references:
            missing = "%%xlocal reference" if self.buggy else "%%xlocal buggy"
            return f"kept as {script}; the comparison follows when there is a cell {missing}"
        # Modules beside the notebook are imported as they are in its cells.
        paths = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
        return localize(
            self.buggy,
            *self.references.values(),
            issue=self.issue,
            scope=self.scope,
            env={"PYTHONPATH": os.pathsep.join(paths)},
            repeat=given.repeat,
            top=given.top,
            session=self.folder / "session",
        )


def _check_syntax(cell: str, role: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the cell's own run shows them
            compile(cell, role, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        what = getattr(error, "msg", error)
        place = f", line {line} below it" if line else ""
        raise ScriptError(f"%%xlocal {role}{place}: {type(error).__name__}: {what}") from None


def _plain(name: str) -> str:
    if not name.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"%%xlocal: {name!r} must be a plain word")
    return name
