"""The tools of the agents: view, search, edit, create and bash, and running a script or tests."""

from __future__ import annotations

from collections.abc import Callable

from xlocal.swe_pipeline.conversation import Tool
from xlocal.swe_pipeline.workspace import SCRATCH, ToolError, Workspace, describe, shorten

_VIEW_LINES = 400
_BASH_SECONDS, _BASH_MOST = 60, 600


def work_tools(workspace: Workspace, *, may_edit: bool = True) -> tuple[Tool, ...]:
    """The tools to look at and change a work tree; without `may_edit`, they write in the scratch folder alone."""

    def view(path: str, start: int = 1, end: int = 0) -> str:
        """Show a file with line numbers, or what a folder holds.

        Args:
            path: the file, by its path in the repository.
            start: the first line to show.
            end: the last line to show; 0 shows 400 lines.
        """
        lines = workspace.read(path).split("\n")
        if lines and not lines[-1]:
            lines.pop()
        first = max(start, 1)
        last = min(end or first + _VIEW_LINES - 1, first + 4 * _VIEW_LINES, len(lines))
        if first > len(lines):
            raise ToolError(f"{path}: has {len(lines)} lines")
        shown = "\n".join(f"{number:5} {lines[number - 1]}" for number in range(first, last + 1))
        return shorten(f"{path}, lines {first}-{last} of {len(lines)}\n{shown}", 40_000)

    def search(pattern: str, path: str = ".") -> str:
        """Find lines by an extended regular expression (as grep -E), with their files and line numbers.

        Args:
            pattern: the regular expression.
            path: the file or folder to look in.
        """
        return workspace.search(pattern, path)

    def edit(path: str, old: str, new: str) -> str:
        """Replace a piece of a file. The old text must stand in the file exactly once, to the letter.

        Args:
            path: the file, by its path in the repository.
            old: the text to replace, with enough lines around to be unique.
            new: the text to put in its place.
        """
        _check_writable(workspace, path, may_edit)
        text = workspace.read(path)
        count = text.count(old) if old else 0
        if count != 1:
            found = f"stands in it {count} times" if count else "is not in it, to the letter"
            raise ToolError(f"{path}: the old text {found}; view the file and copy the lines to replace")
        workspace.write(path, text.replace(old, new))
        line = text[: text.index(old)].count("\n") + 1
        return f"{path}: replaced {old.count(chr(10)) + 1} lines by {new.count(chr(10)) + 1}, at line {line}"

    def create(path: str, text: str) -> str:
        """Write a file, new or over an old one.

        Args:
            path: the file, by its path in the repository.
            text: the whole text of the file.
        """
        _check_writable(workspace, path, may_edit)
        workspace.write(path, text)
        return f"{path}: {len(text.splitlines())} lines written"

    def bash(command: str, timeout: int = _BASH_SECONDS) -> str:
        """Run a shell command in the repository. There is no network; what runs longer than its timeout is ended.

        Args:
            command: the command.
            timeout: seconds it may take, at most 600.
        """
        return describe(workspace.bash(command, timeout=max(1, min(timeout, _BASH_MOST))))

    def run_script(path: str, timeout: int = _BASH_SECONDS) -> str:
        """Run a Python script of the repository with the project's interpreter; shows its exit status and output.

        Args:
            path: the script, such as .xlocal/buggy.py.
            timeout: seconds it may take, at most 600.
        """
        name = workspace.relative(workspace.path(path))
        return describe(workspace.python(name, timeout=max(1, min(timeout, _BASH_MOST))))

    offered: list[tuple[Callable[..., str], bool]] = [(view, False), (search, False), (edit, True), (create, True)]
    offered += [(bash, True), (run_script, True)]
    return tuple(Tool(function, writes) for function, writes in offered)


def _check_writable(workspace: Workspace, path: str, may_edit: bool) -> None:
    if not may_edit and not workspace.path(path).is_relative_to(workspace.scratch):
        raise ToolError(f"{path}: only files in {SCRATCH}/ may be written now; the repository stays as it is")
