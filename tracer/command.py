"""What the user asks to run: a script, a module or a pytest test, parsed once."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xlocal.tracer import layout
from xlocal.tracer.errors import UsageError

Kind = Literal["script", "module", "pytest"]

_PYTHON = re.compile(r"python[\d.]*t?")
_MODULE = re.compile(r"[^\s./\\-][^\s/\\]*")
_PYTEST = ("pytest", "py.test")
# Options of pytest whose value is the next argument, which therefore names no test.
_TAKES_VALUE = frozenset(
    ("-k", "-m", "-p", "-c", "-o", "-r", "-W", "--rootdir", "--confcutdir", "--basetemp", "--ignore", "--deselect")
) | {"--ignore-glob", "--maxfail", "--import-mode", "--override-ini", "--config-file", "--tb", "--color", "--durations"}


# Names of files that hold no program, though a short one may happen to compile.
_DOCUMENTS = frozenset((".txt", ".md", ".rst", ".log", ".csv", ".json", ".toml", ".yaml", ".yml", ".ini", ".cfg"))
_DOCUMENTS |= {".html", ".xml", ".sh", ".js", ".c", ".h", ".ipynb", ".pdf"}


@dataclass(frozen=True, slots=True)
class Command:
    """One command: `text` as the user wrote it, `target` the absolute script, the module, or the test's node id.

    `argv` is what the program finds in `sys.argv`; for pytest it is `pytest` and its arguments.
    """

    text: str
    kind: Kind
    target: str
    argv: tuple[str, ...]

    @property
    def file(self) -> Path | None:
        """The script, or the file or folder that holds the tests; None for a module."""
        if self.kind == "module":
            return None
        return Path(self.target.partition("::")[0] if self.kind == "pytest" else self.target)


def parse_command(words: str | Sequence[str], *, cwd: Path) -> Command:
    """Read `script.py --flag`, `-m pkg.tool x` or `pytest tests/test_a.py::test_b`, with or without `python` before it.

    A string is split as a shell does, unless it is itself the name of a file. Files are looked up from `cwd`.

    Raises:
        UsageError: nothing to run, an unknown form, or a script that is not there.
    """
    if isinstance(words, str):
        text, parts = words.strip(), _split(words, cwd)
    else:
        text, parts = shlex.join(words), list(words)
    if parts and _PYTHON.fullmatch(Path(parts[0]).name) and Path(parts[0]).suffix != ".py":
        parts = parts[1:]
    if not parts:
        raise UsageError(
            "No script given: name one, as in 'script.py --flag', '-m pkg.tool' or 'pytest tests/test_a.py'"
        )
    first = parts[0]
    if first == "-m":
        return _module(text, parts[1:], cwd)
    if first in _PYTEST and not os.path.isfile(cwd / first):
        return _pytest(text, parts[1:], cwd)
    if first.startswith("-"):
        raise UsageError(
            f"Cannot run {text!r}: a command starts with a script, '-m MODULE' or 'pytest'; "
            "interpreter options and '-c' code are not understood (put the code into a file)"
        )
    script = str(_existing(first, cwd))
    return Command(text, "script", script, (script, *parts[1:]))


def _split(text: str, cwd: Path) -> list[str]:
    if text and os.path.isfile(cwd / text):
        return [text]
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"Cannot read the command {text!r}: {error}") from error


def _existing(name: str, cwd: Path) -> Path:
    """The absolute path of a script as spelled; symbolic links stay, as Python keeps them in tracebacks."""
    path = Path(cwd, name).absolute()
    if os.path.isdir(path):
        raise UsageError(f"{name} is a folder, not a script")
    if not os.path.isfile(path):
        raise UsageError(f"No such script: {name} (looked in {cwd})")
    if what := _no_python(path):
        raise UsageError(f"{name} is not a Python script: {what}")
    return path


def _no_python(path: Path) -> str:
    """What tells at once that a file holds no Python, '' where nothing does."""
    try:
        with open(path, "rb") as file:
            start = file.read(4096)
    except OSError:  # the interpreter says why
        return ""
    if b"\0" in start:
        return "it is binary"
    if start.startswith(b"#!"):
        line = start.splitlines()[0]
        return "" if b"py" in line else f"its first line is {line.decode('utf-8', 'replace')[:60]}"
    suffix = path.suffix.lower()
    return f"by its name it is of the kind {suffix}" if suffix in _DOCUMENTS else ""


def _module(text: str, parts: list[str], cwd: Path) -> Command:
    if not parts:
        raise UsageError(f"Cannot run {text!r}: -m needs the name of a module")
    name = parts[0]
    if name == "pytest":
        return _pytest(text, parts[1:], cwd)
    if not _MODULE.fullmatch(name):
        raise UsageError(f"Cannot run {text!r}: {name!r} is not the name of a module")
    return Command(text, "module", name, (name, *parts[1:]))


def _pytest(text: str, parts: list[str], cwd: Path) -> Command:
    """Node ids become absolute, so that the tests are the same ones from any working directory."""
    argv = ["pytest"]
    target = missing = None
    for before, part in zip(["", *parts], parts, strict=False):
        if part.startswith("-") or before in _TAKES_VALUE:
            argv.append(part)
            continue
        file, colons, test = part.partition("::")
        path = Path(cwd, file).absolute()
        if os.path.exists(path):
            part = f"{path}{colons}{test}"  # noqa: PLW2901
            target = target or part
        else:
            missing = missing or file
        argv.append(part)
    if target is None:
        raise UsageError(
            f"No such test file: {missing} (looked in {cwd})"
            if missing
            else f"Cannot run {text!r}: name the test, as in 'pytest tests/test_a.py::test_b'"
        )
    return Command(text, "pytest", target, tuple(argv))


def read_files(command: Command) -> list[str]:
    """Files whose imports tell the project: the script, or the tests with the conftest.py files above them."""
    file = command.file
    if file is None:
        return []
    if command.kind == "script":
        return [str(file)]
    tests = [file]
    if file.is_dir():
        tests = [
            path
            for path in map(Path, layout.python_files(str(file)))
            if path.name.startswith("test") or "_test." in path.name
        ]
    folder = file if file.is_dir() else file.parent
    tree = Path(layout.work_tree(str(folder)))
    above = [folder, *folder.parents]
    within = above[: above.index(tree) + 1] if tree in above else [folder]
    conftests = [path / "conftest.py" for path in within if (path / "conftest.py").is_file()]
    return [str(path) for path in (*tests, *conftests)]


def first_on_path(command: Command, cwd: Path) -> list[str]:
    """What stands first on the program's sys.path: the script's real folder, or for tests the top of their packages."""
    file = command.file
    if file is None:
        return [str(cwd)]
    if command.kind == "script":
        return [os.path.dirname(os.path.realpath(file))]
    folder = file if file.is_dir() else file.parent
    return [layout.package_holder(str(folder)), str(cwd)]
