"""Defaults for the command line, from `[tool.xlocal]` in the nearest pyproject.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xlocal.tracer.errors import UsageError

FILE = "pyproject.toml"
# Spelled out here, so that `--help` and this file need none of the modules that do the work; tests compare them.
RANKERS = ("fused", "lexical", "evidence", "paper", "embedding", "commits", "proximity", "spectrum")
BACKENDS = ("auto", "native", "monitoring", "setprofile")


@dataclass(frozen=True, slots=True)
class Settings:
    """What an option is when the command line does not give it; `timeout` and `budget` are seconds."""

    scope: tuple[str, ...] = ()
    python: str | None = None
    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 300.0
    session: Path = Path(".xlocal/latest")
    repeat: int = 2
    ranker: str = "fused"
    model: str | None = None
    top: int = 20
    backend: str = "auto"
    budget: float = 60.0


def load_settings(start: Path) -> Settings:
    """Read `[tool.xlocal]` of the pyproject.toml in `start` or its nearest parent; without one, the defaults.

    Relative paths in the file are relative to the file. Raises UsageError, naming the file and the key, for a file
    that is not TOML, an unknown key or a value of the wrong type.
    """
    file = _nearest(start.resolve())
    if file is None:
        return Settings()
    table = _table(file)
    unknown = sorted(table.keys() - _READERS.keys())
    if unknown:
        known = ", ".join(_READERS)
        raise UsageError(f"{file}: [tool.xlocal] has an unknown key {unknown[0]!r}; known keys: {known}")
    values = {}
    for key, value in table.items():
        wanted, read = _READERS[key]
        try:
            values[key] = read(value, file.parent)
        except (TypeError, ValueError):
            raise UsageError(f"{file}: [tool.xlocal] {key} must be {wanted}, not {value!r}") from None
    return Settings(**values)


def _nearest(start: Path) -> Path | None:
    return next((file for folder in (start, *start.parents) if (file := folder / FILE).is_file()), None)


def _table(file: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{file}: is not valid TOML: {error}") from None
    tool = document.get("tool", {})
    table = tool.get("xlocal", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [tool.xlocal] must be a table")
    return table


def _text(value: Any, _base: Path) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _path(value: Any, base: Path) -> Path:
    return base / _text(value, base)


def _program(value: Any, base: Path) -> str:
    """A bare name is looked up on PATH later; anything with a slash is a path beside the file."""
    text = _text(value, base)
    return str(base / text) if "/" in text or "\\" in text else text


def _model(value: Any, base: Path) -> str:
    """A folder beside the file when there is one, else a name on the hub, which has a slash too."""
    text = _text(value, base)
    return str(base / text) if (base / text).is_dir() else text


def _scopes(value: Any, base: Path) -> tuple[str, ...]:
    """Folders become absolute, so that they mean the same from every sub-folder; package names stay."""
    if not isinstance(value, list):
        raise TypeError
    texts = [_text(item, base) for item in value]
    return tuple(str(base / text) if (base / text).is_dir() else text for text in texts)


def _env(value: Any, base: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise TypeError
    return dict(value)


def _positive(kind: type[int] | type[float]) -> Callable[[Any, Path], Any]:
    def read(value: Any, _base: Path) -> int | float:
        if isinstance(value, bool) or not isinstance(value, (int, kind)):
            raise TypeError
        if not value > 0:
            raise ValueError
        return kind(value)

    return read


def _one_of(names: tuple[str, ...]) -> Callable[[Any, Path], str]:
    def read(value: Any, base: Path) -> str:
        if _text(value, base) not in names:
            raise ValueError
        return str(value)

    return read


_READERS: dict[str, tuple[str, Callable[[Any, Path], Any]]] = {
    "scope": ("a list of folders or packages", _scopes),
    "python": ("a path or the name of an interpreter", _program),
    "cwd": ("a folder", _path),
    "env": ("a table of strings", _env),
    "timeout": ("a number of seconds above 0", _positive(float)),
    "session": ("a folder", _path),
    "repeat": ("a whole number above 0", _positive(int)),
    "ranker": (f"one of {', '.join(RANKERS)}", _one_of(RANKERS)),
    "model": ("an encoder: a folder or a name on the hub", _model),
    "top": ("a whole number above 0", _positive(int)),
    "backend": (f"one of {', '.join(BACKENDS)}", _one_of(BACKENDS)),
    "budget": ("a number of seconds above 0", _positive(float)),
}


def key_descriptions() -> dict[str, str]:
    """What each key of `[tool.xlocal]` takes, for the documentation."""
    return {key: wanted for key, (wanted, _) in _READERS.items()}
