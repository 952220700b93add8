"""An MCP server: coding agents compare runs, read the suspects and their evidence, and see sources and differences.

Programs run in processes of their own that end when the agent cancels. Paths stay inside the server's folders, and
inside the roots of a client that names some.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlparse

import anyio
import anyio.abc
import anyio.to_thread
from mcp.server.mcpserver import Context, ListRoots, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp.types import ListRootsResult, ToolAnnotations

from xlocal.ranking.evidence import RankedSuspect
from xlocal.ranking.localize import Localization
from xlocal.ranking.rank import DEFAULT_RANKER
from xlocal.session import FILE, named_after
from xlocal.settings import RANKERS
from xlocal.tracer.command import parse_command
from xlocal.tracer.errors import SessionError, UsageError, XlocalError
from xlocal.worker import COMMAND, environment

HOST = "127.0.0.1"  # there is no authentication, so nobody from elsewhere may ask
TOP = 15
MOST_LINES = 200
MOST_SOURCE = 400  # lines of a function
PATIENCE = 10  # seconds that a cancelled worker has to end what it started
INSTRUCTIONS = """\
xlocal finds the function to blame for a bug. Write two short scripts: one that shows the bug and one, as similar as
possible, that works (other input, or the feature left out). trace_pair runs both and ranks the functions of the project
by what differs; explain, show_source and diff_tree tell more about a suspect. When a test fails, localize_test does it
without scripts. Several references show more than one. Ranks are evidence, not proof: read the first few suspects.
"""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class EvidenceRow:
    """One observation: what kind, how much it weighs (0 to 1), and a clause for people."""

    kind: str
    weight: float
    detail: str


@dataclass(frozen=True)
class SuspectRow:
    """A function that may be to blame; `line` is 0 where its source is not there."""

    rank: int
    function: str
    path: str
    line: int
    end_line: int
    score: float
    reason: str
    evidence: list[EvidenceRow] = field(default_factory=list)


@dataclass(frozen=True)
class RunRow:
    """One program that was run and how it ended."""

    role: str
    command: str
    ended: str
    calls: int
    functions: int


@dataclass(frozen=True)
class Ranking:
    """The suspects in order of blame, the first of `total`; `warnings` say what could not be seen."""

    session: str
    runs: list[RunRow]
    distance: str
    total: int
    suspects: list[SuspectRow]
    warnings: list[str]
    compared_with: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Explained:
    """A suspect in words: its evidence, calls of both runs side by side, lines taken, values."""

    suspect: SuspectRow
    text: str


@dataclass(frozen=True)
class Source:
    """The source of a function, whole or its beginning."""

    function: str
    path: str
    line: int
    end_line: int
    text: str
    whole: bool


@dataclass(frozen=True)
class Differences:
    """The call tree of only the differences between the buggy run and one reference, as indented text."""

    session: str
    reference: str
    only_buggy: int
    only_reference: int
    exact: bool
    text: str


async def client_roots(ctx: Context) -> ListRootsResult | ListRoots:
    """The roots of the client; none when it has no such notion."""
    capabilities = ctx.client_capabilities
    if capabilities is not None and capabilities.roots is not None:
        return ListRoots()
    return ListRootsResult(roots=[])


Roots = Annotated[ListRootsResult, Resolve(client_roots)]


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


class Tools:
    """What agents can call. `python` is the interpreter of programs when the agent names none."""

    def __init__(self, folders: Sequence[Path], *, python: str) -> None:
        self.fence = Fence(folders)
        self.python = python

    async def trace_pair(  # noqa: PLR0913 - each is an option of `xlocal trace`
        self,
        *,
        ctx: Context,
        roots: Roots,
        buggy: str,
        references: list[str],
        issue: str | None = None,
        scope: list[str] | None = None,
        python: str | None = None,
        timeout: float = 300.0,
        session: str = "latest",
        top: int = TOP,
    ) -> Ranking:
        """Run a script that shows a bug and at least one that works, compare what happened inside, rank the functions.

        Each command is a script ('repro.py --flag'), a module ('-m pkg.tool x') or a test
        ('pytest tests/test_a.py::test_b'), relative to the project's folder. References should resemble the buggy
        script. `issue` is the bug report, which makes the ranking better. `scope` names folders or packages to observe
        (default: what the scripts import). `python` is the project's interpreter, `timeout` seconds for one run; each
        script runs three or four times.
        """
        fence = self.fence.within(roots)
        if not references:
            raise ToolError("name at least one reference: a script like the buggy one that works")
        for command in (buggy, *references):
            self._check_command(fence, command)
        request = {
            "question": {
                "buggy": buggy,
                "references": references,
                "scope": self._scope(fence, scope),
                "python": self._interpreter(fence, python),
                "cwd": str(fence.home),
                "timeout": timeout,
                "issue": issue,
            },
            "session": str(_session(fence, session)),
            "top": 1,
        }
        await _work("trace", request, ctx, fence.home)
        return await self._ranked(fence, session, top=top)

    async def localize_test(
        self,
        *,
        ctx: Context,
        roots: Roots,
        test: str,
        scope: list[str] | None = None,
        python: str | None = None,
        references: int = 2,
        timeout: float = 300.0,
        top: int = TOP,
    ) -> Ranking:
        """Compare a failing test with its nearest passing relatives, and rank the functions of the project.

        `test` is a pytest node id relative to the project's folder, such as tests/test_a.py::TestB::test_c[param].
        """
        fence = self.fence.within(roots)
        fence.check(test.partition("::")[0], "the test")
        name = named_after(test)
        question = {
            "nodeid": test,
            "scope": self._scope(fence, scope),
            "python": self._interpreter(fence, python),
            "cwd": str(fence.home),
            "references": references,
            "timeout": timeout,
        }
        request = {"question": question, "session": str(_session(fence, name)), "top": 1}
        answer = await _work("localize_test", request, ctx, fence.home)
        relatives = [row["nodeid"] for row in answer["relatives"]]
        return await self._ranked(fence, name, top=top, compared_with=relatives)

    async def localize(
        self, roots: Roots, issue: str | None = None, ranker: str = "fused", session: str = "latest", top: int = TOP
    ) -> Ranking:
        """Rank the functions of a session again, by another issue text or ranker; runs nothing.

        Rankers: fused (the default), lexical, evidence, paper, embedding, commits, proximity, spectrum.
        """
        return await self._ranked(self.fence.within(roots), session, top=top, issue=issue, ranker=ranker)

    async def explain(self, roots: Roots, function: str, session: str = "latest") -> Explained:
        """Tell why a function is suspected: its calls in both runs side by side, the lines they took, and the values.

        `function` is a name as the ranking gives it, the end of one, or path::name.
        """
        fence = self.fence.within(roots)
        folder = _session(fence, session, existing=True)

        def work() -> Explained:
            from xlocal.explain import explain, print_explanation
            from xlocal.report import make_console

            explained = explain(folder, function)
            paper = StringIO()
            print_explanation(explained, make_console(paper))
            return Explained(_row(explained.ranked), paper.getvalue())

        return await _in_thread(work)

    async def show_source(self, roots: Roots, function: str, session: str = "latest") -> Source:
        """Show the source of a suspect, as it is in the project now, with its place. `function` is as for explain."""
        fence = self.fence.within(roots)
        folder = _session(fence, session, existing=True)

        def work() -> Source:
            from xlocal.explain import explain

            explained = explain(folder, function)
            source = explained.source
            if source is None:
                raise UsageError(f"{function}: its source is not there")
            lines = source.text.splitlines()
            text = "\n".join(lines[:MOST_SOURCE])
            identity = explained.ranked.suspect.function
            whole = len(lines) <= MOST_SOURCE
            return Source(identity.qualname, identity.path, source.line, source.end_line, text, whole)

        return await _in_thread(work)

    async def diff_tree(
        self, roots: Roots, session: str = "latest", reference: int = 1, lines: int = MOST_LINES
    ) -> Differences:
        """Show the call tree of only the differences between the buggy run and one reference (counted from 1).

        `-` marks calls of the buggy run alone, `+` those of the reference alone, `~` calls that ended otherwise.
        """
        fence = self.fence.within(roots)
        folder = _session(fence, session, existing=True)

        def work() -> Differences:
            from xlocal.diff_view import chosen_role, print_diff, read_again, roles_of
            from xlocal.report import make_console, plain

            role = chosen_role(roles_of(folder), reference)
            compared = read_again(folder, (role,), budget=60.0)[0]
            paper = StringIO()
            paper.writelines(f"warning: {warned.slug}: {plain(warned.text)}\n" for warned in compared.warnings)
            print_diff(compared, make_console(paper), most=lines)
            difference = compared.difference
            counts = len(difference.deleted), len(difference.inserted)
            return Differences(session, role, *counts, difference.exact, paper.getvalue())

        return await _in_thread(work)

    def sessions(self) -> str:
        """The sessions of the server's first folder as JSON: names to give to the tools, with what was run."""
        folders = sorted((self.fence.home / ".xlocal").glob(f"*/{FILE}"))
        listed = []
        for file in folders:
            try:
                commands = json.loads(file.read_text("utf-8"))["commands"]
            except (OSError, ValueError, KeyError, TypeError):
                continue  # being replaced just now, or no session of ours
            listed.append({"session": file.parent.name, "commands": commands})
        return json.dumps(listed, indent=1)

    async def session(self, name: str) -> str:
        """One session: its runs, suspects and warnings, as JSON."""
        try:
            folder = _session(self.fence, name, existing=True)
        except ToolError as error:
            raise ResourceNotFoundError(str(error)) from None

        def work() -> str:
            from xlocal.question import rerank
            from xlocal.report import as_json

            return as_json(rerank(folder), top=TOP)

        return await _in_thread(work)

    async def _ranked(
        self,
        fence: Fence,
        session: str,
        *,
        top: int,
        issue: str | None = None,
        ranker: str = "fused",
        compared_with: Sequence[str] = (),
    ) -> Ranking:
        folder = _session(fence, session, existing=True)
        if ranker not in RANKERS:
            raise ToolError(f"there is no ranker {ranker!r}; choose one of {', '.join(RANKERS)}")

        def work() -> Ranking:
            from xlocal.question import rerank

            return _ranking(rerank(folder, issue=issue, ranker=ranker), session, top, compared_with)

        return await _in_thread(work)

    def _check_command(self, fence: Fence, command: str) -> None:
        try:
            file = parse_command(command, cwd=fence.home).file
        except UsageError as error:
            raise ToolError(str(error)) from None
        if file is not None:
            fence.check(file, "the script")

    def _scope(self, fence: Fence, scope: Sequence[str] | None) -> list[str]:
        """Names of packages are looked up by the interpreter; whatever is a path must lie inside."""
        for item in scope or ():
            if not all(part.isidentifier() for part in item.split(".")) or (fence.home / item).exists():
                fence.check(item, "the scope")
        return list(scope or ())

    def _interpreter(self, fence: Fence, python: str | None) -> str:
        """The server's own choice, or an interpreter of an environment inside (which links to one outside)."""
        if python is None or python == self.python:
            return self.python
        path = os.path.abspath(fence.home / python)
        fence.check(os.path.dirname(path), "the interpreter")
        return path


def _session(fence: Fence, name: str, *, existing: bool = False) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ToolError(f"{name!r} is no name of a session: letters, digits, dots, dashes")
    folder = fence.home / ".xlocal" / name
    if existing and not (folder / FILE).is_file():
        raise ToolError(f"there is no session {name!r}; make one with trace_pair or localize_test")
    return folder


def _ranking(found: Localization, session: str, top: int, compared_with: Sequence[str]) -> Ranking:
    from xlocal.report import all_warnings, distance, outcome

    return Ranking(
        session=session,
        runs=[RunRow(run.role, run.command, outcome(run), run.calls, run.functions) for run in found.runs],
        distance=distance(found.comparison),
        total=len(found.suspects),
        suspects=[_row(ranked, issue=found.issue, ranker=found.ranker) for ranked in found.suspects[:top]],
        warnings=[f"{warned.slug}: {warned.text}" for warned in all_warnings(found)],
        compared_with=list(compared_with),
    )


def _row(ranked: RankedSuspect, *, issue: str | None = None, ranker: str = DEFAULT_RANKER) -> SuspectRow:
    from xlocal.report import reason

    suspect = ranked.suspect
    return SuspectRow(
        rank=ranked.rank,
        function=suspect.function.qualname,
        path=suspect.function.path,
        line=suspect.line,
        end_line=suspect.end_line,
        score=round(ranked.score, 4),
        reason=reason(ranked, issue=issue, ranker=ranker),
        evidence=[EvidenceRow(item.kind, item.weight, item.detail) for item in suspect.evidence],
    )


async def _in_thread(work: Callable[[], Answer]) -> Answer:
    """Do what takes a moment without keeping other requests waiting; our own errors are told to the agent."""
    try:
        return await anyio.to_thread.run_sync(work)
    except XlocalError as error:
        raise ToolError(str(error)) from None


async def _work(do: str, given: dict[str, Any], ctx: Context, folder: Path) -> dict[str, Any]:
    """What a worker answers; its progress is reported. It ends, with all that it started, when we are cancelled."""
    answer: dict[str, Any] = {"error": "the worker ended without an answer"}
    async with _worker(folder) as process:
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101
        await process.stdin.send(json.dumps({"do": do, "with": given}).encode())
        await process.stdin.aclose()
        step, rest = 0, b""
        async for received in process.stdout:
            *lines, rest = (rest + received).split(b"\n")
            for message in map(json.loads, lines):
                if "progress" not in message:
                    answer = message
                    continue
                step += 1
                await ctx.report_progress(step, None, message["progress"])
    if "error" in answer:
        raise ToolError(answer["error"])
    result: dict[str, Any] = answer["result"]
    return result


@asynccontextmanager
async def _worker(folder: Path) -> AsyncIterator[anyio.abc.Process]:
    process = await anyio.open_process(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, cwd=folder, env=environment()
    )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                with anyio.move_on_after(0 if process.stdout is None else 0.5):
                    await process.wait()
            if process.returncode is None:
                process.terminate()
                with anyio.move_on_after(PATIENCE):
                    await process.wait()
            if process.returncode is None:
                process.kill()
            await process.aclose()


def make_server(folders: Sequence[Path], *, python: str) -> MCPServer:
    """The server for some folders; the caller runs it."""
    from importlib.metadata import version

    tools = Tools(folders, python=python)
    server = MCPServer("xlocal", instructions=INSTRUCTIONS, version=version("xlocal"), log_level="WARNING")
    runs = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool, notes in (
        (tools.trace_pair, runs),
        (tools.localize_test, runs),
        (tools.localize, reads),
        (tools.explain, reads),
        (tools.show_source, reads),
        (tools.diff_tree, reads),
    ):
        server.add_tool(tool, annotations=notes)
    server.resource("xlocal://sessions", mime_type="application/json")(tools.sessions)
    server.resource("xlocal://sessions/{name}", mime_type="application/json")(tools.session)
    return server


def serve(folders: Sequence[Path], *, python: str, port: int | None) -> None:
    """Serve on standard input and output, or on a port of the loopback interface, until the client or Ctrl-C ends it.

    Raises SessionError when the port is taken.
    """
    server = make_server(folders, python=python)
    if port is None:
        server.run("stdio")
        return
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise SessionError(f"--http {port}: cannot listen on {HOST}: {error.strerror}") from None
    print(f"xlocal: serving http://{HOST}:{port}/mcp", file=sys.stderr, flush=True)
    server.run("streamable-http", host=HOST, port=port)
