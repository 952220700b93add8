"""How Python code lies on disk: packages, installation folders, git work trees, environments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

SITE = ("site-packages", "dist-packages")


@lru_cache(maxsize=65536)
def real(path: str) -> str:
    """The path without symbolic links, remembered."""
    return os.path.realpath(path)


def inside(path: str, folder: str) -> str | None:
    """The rest of a path below a folder (empty for the same path); None when it is not there."""
    here, there = os.path.normcase(path), os.path.normcase(folder)
    if here == there:
        return ""
    there = there if there.endswith(os.sep) else there + os.sep
    return path[len(there) :] if here.startswith(there) else None


def installation(path: str) -> str | None:
    """The site-packages folder (or egg) that holds a path, or None; the path itself does not count."""
    parts = os.path.dirname(path).split(os.sep)
    places = [index for index, part in enumerate(parts) if part in SITE]
    if not places:
        return None
    end = places[-1] + 1
    if end < len(parts) and parts[end].endswith(".egg"):
        end += 1
    return os.sep.join(parts[:end])


def repository(path: str) -> str | None:
    """The innermost git work tree that holds a path, unless it is installed."""
    if installation(path) is not None:
        return None
    here = Path(path)
    return next((str(folder) for folder in (here, *here.parents) if (folder / ".git").exists()), None)


def work_tree(folder: str) -> str:
    """The git work tree around a folder, else the folder itself; a real path."""
    path = os.path.realpath(folder)
    return repository(path) or path


def package_holder(folder: str) -> str:
    """The folder above the top package that a folder belongs to, or the folder itself."""
    here = Path(folder)
    while (here / "__init__.py").is_file() and here.parent != here:
        here = here.parent
    return str(here)


def is_environment(folder: str) -> bool:
    """Whether a folder is the top of a virtual environment."""
    return os.path.exists(os.path.join(folder, "pyvenv.cfg"))


def python_files(path: str) -> Iterator[str]:
    """The `.py` files of a folder (sorted, without caches, hidden folders and environments), or the file itself."""
    if os.path.isfile(path):
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not _is_skipped(folder, name))
        yield from (os.path.join(folder, name) for name in sorted(files) if name.endswith(".py"))


def _is_skipped(folder: str, name: str) -> bool:
    path = os.path.join(folder, name)
    if name[0] == "." or name in ("__pycache__", "node_modules", *SITE) or is_environment(path):
        return True
    # A project's build output is a plain folder; a package may well be called build.
    return name == "build" and not os.path.exists(os.path.join(path, "__init__.py"))
