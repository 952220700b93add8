"""Cell magics for IPython and Jupyter: `%%xlocal buggy` and `%%xlocal reference` compare two cells.

Each cell is a script of its own, run by the kernel's interpreter in a fresh process, in the notebook's folder.
"""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any, NoReturn

from xlocal.api import Found, localize
from xlocal.tracer.errors import UsageError

FOLDER = Path(".xlocal/notebook")


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext xlocal` calls: registers the cell magic `%%xlocal`."""
    shell.register_magic_function(Cells().run, magic_kind="cell", magic_name="xlocal")


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%xlocal: {message}")


def _parser() -> _Parser:
    parser = _Parser(prog="%%xlocal", add_help=False)
    parser.add_argument("role", choices=("buggy", "reference"))
    parser.add_argument("name", nargs="?", default="1")
    parser.add_argument("--scope", action="append", default=[])
    parser.add_argument("--issue")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--top", type=int, default=10)
    return parser


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

        `%%xlocal buggy|reference [NAME] [--scope S] [--issue TEXT] [--repeat N] [--top N]`: NAME tells several
        references apart. Raises UsageError for other words.
        """
        given = _parser().parse_args(shlex.split(line))
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


def _plain(name: str) -> str:
    if not name.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"%%xlocal: {name!r} must be a plain word")
    return name
