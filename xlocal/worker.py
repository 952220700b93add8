"""A process that does one piece of work for another program (pytest, an MCP server), apart from that program's hooks.

It reads one JSON request from standard input and writes JSON lines: `{"progress": TEXT}` any number of times, then
`{"result": ...}` or `{"error": TEXT, "exit_code": N}`. Several tests are answered one by one: `{"test": NODEID,
"begins": true}`, then the same name with a result or an error. SIGTERM ends it and whatever it started.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from xlocal.tracer.errors import XlocalError

if TYPE_CHECKING:
    from xlocal.executed import Executed
    from xlocal.failing import TestQuestion

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

    say(**_told(lambda: _WORK[request["do"]](request["with"], say)))


def _told(work: Callable[[], Any]) -> dict[str, Any]:
    """The result of some work, or the error that ended it, in one line."""
    try:
        return {"result": work()}
    except XlocalError as error:
        return {"error": str(error), "exit_code": error.exit_code}
    except Exception as error:  # noqa: BLE001
        # As in the command's main: whoever asked is told in one line.
        if os.environ.get("XLOCAL_DEBUG"):
            traceback.print_exc()
        text = f"unexpected {type(error).__name__}: {error} (this is a bug of xlocal)"
        return {"error": text, "exit_code": XlocalError.exit_code}


def _write(stream: IO[str], message: Mapping[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


Say = Callable[..., None]  # one message: its fields by name


def _trace(given: Mapping[str, Any], say: Say) -> dict[str, Any]:
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
        question, session=Path(given["session"]), ranker=given.get("ranker", "fused"), progress=_progress(say)
    )
    document: dict[str, Any] = json.loads(as_json(found, top=given["top"]))
    return document


def _progress(say: Say) -> Callable[[str], None]:
    return lambda text: say(progress=text)


def _localize_test(given: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Localize a failing test; the JSON of `xlocal trace`, the relatives, and lines to print below the failure."""
    return _localized(_test_question(given["question"], _whole(given)), Path(given["session"]), given, say)


def _localize_tests(given: Mapping[str, Any], say: Say) -> None:
    """The same for several failing tests of one run, each answered when it is done."""
    from xlocal.failing import look

    whole = _whole(given)
    questions = [_test_question(question, whole) for question in given["questions"]]
    for question, session in zip(look(questions, progress=_progress(say)), given["sessions"], strict=True):
        say(test=question.nodeid, begins=True)
        say(test=question.nodeid, **_told(partial(_localized, question, Path(session), given, say)))


def _whole(given: Mapping[str, Any]) -> Executed | None:
    """What all tests of the run executed, from the files of its processes."""
    from xlocal.executed import Executed

    if not given.get("whole"):
        return None
    documents = (json.loads(Path(file).read_text("utf-8", "surrogateescape")) for file in given["whole"])
    return Executed.merged(map(Executed.from_json, documents))


def _test_question(asked: Mapping[str, Any], whole: Executed | None) -> TestQuestion:
    from xlocal.failing import TestQuestion

    question = dict(asked)
    for name in ("relatives", "options", "scope", "test_files", "collecting", "unfit"):
        if question.get(name) is not None:
            question[name] = tuple(question[name])
    for name in ("cwd", "rootdir"):
        if question.get(name):
            question[name] = Path(question[name])
    return TestQuestion(**question, whole=whole)


def _localized(question: TestQuestion, session: Path, given: Mapping[str, Any], say: Say) -> dict[str, Any]:
    from xlocal.failing import localize_test
    from xlocal.report import all_warnings, as_json, reason, where

    answer = localize_test(question, session=session, ranker=given.get("ranker", "fused"), progress=_progress(say))
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

_WORK: Mapping[str, Callable[[Mapping[str, Any], Say], dict[str, Any] | None]] = {
    "trace": _trace,
    "localize_test": _localize_test,
    "localize_tests": _localize_tests,
}

if __name__ == "__main__":
    main()
