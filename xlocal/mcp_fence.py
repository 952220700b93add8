"""The fence of the MCP server: the folders in which an agent may run programs, read files and keep sessions."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlparse

from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ListRootsResult

from xlocal.session import FILE


class Fence:
    """The folders in which programs may be run and files read; the first is where relative paths start."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(Path(os.path.realpath(folder)) for folder in folders)

    def within(self, roots: ListRootsResult) -> Fence:
        """The part of the fence that a client's roots leave; ToolError when that is nothing."""
        named = [Path(os.path.realpath(path)) for root in roots.roots if (path := _path_of(str(root.uri))) is not None]
        if not roots.roots:
            return self
        both = [inner for one in named for folder in self.folders if (inner := _inner(one, folder)) is not None]
        if not both:
            mine = ", ".join(map(str, self.folders))
            raise ToolError(f"none of the client's roots is inside of this server's folders ({mine})")
        return Fence(both)

    @property
    def home(self) -> Path:
        """Where relative paths start, and sessions are kept."""
        return self.folders[0]

    def check(self, path: str | Path, what: str) -> Path:
        """The real path; ToolError when it leads outside."""
        real = Path(os.path.realpath(self.home / path))
        if not any(real.is_relative_to(folder) for folder in self.folders):
            raise ToolError(f"{what} {path}: lies outside of {', '.join(map(str, self.folders))}")
        return real


def _path_of(uri: str) -> str | None:
    parsed = urlparse(uri)
    return unquote(parsed.path) if parsed.scheme == "file" and parsed.netloc in ("", "localhost") else None


def _inner(one: Path, other: Path) -> Path | None:
    if one.is_relative_to(other):
        return one
    return other if other.is_relative_to(one) else None


def session_folder(fence: Fence, name: str, *, existing: bool = False) -> Path:
    """Where a session is kept; ToolError for a name that is none, or with `existing` when nothing is there."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ToolError(f"{name!r} is no name of a session: letters, digits, dots, dashes")
    folder = fence.home / ".xlocal" / name
    if existing and not (folder / FILE).is_file():
        raise ToolError(f"there is no session {name!r}; make one with trace_pair or localize_test")
    return folder
