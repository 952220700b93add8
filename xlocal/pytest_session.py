"""What `pytest --xlocal` does: remember how the tests ended, and at the end localize those that failed.

The work is done by a process of its own (`xlocal.worker`), so that pytest's warnings filters, coverage and other
hooks of this process neither see it nor are seen by it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from xlocal.worker import COMMAND, environment

NAME = "xlocal_session"
SECTION = "xlocal"
# Options that choose tests, report, or distribute: one test alone is to run as it would in this run.
_CHOOSING = frozenset(
    ("-k", "-m", "-x", "--exitfirst", "--maxfail", "--lf", "--last-failed", "--ff", "--failed-first", "--nf")
) | {"--new-first", "--sw", "--stepwise", "--sw-skip", "--stepwise-skip", "--deselect", "--pyargs", "--ignore"}
_REPORTING = frozenset(
    ("-r", "-v", "-q", "-l", "--verbose", "--quiet", "--tb", "--color", "--durations", "--durations-min", "--html")
) | {"--junitxml", "--junit-xml", "--report-log", "--pastebin", "--css", "--json-report", "--json-report-file"}
_RUNNING = frozenset(
    ("-n", "--numprocesses", "--maxprocesses", "--dist", "--tx", "--basetemp", "--cache-clear", "--pdb", "--trace")
) | {"--cov", "--cov-report", "--cov-config", "--cov-fail-under", "--cov-context", "--cov-append", "--cov-branch"}
_DROPPED = _CHOOSING | _REPORTING | _RUNNING | {"--no-cov", "--count", "--reruns", "--reruns-delay", "--looponfail"}
_FLAGS = frozenset(("-x", "--exitfirst", "--lf", "--last-failed", "--ff", "--failed-first", "--nf", "--new-first"))
_FLAGS |= {"--sw", "--stepwise", "--sw-skip", "--stepwise-skip", "--pyargs", "-v", "-q", "-l", "--verbose", "--quiet"}
_FLAGS |= {"--cache-clear", "--pdb", "--trace", "--cov-append", "--cov-branch", "--no-cov", "--looponfail"}
_FLAGS |= {"--json-report", "--xlocal", "--xlocal-tests", "--xlocal-spectrum"}


def register(config: pytest.Config, *, spectrum: bool) -> None:
    """Install the plugin in the process that reports; with `spectrum` also what records, where tests run."""
    worker = hasattr(config, "workerinput")
    distributing = bool(getattr(config.option, "dist", "no") != "no" or getattr(config.option, "tx", None))
    recorder = None
    if spectrum and (worker or not distributing):
        from xlocal.tracer.executed import ExecutedPlugin

        recorder = ExecutedPlugin()  # type: ignore[no-untyped-call]  # what targets run has no annotations
        config.pluginmanager.register(recorder, "xlocal_spectrum")
    if worker:
        if recorder is not None:
            config.pluginmanager.register(_Sender(config, recorder), NAME)
        return
    config.pluginmanager.register(SessionPlugin(config, recorder), NAME)


class _Sender:
    """In a worker of xdist: hands what its tests executed to the process that reports."""

    def __init__(self, config: Any, recorder: Any) -> None:
        self.output, self.recorder = config.workeroutput, recorder

    def pytest_sessionfinish(self) -> None:
        self.recorder.recorder.close()
        self.output["xlocal"] = json.dumps(self.recorder.document())


class SessionPlugin:
    """Remembers outcomes and, when the run is over, localizes the failing tests."""

    def __init__(self, config: pytest.Config, recorder: Any) -> None:
        self.config = config
        self.recorder = recorder
        self.documents: list[str] = []
        self.outcomes: dict[str, str] = {}
        self.failures: dict[str, pytest.TestReport] = {}
        self.unshown: list[tuple[str, str]] = []

    def chosen(self, name: str) -> Any:
        """An option of the command line, else the ini value."""
        given = getattr(self.config.option, f"xlocal_{name}")
        return self.config.getini(f"xlocal_{name}") if given is None else given

    def number(self, name: str) -> int:
        """A number above 0; pytest.UsageError for anything else."""
        value = self.chosen(name)
        if not str(value).isdecimal() or int(value) < 1:
            raise pytest.UsageError(f"xlocal_{name} must be a whole number above 0, not {value!r}")
        return int(value)

    def pytest_sessionstart(self) -> None:
        """Refuse wrong numbers before any test runs."""
        for name in ("top", "references", "max"):
            self.number(name)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test passed when its call did and nothing failed; an expected failure is neither."""
        name = report.nodeid
        if hasattr(report, "wasxfail") or report.outcome not in ("passed", "failed"):
            self.outcomes[name] = "other"
        elif report.outcome == "failed":
            self.outcomes[name] = "failed"
            self.failures.setdefault(name, report)
        elif report.when == "call":
            self.outcomes.setdefault(name, "passed")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist ended."""
        sent = getattr(node, "workeroutput", {}).get("xlocal")
        if sent:
            self.documents.append(sent)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Localize before the failures are printed, so that each suspect list stands under its failure."""
        if self.recorder is not None:
            self.recorder.recorder.close()
            self.documents.append(json.dumps(self.recorder.document()))
        failed = [name for name, outcome in self.outcomes.items() if outcome == "failed"]
        if failed and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._localize(failed)

    def _localize(self, failed: Sequence[str]) -> None:
        most = self.number("max")
        shown = f"{min(len(failed), most)} of {len(failed)}" if len(failed) > most else str(len(failed))
        self._say(f"xlocal: localizing {shown} failing test{'s' if len(failed) > 1 else ''}")
        with tempfile.TemporaryDirectory(prefix="xlocal-pytest-") as name:
            whole = []
            for number, document in enumerate(self.documents):
                whole.append(os.path.join(name, f"{number}.json"))
                Path(whole[-1]).write_text(document, "utf-8", "surrogateescape")
            for nodeid in failed[:most]:
                self._show(nodeid, self._ask(nodeid, whole))

    def _ask(self, nodeid: str, whole: Sequence[str]) -> str:
        """What to print below the failure of one test."""
        here = self.config.invocation_params.dir
        request = self._request(nodeid, whole)
        session = os.path.relpath(request["with"]["session"], here)
        answer = {"error": "the worker ended without an answer"}
        for message in _work(request, cwd=here):
            if "progress" not in message:
                answer = message
        if "error" in answer:
            return f"not localized: {answer['error']}"
        lines = answer["result"]["lines"]  # type: ignore[index]
        return "\n".join([*lines, f"more: xlocal explain NAME --session {session}"])

    def _request(self, nodeid: str, whole: Sequence[str]) -> dict[str, Any]:
        from xlocal.session import named_after

        config, here = self.config, self.config.invocation_params.dir
        passing = [name for name, outcome in self.outcomes.items() if outcome == "passed"]
        paths = [os.environ.get("PYTHONPATH", "")]
        if str(here) in sys.path:  # `python -m pytest` puts it there
            paths.insert(0, str(here))
        return {
            "do": "localize_test",
            "with": {
                "question": {
                    "nodeid": nodeid,
                    "relatives": passing,
                    "options": self._options(),
                    "rootdir": str(config.rootpath),
                    "scope": list(self.chosen("scope")),
                    "python": sys.executable,
                    "cwd": str(here),
                    "env": {"PYTHONPATH": os.pathsep.join(filter(None, paths))} if any(paths) else {},
                    "references": self.number("references"),
                    "tests": bool(self.chosen("tests")),
                    "test_files": list(config.getini("python_files")),
                },
                "whole": list(whole),
                "session": str(Path(config.rootpath) / ".xlocal" / named_after(nodeid)),
                "ranker": self.chosen("ranker"),
                "top": self.number("top"),
            },
        }

    def _options(self) -> list[str]:
        """The options of this run that change what a test does, for a run of one test."""
        config = self.config
        given = [*config.getini("addopts"), *_words(os.environ.get("PYTEST_ADDOPTS", ""))]
        given += [str(word) for word in config.invocation_params.args]
        options = kept_options(given, positional=[str(name) for name in config.option.file_or_dir or ()])
        options += [
            "--rootdir",
            str(config.rootpath),
            "-o",
            "addopts=",
            "-o",
            "xlocal=false",
            "-o",
            "xlocal_spectrum=false",
        ]
        if config.inipath is not None and not {"-c", "--config-file"} & set(options):
            options += ["-c", str(config.inipath)]
        if config.pluginmanager.has_plugin("cacheprovider"):
            options += ["-o", f"cache_dir={os.path.join(tempfile.gettempdir(), 'xlocal-pytest-cache')}"]
        return options

    def _show(self, nodeid: str, text: str) -> None:
        """Under the failure where pytest prints it, else in a part of its own."""
        option = self.config.option
        if option.showcapture == "all" and option.tbstyle not in ("no", "line"):
            self.failures[nodeid].sections.append((SECTION, text))
        else:
            self.unshown.append((nodeid, text))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print what could not stand under its failure."""
        if self.unshown:
            terminalreporter.section(SECTION)
        for nodeid, text in self.unshown:
            terminalreporter.write_line(nodeid, bold=True)
            terminalreporter.write_line(text)

    def _say(self, text: str) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line("")  # the line of dots is not ended yet
            reporter.write_line(text)


def _words(text: str) -> list[str]:
    import shlex

    return shlex.split(text)


def kept_options(words: Sequence[str], *, positional: Sequence[str]) -> list[str]:
    """The words of a command line without tests, and without options that choose tests, report or distribute."""
    kept: list[str] = []
    left = list(positional)
    value_follows = False  # the next word may be the value of an option that was left out
    for word in words:
        if word.startswith("-"):
            value_follows = _is_dropped(word) and _takes_next(word)
            kept += [] if _is_dropped(word) else [word]
        elif word in left:
            left.remove(word)
            value_follows = False
        else:
            kept += [] if value_follows else [word]
            value_follows = False
    return kept


def _is_dropped(word: str) -> bool:
    name = word.partition("=")[0]
    if name in _DROPPED or name.startswith("--"):
        return name in _DROPPED or name.startswith("--xlocal")
    # Values that are written onto the letter (-n4, -rA, -kname), and clusters such as -vvx.
    return name[:2] in ("-n", "-r", "-k", "-m") or set(name[1:]) <= set("vqxl")


def _takes_next(word: str) -> bool:
    written_on = "=" in word or (not word.startswith("--") and len(word) > 2)
    return not written_on and word not in _FLAGS


def _work(request: Mapping[str, Any], *, cwd: Path) -> Iterator[dict[str, Any]]:
    """What a worker says to a request, message by message; it ends with us."""
    process = subprocess.Popen(
        COMMAND,
        cwd=cwd,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("XLOCAL_DEBUG") else subprocess.DEVNULL,
        encoding="utf-8",
        errors="surrogateescape",
    )
    try:
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        assert process.stdout is not None  # noqa: S101
        with process.stdin as stream:
            json.dump(request, stream)
        for line in process.stdout:
            yield json.loads(line)
        process.wait()
    finally:
        process.terminate()  # when we are interrupted; an ended process is not touched
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
