"""What `pytest --xlocal` does: remember how the tests ended, and at the end localize those that failed.

The work is done by a process of its own (`xlocal.worker`), so that pytest's warnings filters, coverage and other
hooks of this process neither see it nor are seen by it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
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
    plugin = SessionPlugin(config, recorder)
    plugin.check_options()
    config.pluginmanager.register(plugin, NAME)


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
        self.deselected = False

    def chosen(self, name: str) -> Any:
        """An option of the command line, else the ini value."""
        given = getattr(self.config.option, f"xlocal_{name}")
        return self.config.getini(f"xlocal_{name}") if given is None else given

    def number(self, name: str, *, or_else: str = "") -> int:
        """A number above 0; pytest.UsageError for anything else."""
        value = self.chosen(name)
        if not str(value).isdecimal() or int(value) < 1:
            raise pytest.UsageError(f"xlocal_{name} must be a whole number above 0{or_else}, not {value!r}")
        return int(value)

    def jobs(self) -> int:
        """How many failing tests to work on at once: as many as xdist runs, else one, unless the user knows better."""
        given = self.chosen("jobs")
        if not given:
            return max(1, len(getattr(self.config.option, "tx", None) or ()))
        if given == "auto":
            return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.number("jobs", or_else=", or auto")

    def check_options(self) -> None:
        """Refuse wrong numbers, rankers and scopes before any test is collected: pytest.UsageError."""
        from xlocal.settings import RANKERS

        for name in ("top", "references", "max"):
            self.number(name)
        self.jobs()
        ranker = self.chosen("ranker")
        if ranker not in RANKERS:
            raise pytest.UsageError(f"xlocal_ranker: there is no ranker {ranker!r}; choose one of {', '.join(RANKERS)}")
        if ranker == "spectrum" and self.recorder is None and not self.chosen("spectrum"):
            raise pytest.UsageError("xlocal_ranker: spectrum needs a spectrum; add --xlocal-spectrum")
        _check_scope(self.chosen("scope"), self.config)

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

    def pytest_deselected(self) -> None:
        """Some tests were left out of the run."""
        self.deselected = True

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
        chosen = failed[: self.number("max")]
        left = f" of {len(failed)} (--xlocal-max {len(chosen)})" if len(failed) > len(chosen) else ""
        self._say("")  # the line of dots is not ended yet
        self._say(f"xlocal: localizing {len(chosen)}{left} failing test{'s' if len(failed) > 1 else ''}")
        here = self.config.invocation_params.dir
        shown = dict.fromkeys(chosen, "not localized: the worker ended without an answer")
        with tempfile.TemporaryDirectory(prefix="xlocal-pytest-") as name:
            requests = self._requests(chosen, Path(name))
            begun = 0
            for message in _work(requests, cwd=here):
                if message.get("begins"):
                    begun += 1
                    self._say(f"xlocal: {begun} of {len(chosen)}: {message['test']}")
                elif "test" in message:
                    shown[message["test"]] = self._text(message)
                elif "error" in message:  # of a whole worker: its tests keep what stands there
                    self._say(f"xlocal: {message['error']}")
        for nodeid in chosen:
            self._show(nodeid, shown[nodeid])

    def _text(self, message: Mapping[str, Any]) -> str:
        """What to print below the failure of one test."""
        nodeid = message["test"]
        if "error" in message:
            return f"not localized: {message['error'].removeprefix(f'{nodeid}: ')}"
        session = os.path.relpath(self._session(nodeid), self.config.invocation_params.dir)
        return "\n".join([*message["result"]["lines"], f"more: xlocal explain NAME --session {session}"])

    def _session(self, nodeid: str) -> str:
        from xlocal.session import named_after

        return str(Path(self.config.rootpath) / ".xlocal" / named_after(nodeid))

    def _requests(self, chosen: Sequence[str], folder: Path) -> list[dict[str, Any]]:
        """One for each worker, the tests dealt out in turn."""
        whole = []
        for number, document in enumerate(self.documents):
            whole.append(str(folder / f"{number}.json"))
            Path(whole[-1]).write_text(document, "utf-8", "surrogateescape")
        jobs = min(self.jobs(), len(chosen))
        return [
            {
                "do": "localize_tests",
                "with": {
                    "questions": [self._question(nodeid, folder / f"cache-{at}") for nodeid in chosen[at::jobs]],
                    "sessions": [self._session(nodeid) for nodeid in chosen[at::jobs]],
                    "whole": whole,
                    "ranker": self.chosen("ranker"),
                    "top": self.number("top"),
                },
            }
            for at in range(jobs)
        ]

    def _question(self, nodeid: str, cache: Path) -> dict[str, Any]:
        config, here = self.config, self.config.invocation_params.dir
        paths = [os.environ.get("PYTHONPATH", "")]
        if str(here) in sys.path:  # `python -m pytest` puts it there
            paths.insert(0, str(here))
        return {
            "nodeid": nodeid,
            "relatives": [name for name, outcome in self.outcomes.items() if outcome == "passed"],
            "collecting": self._collecting() if self._is_narrowed() else None,
            "unfit": [name for name, outcome in self.outcomes.items() if outcome != "passed"],
            "options": self._options(cache),
            "rootdir": str(config.rootpath),
            "scope": list(self.chosen("scope")),
            "python": sys.executable,
            "cwd": str(here),
            "env": {"PYTHONPATH": os.pathsep.join(filter(None, paths))} if any(paths) else {},
            "references": self.number("references"),
            "tests": bool(self.chosen("tests")),
            "test_files": list(config.getini("python_files")),
        }

    def _is_narrowed(self) -> bool:
        """Whether tests beside the failing ones may have been left out of the run."""
        option = self.config.option
        named = any("::" in str(word) for word in option.file_or_dir or ())
        again = any(getattr(option, name, False) for name in ("lf", "failedfirst", "stepwise", "maxfail"))
        return bool(named or again or option.keyword or self.deselected)

    def _collecting(self) -> list[str]:
        """The options that keep tests out which the user does not want to run: those by mark and by name stay."""
        option = self.config.option
        words = ["-m", option.markexpr] if option.markexpr else []
        for name in ("deselect", "ignore", "ignore_glob"):
            words += [f"--{name.replace('_', '-')}={value}" for value in getattr(option, name, None) or ()]
        return words

    def _options(self, cache: Path) -> list[str]:
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
            options += ["-o", f"cache_dir={cache}"]
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
            reporter.write_line(text)
            reporter.flush()  # in a pipe, too, it is to be seen when it happens


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


def _check_scope(scope: Sequence[str], config: pytest.Config) -> None:
    """pytest.UsageError for a scope that is neither there nor can be imported by any test."""
    from xlocal.tracer.command import parse_command
    from xlocal.tracer.errors import UsageError
    from xlocal.tracer.scope import find_scope

    here = config.invocation_params.dir
    tops = [here / str(word).partition("::")[0] for word in config.args]
    for item in scope:
        if _lies_below(item, tops):  # the tests' own folders are put on the path later, when they are collected
            continue
        try:
            commands = [parse_command(f"pytest {top}", cwd=here) for top in tops if top.exists()]
            path = os.pathsep.join(filter(None, sys.path))
            find_scope(commands, given=[item], python=sys.executable, cwd=here, env={"PYTHONPATH": path})
        except UsageError as error:
            raise pytest.UsageError(str(error).replace("--scope ", "xlocal_scope: ", 1)) from None


def _lies_below(item: str, tops: Sequence[Path]) -> bool:
    """Whether a dotted name is that of a module or package somewhere below these folders, hidden ones left out."""
    if not all(part.isidentifier() for part in item.split(".")):
        return False
    wanted = {item.partition(".")[0], f"{item.partition('.')[0]}.py"}
    for top in tops:
        for _, folders, files in os.walk(top):
            if not wanted.isdisjoint((*folders, *files)):
                return True
            folders[:] = [name for name in folders if not name.startswith((".", "_")) and name != "node_modules"]
    return False


def _work(requests: Sequence[Mapping[str, Any]], *, cwd: Path) -> Iterator[dict[str, Any]]:
    """What workers say to their requests, one each and all at once, message by message; they end with us."""
    heard: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    with contextlib.ExitStack() as stack:
        for request in requests:
            process = stack.enter_context(_worker(request, cwd=cwd))
            thread = Thread(target=_listen, args=(process, heard), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(process.terminate)  # when we are interrupted; an ended process is not touched
        running = len(requests)
        while running:
            message = heard.get()
            if message is None:
                running -= 1
            elif "progress" not in message:
                yield message


@contextlib.contextmanager
def _worker(request: Mapping[str, Any], *, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        COMMAND,
        cwd=cwd,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("XLOCAL_DEBUG") else subprocess.DEVNULL,
        encoding="utf-8",
        errors="surrogateescape",
    ) as process:
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with process.stdin as stream:
            json.dump(request, stream)
        yield process


def _listen(process: subprocess.Popen[str], heard: SimpleQueue[dict[str, Any] | None]) -> None:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    try:
        for line in process.stdout:
            heard.put(json.loads(line))
    finally:
        heard.put(None)
