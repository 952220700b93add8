"""The MCP server, asked by the SDK's own client over both transports, in processes of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")
import anyio
from mcp import Client, StdioServerParameters
from mcp.types import ListRootsResult, Root

ROOT = Path(__file__).resolve().parent.parent
TOOLS = {"trace_pair", "localize_test", "localize", "explain", "show_source", "diff_tree"}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mcp") / "project"
    shutil.copytree(ROOT / "examples" / "timesheet", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "test_days.py").write_text(
        "import pytest\nfrom timesheet import Sheet\n\n"
        '@pytest.mark.parametrize("text", ["8h 2h", "1d 2h"])\n'
        'def test_add(text):\n    assert Sheet().add("review", text) == 600\n'
    )
    return folder


def server(folder: Path, *arguments: str) -> StdioServerParameters:
    words = ["-m", "xlocal", "mcp", "--root", str(folder), "--python", sys.executable, *arguments]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return StdioServerParameters(command=sys.executable, args=words, env=environment, cwd=folder)


@asynccontextmanager
async def over_http(folder: Path) -> AsyncIterator[str]:
    """The address of a server on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = server(folder, "--http", str(port))
    process = subprocess.Popen([program.command, *program.args], cwd=folder, env=program.env, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    break
            await anyio.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait()


def ask(where: Any, *calls: tuple[str, dict[str, Any]], **options: Any) -> list[Any]:
    """The results of some tool calls in one connection."""

    async def talk() -> list[Any]:
        async with Client(where, **options) as client:
            return [await client.call_tool(name, given) for name, given in calls]

    return asyncio.run(talk())


def refused(result: Any, text: str) -> None:
    assert result.is_error
    assert text in result.content[0].text


PAIR = {"buggy": "buggy.py", "references": ["reference.py"], "top": 3}


async def conversation(client: Client) -> dict[str, Any]:
    """What an agent would do: list, trace with progress, look closer, read a resource."""
    heard: list[str] = []

    async def progress(_done: float, _total: float | None, message: str | None) -> None:
        heard.append(message or "")

    tools = (await client.list_tools()).tools
    traced = await client.call_tool("trace_pair", PAIR, progress_callback=progress)
    about = {"function": "from_days"}
    return {
        "tools": {tool.name: tool for tool in tools},
        "trace": traced,
        "progress": heard,
        "explain": await client.call_tool("explain", about),
        "source": await client.call_tool("show_source", about),
        "diff": await client.call_tool("diff_tree", {}),
        "rank": await client.call_tool(
            "localize", {"issue": "entries of a task get lost", "ranker": "lexical", "top": 1}
        ),
        "sessions": (await client.read_resource("xlocal://sessions")).contents[0],
        "session": (await client.read_resource("xlocal://sessions/latest")).contents[0],
    }


@pytest.fixture(scope="module", params=["stdio", pytest.param("http", marks=pytest.mark.slow)])
def talk(request, project) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        if request.param == "stdio":
            async with Client(server(project)) as client:
                return await conversation(client)
        async with over_http(project) as address, Client(address) as client:
            return await conversation(client)

    return asyncio.run(run())


def test_every_tool_is_described_and_says_what_it_gives(talk):
    assert set(talk["tools"]) == TOOLS
    for tool in talk["tools"].values():
        assert len(tool.description) > 60
        assert tool.output_schema["type"] == "object"
        assert "roots" not in tool.input_schema["properties"]
        assert tool.input_schema["additionalProperties"] is False
        for name, parameter in tool.input_schema["properties"].items():
            assert len(parameter.get("description", "")) > 15, (tool.name, name)
    assert talk["tools"]["explain"].annotations.read_only_hint
    assert not talk["tools"]["trace_pair"].annotations.read_only_hint


def test_a_pair_is_traced_and_the_answer_is_structured(talk):
    assert not talk["trace"].is_error, talk["trace"].content
    document = talk["trace"].structured_content
    assert [run["role"] for run in document["runs"]] == ["buggy", "reference-1"]
    first = document["suspects"][0]
    assert (first["function"], first["path"]) == ("from_days", "timesheet/entry.py")
    assert first["evidence"][0]["kind"]
    assert len(document["suspects"]) == 3 < document["total"]
    assert json.loads(talk["trace"].content[0].text) == document


def test_progress_is_told(talk):
    assert any(text.startswith("running buggy") for text in talk["progress"])
    assert any(text.startswith("running reference-1") for text in talk["progress"])


def test_a_suspect_is_explained_with_its_source_and_the_tree(talk):
    assert "rank 1" in talk["explain"].structured_content["text"]
    source = talk["source"].structured_content
    assert source["text"].startswith("def from_days(number):")
    assert source["whole"] is True
    tree = talk["diff"].structured_content
    assert (tree["only_buggy"], tree["only_reference"], tree["exact"]) == (1, 0, True)
    assert "from_days" in tree["text"]


def test_a_session_is_ranked_again_and_read_as_a_resource(talk):
    assert talk["rank"].structured_content["suspects"][0]["function"] != "from_days"
    assert json.loads(talk["sessions"].text)[0] == {"session": "latest", "commands": ["buggy.py", "reference.py"]}
    assert json.loads(talk["session"].text)["suspects"][0]["function"]["qualname"] == "from_days"


@pytest.mark.slow
def test_a_failing_test_is_localized(project):
    [result] = ask(server(project), ("localize_test", {"test": "test_days.py::test_add[1d 2h]"}))
    assert not result.is_error, result.content
    document = result.structured_content
    assert document["compared_with"] == ["test_days.py::test_add[8h 2h]"]
    assert "from_days" in [suspect["function"] for suspect in document["suspects"][:3]]


def test_what_lies_outside_is_refused(project):
    outside = project.parent / "outside.py"
    outside.write_text("print('ran')")
    (project / "link.py").unlink(missing_ok=True)
    (project / "link.py").symlink_to(outside)
    calls = [
        ("trace_pair", {**PAIR, "buggy": "../outside.py"}),
        ("trace_pair", {**PAIR, "buggy": str(outside)}),
        ("trace_pair", {**PAIR, "references": ["link.py"]}),
        ("trace_pair", {**PAIR, "scope": [".."]}),
        ("trace_pair", {**PAIR, "python": "/bin/sh"}),
        ("localize_test", {"test": "../outside.py::test_x"}),
        ("localize", {"session": "../x"}),
    ]
    *lying_outside, named = ask(server(project), *calls)
    for result in lying_outside:
        refused(result, "lies outside of")
    refused(named, "is no name of a session")


def test_what_cannot_be_done_is_told_in_one_line(project):
    calls = [
        ("trace_pair", {**PAIR, "buggy": "absent.py"}),
        ("trace_pair", {**PAIR, "references": []}),
        ("explain", {"function": "nothing_like_it", "session": "none"}),
        ("localize", {"ranker": "best", "session": "none"}),
        ("trace_pair", {**PAIR, "session": "slow", "references": ["link_to_nothing"]}),
    ]
    (project / "broken.py").write_text("def f(:\n")
    absent, empty, unknown, _, nothing = ask(server(project), *calls)
    refused(absent, "No such script: absent.py")
    refused(empty, "at least one reference")
    refused(unknown, "there is no session 'none'")
    refused(nothing, "No such script")
    [broken] = ask(server(project), ("trace_pair", {**PAIR, "buggy": "broken.py", "session": "broken"}))
    refused(broken, "broken.py:1: SyntaxError")


def test_wrong_arguments_are_named_in_one_line(project):
    calls = [
        ("trace_pair", {**PAIR, "reference": "a.py", "colour": 1}),
        ("trace_pair", {"buggy": "buggy.py"}),
        ("explain", {}),
        ("trace_pair", {**PAIR, "top": 0}),
        ("trace_pair", {**PAIR, "references": "reference.py"}),
        ("diff_tree", {"lines": "many"}),
    ]
    unknown, missing, empty, small, single, words = ask(server(project), *calls)
    refused(unknown, "there is no argument 'reference', 'colour'; it takes buggy, references, issue, scope, python")
    refused(missing, "the argument 'references' is missing; it takes buggy, references")
    refused(empty, "the argument 'function' is missing; it takes function, session")
    refused(small, "top: Input should be greater than or equal to 1")
    refused(single, "references: Input should be a valid list")
    refused(words, "lines: Input should be a valid integer")
    for result in (unknown, missing, empty, small, single, words):
        assert len(result.content[0].text.splitlines()) == 1


def test_an_interpreter_elsewhere_is_told_with_the_way_to_allow_it(project):
    calls = [
        ("trace_pair", {**PAIR, "python": "/usr/bin"}),
        ("trace_pair", {**PAIR, "python": "/usr/bin/env"}),
    ]
    folder, outside = ask(server(project), *calls)
    refused(folder, "the interpreter /usr/bin: is a folder; name the program in it, as in /usr/bin/bin/python")
    refused(outside, "the interpreter /usr/bin/env: the interpreter's folder /usr/bin: lies outside of ")
    refused(outside, "have the server started again with --python /usr/bin/env")


def test_agents_hear_of_tools_and_parameters_not_of_commands():
    from xlocal.mcp_answers import for_agents

    texts = {
        "no session here; record one with: xlocal trace BUGGY REFERENCE": "no session here; record one with: trace_pair",
        "see xlocal rank, xlocal explain and xlocal diff": "see localize, explain and diff_tree",
        "name code with --scope; give it longer with --timeout": "name code with scope; give it longer with timeout",
        "record it with pytest --xlocal-spectrum": "record it with pytest --xlocal-spectrum",
        "look at --xlocal-scope": "look at scope",
    }
    assert {text: for_agents(text) for text in texts} == texts


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.slow)])
def test_the_roots_of_the_client_are_respected(project, mode):
    """In the protocol's newer form roots are asked for in the answer, in the older one in between."""
    inner = project / "inner"
    inner.mkdir(exist_ok=True)

    def roots_at(folder: Path) -> Any:
        async def give(_context: Any) -> ListRootsResult:
            return ListRootsResult(roots=[Root(uri=folder.as_uri())])

        return give

    [inside] = ask(server(project), ("trace_pair", PAIR), list_roots_callback=roots_at(inner), mode=mode)
    refused(inside, "No such script: buggy.py")
    calls = [("trace_pair", {**PAIR, "buggy": str(project / "buggy.py")})]
    [above] = ask(server(project), *calls, list_roots_callback=roots_at(inner), mode=mode)
    refused(above, "lies outside of")
    [elsewhere] = ask(server(project), ("localize", {}), list_roots_callback=roots_at(Path("/usr")), mode=mode)
    refused(elsewhere, "none of the client's roots is inside")


def test_a_cancelled_call_ends_what_it_started(project):
    (project / "sleeps.py").write_text(
        "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(300)\n"
    )
    pid = project / "pid"
    pid.unlink(missing_ok=True)
    given = {"buggy": "sleeps.py", "references": ["reference.py"], "session": "slow"}

    async def talk() -> None:
        async with Client(server(project)) as client, anyio.create_task_group() as group:

            async def call() -> None:
                await client.call_tool("trace_pair", given)

            group.start_soon(call)
            with anyio.fail_after(60):
                while not (pid.exists() and pid.read_text()):
                    await anyio.sleep(0.1)
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                with anyio.fail_after(30):
                    while is_alive(int(pid.read_text())):
                        await anyio.sleep(0.1)
                # The server goes on.
                assert (await client.call_tool("localize", {"session": "none"})).is_error

    asyncio.run(talk())
    assert not is_alive(int(pid.read_text()))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_http_is_for_this_machine_alone(project):
    """A page in a browser that has rebound its name to the loopback address gets nothing."""

    async def answer(host: str) -> int:
        async with over_http(project) as address:
            headers = {
                "Host": host,
                "Content-Type": "application/json",
                "Accept": "application/json, text/event-stream",
            }
            request = urllib.request.Request(address, data=b"{}", headers=headers)
            try:
                return urllib.request.urlopen(request, timeout=20).status
            except urllib.error.HTTPError as error:
                return error.code

    assert asyncio.run(answer("attacker.example")) == 421


def test_a_port_that_is_taken_and_a_missing_extra_are_told(project, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        program = server(project, "--http", str(taken.getsockname()[1]))
        started = time.monotonic()
        done = subprocess.run([program.command, *program.args], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "cannot listen on 127.0.0.1" in done.stderr
    assert time.monotonic() - started < 60
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError(\"No module named 'mcp'\", name='mcp')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    program = [sys.executable, "-m", "xlocal", "mcp"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'xlocal[mcp]'" in done.stderr


def transcript() -> list[tuple[str, dict[str, Any], list[str]]]:
    """Each call of the documented session, with the lines shown below it."""
    page = (ROOT / "docs" / "mcp.md").read_text("utf-8")
    shown = page.partition("## A session")[2].partition("```text\n")[2].partition("```")[0]
    calls = [part for part in shown.split("> ") if part.strip()]
    found = []
    for part in calls:
        head, *lines = part.splitlines()
        name, _, given = head.partition(" ")
        found.append((name, json.loads(given), [line for line in lines if line != "..."]))
    return found


def test_the_documented_session_is_true(project):
    documented = transcript()
    assert len(documented) == 4
    told: list[list[str]] = []

    async def talk() -> None:
        async with Client(server(project)) as client:
            for name, given, _ in documented:
                lines: list[str] = []

                async def progress(_done: float, _total: float | None, message: str | None, lines: Any = lines) -> None:
                    lines.append(f"progress: {message}")

                result = await client.call_tool(name, given, progress_callback=progress)
                answer = result.structured_content
                lines += (json.dumps(answer, indent=2) if answer else result.content[0].text).splitlines()
                told.append(lines)

    asyncio.run(talk())
    for (name, _, shown), lines in zip(documented, told, strict=True):
        for line in shown:
            start = line.partition(" ...")[0]
            assert any(printed.startswith(start) for printed in lines), f"{name}: {line}"
