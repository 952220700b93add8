"""A pytest plugin, run by the target: which functions each test executed, how it ended, and where it raised.

Loaded by path (`-p xlocal_executed` from a folder of its own), so it is one file, needs pytest alone,
and keeps to the syntax of Python 3.6. The environment variable XLOCAL_EXECUTED names the JSON file that it writes.
"""

import json
import os
import sys
import sysconfig
import threading

import pytest

VERSION = 1
VARIABLE = "XLOCAL_EXECUTED"
TOOL_NAME = "xlocal-tests"
_MINE = os.path.abspath(__file__)
_SITE = frozenset(("site-packages", "dist-packages"))


class Recorder:
    """Collects the code objects that run between `begin` and `end`.

    `held_by` names the tool that holds the only hook there is, None when it was free; then nothing is collected.
    """

    def __init__(self):
        self.seen = set()
        self.held_by = None
        self.tool = None
        self.former = None

    def begin(self):
        """Start to collect; keeps the hook of the thread, and of threads to come, as it was for `end`."""
        self.seen = set()
        if hasattr(sys, "monitoring"):
            self._begin_monitoring()
            return
        if sys.getprofile() is not None:
            self.held_by = _describe(sys.getprofile())
            return
        self.former = getattr(threading, "_profile_hook", None)
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def end(self):
        """Stop; returns the code objects that ran, None when the hook was held or lost meanwhile."""
        if self.held_by is not None:
            return None
        if self.tool is not None:
            sys.monitoring.set_events(self.tool, 0)
            return self.seen
        # Not `is`: each access makes a new bound method.
        kept = sys.getprofile() == self._profile
        if kept:
            sys.setprofile(None)
        threading.setprofile(self.former)
        return self.seen if kept else None

    def close(self):
        """Give the tool's number back."""
        if self.tool is not None:
            sys.monitoring.free_tool_id(self.tool)
            self.tool = None

    def _begin_monitoring(self):
        monitoring = sys.monitoring
        if self.tool is None:
            free = [number for number in (4, 3, 5) if monitoring.get_tool(number) is None]
            if not free:
                self.held_by = ", ".join(str(monitoring.get_tool(number)) for number in (3, 4, 5))
                return
            self.tool = free[0]
            monitoring.use_tool_id(self.tool, TOOL_NAME)
            monitoring.register_callback(self.tool, monitoring.events.PY_START, self._started)
        # Each code reports once for each test.
        monitoring.restart_events()
        monitoring.set_events(self.tool, monitoring.events.PY_START)

    def _started(self, code, _offset):
        self.seen.add(code)
        return sys.monitoring.DISABLE

    def _profile(self, frame, event, _argument):
        if event == "call":
            self.seen.add(frame.f_code)


def _describe(hook):
    return "{}.{}".format(getattr(hook, "__module__", "?"), getattr(hook, "__qualname__", type(hook).__name__))


class Codes:
    """Numbers the code objects of files that may be the project's; all others have no number."""

    def __init__(self):
        self.rows = []
        self.numbers = {}
        standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
        self.standard = tuple(os.path.join(path, "") for path in standard if path)

    def number(self, code):
        """The number of a code object from 0, or -1."""
        place = code.co_filename, code.co_firstlineno, code.co_name
        found = self.numbers.get(place)
        if found is None:
            found = self.numbers[place] = self._new(place)
        return found

    def _new(self, place):
        if not self._may_be_project(place[0]) or place[2] == "<module>":
            return -1
        self.rows.append(list(place))
        return len(self.rows) - 1

    def _may_be_project(self, filename):
        if filename == _MINE or not os.path.isabs(filename):
            return False
        # Installed packages may lie below the standard library's folder.
        return not (filename.startswith(self.standard) and _SITE.isdisjoint(filename.split(os.sep)))


class ExecutedPlugin:
    """Records each test's setup and call; `tests` maps a node id to its row (see `document`)."""

    def __init__(self):
        self.recorder = Recorder()
        self.codes = Codes()
        self.tests = {}
        self.collected = []

    def row(self, nodeid):
        return self.tests.setdefault(nodeid, {"outcome": "passed", "codes": set(), "raised": None})

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item):
        self.recorder.begin()
        yield
        self._take(item)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        self.recorder.begin()
        yield
        self._take(item)

    def _take(self, item):
        seen = self.recorder.end()
        row = self.row(item.nodeid)
        if seen is None:
            row["codes"] = None
        elif row["codes"] is not None:
            row["codes"].update(number for number in map(self.codes.number, seen) if number >= 0)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        outcome = yield
        report = outcome.get_result()
        row = self.row(item.nodeid)
        if report.outcome != "passed" or hasattr(report, "wasxfail"):
            # An expected failure is no example of what works, and an unexpected success none of what fails.
            row["outcome"] = "other" if report.outcome == "skipped" or hasattr(report, "wasxfail") else "failed"
        if report.outcome == "failed" and call.excinfo is not None and row["raised"] is None:
            row["raised"] = _raised(call.excinfo.value)

    def pytest_collection_finish(self, session):
        self.collected = [item.nodeid for item in session.items]

    def document(self):
        """Plain values: `codes` rows of (file, line, name); for each test its outcome, its codes' numbers (null when
        they could not be seen), and the exceptions that ended it, the last raised first."""
        tests = {
            nodeid: dict(row, codes=None if row["codes"] is None else sorted(row["codes"]))
            for nodeid, row in self.tests.items()
        }
        return {
            "version": VERSION,
            "codes": self.codes.rows,
            "tests": tests,
            "collected": self.collected,
            "hook_held_by": self.recorder.held_by,
        }


class Writer(ExecutedPlugin):
    """Writes the document to a file when the run ends."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def pytest_sessionfinish(self, session):
        self.recorder.close()
        config = session.config
        root = config.rootpath if hasattr(config, "rootpath") else config.rootdir
        with open(self.path, "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(dict(self.document(), rootdir=str(root)), file)


def _raised(error):
    """An exception and its causes: `[{type, message, frames}]`, a frame being `[file, first line, name, line]`."""
    described, seen = [], set()
    while error is not None and id(error) not in seen and len(described) < 10:
        seen.add(id(error))
        frames, traceback = [], error.__traceback__
        while traceback is not None:
            code = traceback.tb_frame.f_code
            frames.append([os.path.abspath(code.co_filename), code.co_firstlineno, code.co_name, traceback.tb_lineno])
            traceback = traceback.tb_next
        described.append({"type": _type_name(type(error)), "message": _message(error), "frames": frames[-300:]})
        if error.__cause__ is not None:
            error = error.__cause__
        else:
            error = None if error.__suppress_context__ else error.__context__
    return described


def _type_name(kind):
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error):
    """The exception's text where reading it runs no code of the program."""
    plain = all(type(argument) in (str, int, float, bool, type(None)) for argument in error.args)
    if not plain or not error.args:
        return None
    return (str(error.args[0]) if len(error.args) == 1 else repr(error.args))[:1000]


def pytest_configure(config):
    """Loaded by name, it writes what the variable asks for; tests that run pytest themselves do not write over it."""
    path = os.environ.pop(VARIABLE, None)
    if path:
        config.pluginmanager.register(Writer(path), "xlocal_executed_writer")
