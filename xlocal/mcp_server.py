"""An MCP server: coding agents compare runs, read the suspects and their evidence, and see sources and differences.

Programs run in processes of their own that end when the agent cancels. Paths stay inside the server's folders, and
inside the roots of a client that names some.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
from mcp.server.mcpserver import Context, ListRoots, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp.types import ListRootsResult, Tool, ToolAnnotations
from pydantic import Field, ValidationError

from xlocal.mcp_answers import (
    Differences,
    Explained,
    Ranking,
    Source,
    differences,
    explained,
    for_agents,
    ranking_of,
    source_of,
)
from xlocal.mcp_fence import Fence, session_folder
from xlocal.session import FILE, named_after
from xlocal.settings import RANKERS
from xlocal.tracer.command import parse_command
from xlocal.tracer.errors import SessionError, UsageError, XlocalError
from xlocal.worker import COMMAND, environment

HOST = "127.0.0.1"  # there is no authentication, so nobody from elsewhere may ask
TOP = 15
MOST_LINES = 200
PATIENCE = 10  # seconds that a cancelled worker has to end what it started
INSTRUCTIONS = """\
xlocal finds the function to blame for a bug. Write two short scripts: one that shows the bug and one, as similar as
possible, that works (other input, or the feature left out). trace_pair runs both and ranks the functions of the project
by what differs; explain, show_source and diff_tree tell more about a suspect. When a test fails, localize_test does it
without scripts. Several references show more than one. Ranks are evidence, not proof: read the first few suspects.
"""

Answer = TypeVar("Answer")

# The parameters of the tools, as agents read them.
Buggy = Annotated[
    str,
    Field(
        description="The command that shows the bug: a script ('repro.py --flag'), a module ('-m pkg.tool x') or a "
        "test ('pytest tests/test_a.py::test_b'), relative to the project's folder."
    ),
]
References = Annotated[
    list[str], Field(description="At least one command that works, as similar to the buggy one as possible.")
]
Issue = Annotated[str | None, Field(description="The text of the bug report; it makes the ranking better.")]
Scope = Annotated[
    list[str] | None,
    Field(description="Folders, files or packages to observe. Default: the project that the programs import."),
]
Python = Annotated[
    str | None,
    Field(description="The interpreter that runs the programs: one inside the project, else the server's --python."),
]
Timeout = Annotated[float, Field(gt=0, description="Seconds that one run may take.")]
SessionName = Annotated[str, Field(description="The name under which the results are kept, or were kept.")]
Top = Annotated[int, Field(ge=1, description="How many suspects to return.")]
FunctionName = Annotated[
    str, Field(description="A function as the ranking names it, the end of such a name, or path::name.")
]
Test = Annotated[
    str,
    Field(
        description="The failing test: a pytest node id relative to the project's folder, such as "
        "tests/test_a.py::TestB::test_c[param]."
    ),
]
Count = Annotated[int, Field(ge=1, description="How many passing tests to compare with at most.")]
Ranker = Annotated[str, Field(description=f"How to rank: one of {', '.join(RANKERS)}.")]
Which = Annotated[int, Field(ge=1, description="Which of the references, counted from 1.")]
Lines = Annotated[int, Field(ge=1, description="How many lines to return at most.")]


async def client_roots(ctx: Context) -> ListRootsResult | ListRoots:
    """The roots of the client; none when it has no such notion."""
    capabilities = ctx.client_capabilities
    if capabilities is not None and capabilities.roots is not None:
        return ListRoots()
    return ListRootsResult(roots=[])


Roots = Annotated[ListRootsResult, Resolve(client_roots)]


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
        buggy: Buggy,
        references: References,
        issue: Issue = None,
        scope: Scope = None,
        python: Python = None,
        timeout: Timeout = 300.0,
        session: SessionName = "latest",
        top: Top = TOP,
    ) -> Ranking:
        """Run a script that shows a bug and at least one that works, compare what happened inside, rank the functions.

        References should resemble the buggy script: other input, or without the feature. Each script runs four times.
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
            "session": str(session_folder(fence, session)),
            "top": 1,
        }
        await _work("trace", request, ctx, fence.home)
        return await self._ranked(fence, session, top=top)

    async def localize_test(
        self,
        *,
        ctx: Context,
        roots: Roots,
        test: Test,
        scope: Scope = None,
        python: Python = None,
        references: Count = 2,
        timeout: Timeout = 300.0,
        top: Top = TOP,
    ) -> Ranking:
        """Compare a failing test with its nearest passing relatives, and rank the functions of the project.

        The relatives are found by collecting the test's file. The session keeps a name of its own, which is returned.
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
        request = {"question": question, "session": str(session_folder(fence, name)), "top": 1}
        answer = await _work("localize_test", request, ctx, fence.home)
        relatives = [row["nodeid"] for row in answer["relatives"]]
        return await self._ranked(fence, name, top=top, compared_with=relatives)

    async def localize(
        self,
        roots: Roots,
        issue: Issue = None,
        ranker: Ranker = "fused",
        session: SessionName = "latest",
        top: Top = TOP,
    ) -> Ranking:
        """Rank the functions of a session again, by another issue text or ranker; runs nothing."""
        return await self._ranked(self.fence.within(roots), session, top=top, issue=issue, ranker=ranker)

    async def explain(self, roots: Roots, function: FunctionName, session: SessionName = "latest") -> Explained:
        """Tell why a function is suspected: its calls in both runs side by side, the lines they took, their values."""
        fence = self.fence.within(roots)
        folder = session_folder(fence, session, existing=True)
        return await _in_thread(lambda: explained(folder, function))

    async def show_source(self, roots: Roots, function: FunctionName, session: SessionName = "latest") -> Source:
        """Show the source of a suspect, as it is in the project now, with its place."""
        fence = self.fence.within(roots)
        folder = session_folder(fence, session, existing=True)
        return await _in_thread(lambda: source_of(folder, function))

    async def diff_tree(
        self, roots: Roots, session: SessionName = "latest", reference: Which = 1, lines: Lines = MOST_LINES
    ) -> Differences:
        """Show the call tree of only the differences between the buggy run and one reference.

        `-` marks calls of the buggy run alone, `+` those of the reference alone, `~` calls that ended otherwise.
        """
        fence = self.fence.within(roots)
        folder = session_folder(fence, session, existing=True)
        return await _in_thread(lambda: differences(folder, session, reference=reference, most=lines))

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
            folder = session_folder(self.fence, name, existing=True)
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
        folder = session_folder(fence, session, existing=True)
        if ranker not in RANKERS:
            raise ToolError(f"there is no ranker {ranker!r}; choose one of {', '.join(RANKERS)}")

        def work() -> Ranking:
            from xlocal.question import rerank

            return ranking_of(rerank(folder, issue=issue, ranker=ranker), session, top, compared_with)

        return await _in_thread(work)

    def _check_command(self, fence: Fence, command: str) -> None:
        try:
            file = parse_command(command, cwd=fence.home).file
        except UsageError as error:
            raise ToolError(for_agents(str(error))) from None
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
        if os.path.isdir(path):
            raise ToolError(f"the interpreter {python}: is a folder; name the program in it, as in {python}/bin/python")
        try:
            fence.check(os.path.dirname(path), "the interpreter's folder")
        except ToolError as error:
            raise ToolError(
                f"the interpreter {python}: {error}; to use it, have the server started again with --python {python}"
            ) from None
        return path


async def _in_thread(work: Callable[[], Answer]) -> Answer:
    """Do what takes a moment without keeping other requests waiting; our own errors are told to the agent."""
    try:
        return await anyio.to_thread.run_sync(work)
    except XlocalError as error:
        raise ToolError(for_agents(str(error))) from None


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
        raise ToolError(for_agents(answer["error"]))
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


class _Server(MCPServer):
    """Answers arguments that a tool does not take, lacks or cannot use in one line that says so."""

    async def list_tools(self) -> list[Tool]:
        """The tools, whose schemas say that there are no further arguments."""
        tools = await super().list_tools()
        return [
            tool.model_copy(update={"input_schema": {**tool.input_schema, "additionalProperties": False}})
            for tool in tools
        ]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context | None = None) -> Any:
        """Call a tool; ToolError for arguments that it cannot use."""
        tool = next((tool for tool in await self.list_tools() if tool.name == name), None)
        if tool is not None:
            _check_arguments(name, arguments, tool.input_schema)
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            wrong = "; ".join(f"{_spelled(row['loc'])}: {row['msg']}" for row in error.__cause__.errors())
            raise ToolError(f"Error executing tool {name}: {wrong}") from None


def _check_arguments(name: str, arguments: dict[str, Any], schema: dict[str, Any]) -> None:
    known, needed = list(schema.get("properties", ())), schema.get("required", ())
    unknown = [argument for argument in arguments if argument not in known]
    missing = [argument for argument in needed if argument not in arguments]
    said = []
    if unknown:
        said.append(f"there is no argument {', '.join(map(repr, unknown))}")
    if missing:
        said.append(f"the argument {', '.join(map(repr, missing))} is missing")
    if said:
        raise ToolError(f"Error executing tool {name}: {' and '.join(said)}; it takes {', '.join(known)}")


def _spelled(place: Sequence[int | str]) -> str:
    """Where in the arguments a value stands, such as `references[1]`."""
    first, *rest = place
    return f"{first}{''.join(f'[{part}]' for part in rest)}"


def make_server(folders: Sequence[Path], *, python: str) -> MCPServer:
    """The server for some folders; the caller runs it."""
    from importlib.metadata import version

    tools = Tools(folders, python=python)
    server = _Server("xlocal", instructions=INSTRUCTIONS, version=version("xlocal"), log_level="WARNING")
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
