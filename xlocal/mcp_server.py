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
from mcp.types import ListRootsResult, Tool, ToolAnnotations
from pydantic import Field, ValidationError

from xlocal.ranking.comparison import Localization
from xlocal.ranking.evidence import RankedSuspect
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
        request = {"question": question, "session": str(_session(fence, name)), "top": 1}
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
        folder = _session(fence, session, existing=True)

        def work() -> Explained:
            from xlocal.explain import explain, print_explanation
            from xlocal.report import make_console

            explained = explain(folder, function)
            paper = StringIO()
            print_explanation(explained, make_console(paper))
            return Explained(_row(explained.ranked), paper.getvalue())

        return await _in_thread(work)

    async def show_source(self, roots: Roots, function: FunctionName, session: SessionName = "latest") -> Source:
        """Show the source of a suspect, as it is in the project now, with its place."""
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
        self, roots: Roots, session: SessionName = "latest", reference: Which = 1, lines: Lines = MOST_LINES
    ) -> Differences:
        """Show the call tree of only the differences between the buggy run and one reference.

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
        warnings=[f"{warned.slug}: {for_agents(warned.text)}" for warned in all_warnings(found)],
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
        raise ToolError(for_agents(str(error))) from None


# What the command line calls otherwise; longer texts first.
_TOOLS = {
    "xlocal trace BUGGY REFERENCE": "trace_pair",
    "pytest --xlocal-spectrum": "pytest --xlocal-spectrum",
    "pytest --xlocal": "localize_test",
    "xlocal trace": "trace_pair",
    "xlocal rank": "localize",
    "xlocal explain": "explain",
    "xlocal diff": "diff_tree",
}
_SAID = re.compile(
    "|".join(map(re.escape, _TOOLS)) + r"|--(?:xlocal-)?(scope|timeout|issue|python|ranker|session|top)\b"
)


def for_agents(text: str) -> str:
    """A message of the command line with what an agent has in place of commands and options: tools and parameters."""
    return _SAID.sub(lambda found: found[1] or _TOOLS[found[0]], text)


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
