"""A process that does one piece of work for another program (pytest, an MCP server), apart from that program's hooks.

It reads one JSON request from standard input and writes JSON lines: `{"progress": TEXT}` any number of times, then
`{"result": ...}` or `{"error": TEXT, "exit_code": N}`. SIGTERM ends it and whatever it started.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from xlocal.tracer.errors import XlocalError

COMMAND = (sys.executable, "-P", "-m", "xlocal.worker")
# What tools that watch pytest leave for the processes that it starts; those here are ours.
_FOREIGN = ("COV_CORE_", "COVERAGE_PROCESS_", "PYTEST_XDIST_", "PYTEST_CURRENT_TEST", "PYTEST_VERSION")


def environment() -> dict[str, str]:
    """The environment to start a worker with: without what would have coverage or xdist follow it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}


def main() -> None:
    """Answer the request on standard input."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    # The answers go where stdout was; what anything else prints must not mix with them.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", errors="surrogateescape")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = json.load(sys.stdin)

    def say(**message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the program that asked is gone
            _write(answers, message)

    try:
        result = _WORK[request["do"]](request["with"], lambda text: say(progress=text))
    except XlocalError as error:
        say(error=str(error), exit_code=error.exit_code)
    except Exception as error:
        # As in the command's main: whoever asked is told in one line.
        say(error=f"unexpected {type(error).__name__}: {error} (this is a bug of xlocal)", exit_code=4)
        if os.environ.get("XLOCAL_DEBUG"):
            raise
    else:
        say(result=result)


def _write(stream: IO[str], message: Mapping[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


Say = Callable[[str], None]


def _trace(given: Mapping[str, Any], progress: Say) -> dict[str, Any]:
    """Investigate a pair of scripts; the JSON of `xlocal trace`."""
    from xlocal.question import Question, investigate
    from xlocal.report import as_json

    question = Question(
        **{
            **given["question"],
            "references": tuple(given["question"]["references"]),
            "scope": tuple(given["question"].get("scope", ())),
            "cwd": Path(given["question"]["cwd"]),
        }
    )
    found = investigate(
        question, session=Path(given["session"]), ranker=given.get("ranker", "fused"), progress=progress
    )
    document: dict[str, Any] = json.loads(as_json(found, top=given["top"]))
    return document


def _localize_test(given: Mapping[str, Any], progress: Say) -> dict[str, Any]:
    """Localize a failing test; the JSON of `xlocal trace`, the relatives, and lines to print below the failure."""
    from xlocal.executed import Executed
    from xlocal.failing import TestQuestion, localize_test
    from xlocal.report import all_warnings, as_json, reason, where

    asked = dict(given["question"])
    for name in ("relatives", "options", "scope", "test_files"):
        if name in asked:
            asked[name] = tuple(asked[name])
    for name in ("cwd", "rootdir"):
        if asked.get(name):
            asked[name] = Path(asked[name])
    if given.get("whole"):
        documents = [json.loads(Path(file).read_text("utf-8", "surrogateescape")) for file in given["whole"]]
        asked["whole"] = Executed.merged(Executed.from_json(document) for document in documents)
    answer = localize_test(
        TestQuestion(**asked), session=Path(given["session"]), ranker=given.get("ranker", "fused"), progress=progress
    )
    found = answer.found
    document: dict[str, Any] = json.loads(as_json(found, top=given["top"]))
    document["relatives"] = [dataclasses.asdict(relative) for relative in answer.relatives]
    document["lines"] = [
        *(f"compared with {relative}" for relative in answer.relatives),
        *(
            f"{ranked.rank:2}. {ranked.suspect.function.qualname}  {where(ranked)}\n    {reason(ranked, issue=None)}"
            for ranked in found.suspects[: given["top"]]
        ),
        *(f"{warned.slug}: {warned.text}" for warned in all_warnings(found) if warned.slug not in _NO_DOUBT),
    ]
    return document


# Of every system and every test, so that they need not be said under each failure.
_NO_DOUBT = frozenset({"addresses-random", "scope-guessed"})

_WORK: Mapping[str, Callable[[Mapping[str, Any], Say], dict[str, Any]]] = {
    "trace": _trace,
    "localize_test": _localize_test,
}

if __name__ == "__main__":
    main()
