"""What the tests of agents share: a small real repository with a bug, scripted models, and a local model server."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from xlocal.swe_pipeline.options import Options
from xlocal.swe_pipeline.sandbox import confine, sandbox_problem
from xlocal.swe_pipeline.solve import Solution, solve
from xlocal.swe_pipeline.workcopy import WorkCopy

CORE = '''def parse(text):
    return int(text) if text.isdigit() else 0


def total(items):
    """The sum of all numbers."""
    return sum(parse(item) for item in items)
'''
TEST = 'from shop.core import total\n\n\ndef test_total():\n    assert total(["1", "2"]) == 3\n'
ISSUE = "total() is wrong for negative numbers\n\n`total(['-1', '2'])` gives 2 instead of 1.\n"
BUGGY = 'from shop.core import total\n\ngot = total(["-1", "2"])\nprint(got)\nassert got == 1, got\n'
REFERENCE = BUGGY.replace('"-1"', '"1"').replace("== 1", "== 3")
EXTRA = "from shop.core import total\n\nassert total([]) == 0, 'the empty sum'\n"

Turn = Mapping[str, Any]

needs_sandbox = pytest.mark.skipif(
    sandbox_problem() is not None, reason=f"no sandbox on this machine: {sandbox_problem()}"
)


def call(tool: str, **args: Any) -> dict[str, Any]:
    """A turn that calls one tool."""
    return {"tool": tool, "args": args}


REPRODUCE = (
    call("view", path="shop/core.py"),
    call("create", path=".xlocal/buggy.py", text=BUGGY),
    call("create", path=".xlocal/reference.py", text=REFERENCE),
    call(
        "submit_scripts",
        buggy=".xlocal/buggy.py",
        references=[".xlocal/reference.py"],
        reported="negative numbers count as 0",
        suspicious_functions=["shop/core.py::parse"],
    ),
)
JUDGE = (call("submit_judgement", buggy_shows_reported=True, reference_is_correct=True, reason="as the issue says"),)
CONTEXT = (call("submit_context", files=["shop/core.py"], functions=["shop/core.py::parse"]),)
AUGMENT = (call("submit_test", source=EXTRA, checks="nothing sums to 0", kind="behaviour to keep"),)
RIGHT = call("edit", path="shop/core.py", old="text.isdigit()", new="text.lstrip('-').isdigit()")
SUBMIT = call("submit_patch", cause="signs are no digits", function="shop/core.py::parse")
REPAIR = (call("view", path="shop/core.py"), RIGHT, SUBMIT)
GOOD: dict[str, Sequence[Turn]] = {
    "reproduce": REPRODUCE,
    "judge": JUDGE,
    "context": CONTEXT,
    "augment": AUGMENT,
    "repair": REPAIR,
}


def git(folder: Path, *arguments: str) -> str:
    """Git with a name to commit by."""
    named = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", "-C", str(folder), *named, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def make_repository(folder: Path, files: Mapping[str, str] | None = None) -> Path:
    """The repository `shop` with its bug, or one of other files."""
    for name, text in (files or {"shop/__init__.py": "", "shop/core.py": CORE, "tests/test_core.py": TEST}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def write_script(file: Path, conversations: Mapping[str, Sequence[Turn]]) -> str:
    """A scripted model's file; returns the model's text."""
    file.write_text(json.dumps({name: list(turns) for name, turns in conversations.items()}))
    return f"scripted:{file}"


def copy_of(repository: Path, folder: Path, issue: str = ISSUE) -> WorkCopy:
    """A prepared private copy."""
    copy = WorkCopy(issue, repository=repository, folder=folder, python=sys.executable)
    copy.prepare()
    return copy


def locked_in(copy: WorkCopy) -> Any:
    """The copy in its sandbox."""
    return confine(copy, mount=copy.original, import_paths=copy.import_paths)


class Shop:
    """The repository and all that it takes to solve its issue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = make_repository(folder / "shop")
        self.copy = copy_of(self.repository, folder / "work")
        self.run = folder / "run"

    def model(self, **changed: Sequence[Turn]) -> str:
        """A scripted model that solves the issue, with some conversations changed (`_` for `-`)."""
        script = {**GOOD, **{name.replace("_", "-"): turns for name, turns in changed.items()}}
        return write_script(self.folder / "model.json", script)

    def solve(
        self, model: str | None = None, *, resume: bool = False, step: int | None = None, **options: Any
    ) -> Solution:
        """One run, in `self.run`."""
        regression = options.pop("regression", None)
        rest = {key: options.pop(key) for key in ("ledger", "progress") if key in options}
        chosen = Options(model=model or self.model(), **options)
        return solve(
            locked_in(self.copy),
            folder=self.run,
            options=chosen,
            regression=regression,
            resume=resume,
            step=step,
            **rest,
        )


Respond = Callable[[int, dict[str, Any]], tuple[int, Any]]


@contextlib.contextmanager
def model_server(respond: Respond) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A real OpenAI-compatible server; `respond(number, request)` gives status and body (None: close the connection).

    Yields its address and the requests that came, each with its headers under `_headers`.
    """
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "m", "max_model_len": 32768}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append({**body, "_headers": {k.lower(): v for k, v in self.headers.items()}})
            status, answer = respond(len(seen), body)
            if answer is None:
                self.close_connection = True
                self.connection.close()
                return
            self._send(status, answer)

        def _send(self, status: int, answer: Any) -> None:
            page = isinstance(answer, str)
            data = answer.encode() if page else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if page else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(turn: Turn, *, usage: tuple[int, int] | None = (1000, 50), cached: int = 0) -> dict[str, Any]:
    """An answer in the form of OpenAI's chat completions."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.get("text")}
    finish = "stop"
    if "tool" in turn:
        function = {"name": turn["tool"], "arguments": turn.get("raw", json.dumps(turn.get("args", {})))}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        finish = "tool_calls"
    answer: dict[str, Any] = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    if usage is not None:
        answer["usage"] = {
            "prompt_tokens": usage[0],
            "completion_tokens": usage[1],
            "total_tokens": sum(usage),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
    return answer
