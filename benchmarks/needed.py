"""Ends a benchmark in one clear line where the running Python lacks the packages that it needs."""

from __future__ import annotations

import importlib.util
import sys


def require(*modules: str) -> None:
    """Exit with 2 unless every module can be found; imports nothing."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(_refused(", ".join(missing)))


def _refused(missing: str) -> int:
    sys.stderr.write(
        f"{sys.argv[0]}: {sys.executable} has no {missing}: needs the extra dev: make test makes the environment, "
        "then run .venv/bin/python\n"
    )
    return 2
