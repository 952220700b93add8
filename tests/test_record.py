"""Commands, interpreters, and recordings of real programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path

import pytest
from xlocal.tracer import launch
from xlocal.tracer.command import Command, parse_command
from xlocal.tracer.errors import ScriptError, SessionError, UsageError
from xlocal.tracer.launch import check_interpreter, check_script, find_python, fixed_addresses
from xlocal.tracer.record import Recording, record
from xlocal.tracer.scope import Scope, scope_root


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that xlocal starts in, with one package to observe."""
    folder = tmp_path / "here"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").write_text(
        "def work(x):\n    return inner(x)\n\ndef inner(x):\n    return 1 / x\n"
    )
    monkeypatch.chdir(folder)
    return folder


def script(text: str, name: str = "script.py") -> str:
    Path(name).write_text(text)
    return name


def recording(text: str, *, command: str = "script.py", python: str | Path = sys.executable, **options) -> Recording:
    """Record a script of the given text, once unless told otherwise."""
    script(text)
    scope = Scope((scope_root("pkg"),))
    options = {"repeat": 1, "timeout": 60, "folder": Path("../session"), "role": "buggy"} | options
    return record(parse_command(command, cwd=Path.cwd()), scope=scope, python=python, **options)


def calls(run) -> list[str]:
    return [code.name for trace in run.traces() for code in trace.codes if code.kind == "function"]


def running(marker: str) -> list[str]:
    """Command lines of running processes that hold a marker."""
    listed = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if marker in line and not line.startswith("Z")]


# Commands.


@pytest.mark.parametrize(
    ("text", "kind", "target", "argv"),
    [
        ("a.py", "script", "{}/a.py", ["{}/a.py"]),
        ("a.py --flag 'two words'", "script", "{}/a.py", ["{}/a.py", "--flag", "two words"]),
        ("python a.py x", "script", "{}/a.py", ["{}/a.py", "x"]),
        ("/usr/bin/python3.9 sub/b.py", "script", "{}/sub/b.py", ["{}/sub/b.py"]),
        ("'sub/c d.py' x", "script", "{}/sub/c d.py", ["{}/sub/c d.py", "x"]),
        ("sub/c d.py", "script", "{}/sub/c d.py", ["{}/sub/c d.py"]),
        ("noext", "script", "{}/noext", ["{}/noext"]),
        ("python.py", "script", "{}/python.py", ["{}/python.py"]),
        ("-m pkg.tool x -m", "module", "pkg.tool", ["pkg.tool", "x", "-m"]),
        ("python -m pkg.my-tool", "module", "pkg.my-tool", ["pkg.my-tool"]),
        ("pytest a.py::T::test_b", "pytest", "{}/a.py::T::test_b", ["pytest", "{}/a.py::T::test_b"]),
        ("python -m pytest -x a.py", "pytest", "{}/a.py", ["pytest", "-x", "{}/a.py"]),
        ("pytest -k a.py -q sub", "pytest", "{}/sub", ["pytest", "-k", "a.py", "-q", "{}/sub"]),
        ("pytest 'a.py::test_b[x y::z]'", "pytest", "{}/a.py::test_b[x y::z]", ["pytest", "{}/a.py::test_b[x y::z]"]),
        ("pytest a.py sub/b.py", "pytest", "{}/a.py", ["pytest", "{}/a.py", "{}/sub/b.py"]),
    ],
)
def test_forms_of_a_command(here, text, kind, target, argv):
    (here / "sub").mkdir()
    for name in ("a.py", "sub/b.py", "sub/c d.py", "noext", "python.py"):
        (here / name).write_text("")
    expected = Command(text, kind, target.format(here), tuple(part.format(here) for part in argv))
    assert parse_command(text, cwd=here) == expected


def test_a_command_of_words_keeps_them(here):
    script("", "c d.py")
    command = parse_command(["python", "c d.py", "--x=$HOME *"], cwd=here)
    assert command.argv == (f"{here}/c d.py", "--x=$HOME *")
    assert command.text == "python 'c d.py' '--x=$HOME *'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "No script given"),
        ("python", "No script given"),
        ("missing.py --flag", "No such script: missing.py"),
        ("pkg", "pkg is a folder, not a script"),
        ("-m", "-m needs the name of a module"),
        ("-m ./x.py", "is not the name of a module"),
        ("-c 'print(1)'", "put the code into a file"),
        ("python -O x.py", "interpreter options"),
        ("'unfinished", "Cannot read the command"),
        ("pytest", "name the test"),
        ("pytest -k x", "name the test"),
        ("pytest missing.py::test_a", "No such test file: missing.py"),
        ("x" * 5000, "No such script"),
        ("nul\0byte.py", "No such script"),
    ],
)
def test_commands_that_cannot_be_run(here, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse_command(text, cwd=here)
    assert "\n" not in str(caught.value)


# Interpreters.


def test_every_interpreter_says_who_it_is(interpreters):
    for expected in interpreters:
        found = check_interpreter(expected.path)
        assert found.version == expected.version
        assert found.implementation == "cpython"
        assert os.path.samefile(found.path, expected.path)
        assert Path(found.prefix).is_dir()


def test_an_environment_keeps_its_own_interpreter(tmp_path):
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    found = check_interpreter(tmp_path / "venv" / "bin" / "python")
    assert found.path == str(tmp_path / "venv" / "bin" / "python")
    assert found.prefix == str(tmp_path / "venv")


def test_an_interpreter_is_found_by_name_and_from_here(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "my-python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    assert find_python("my-python") == find_python("bin/my-python") == str(tmp_path / "bin" / "my-python")


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\necho hello\n", "is not a Python interpreter"),
        ("#!/bin/sh\n", "is not a Python interpreter"),
        ("#!/bin/sh\necho broken >&2\nexit 3\n", r"does not run Python code \(exit status 3: broken\)"),
        ("#!/nowhere/at/all\n", "cannot be started"),
        ("\x7fELF nonsense", "cannot be started"),
        ("#!/bin/sh\necho \"('/x', (2, 7, 18), 'cpython', '/', False)\"\n", "is Python 2.7.18; .* from Python 3.6 on"),
    ],
)
def test_what_is_no_usable_interpreter(tmp_path, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        check_interpreter(program(tmp_path / "python", text))
    assert "\n" not in str(caught.value)


def test_what_is_no_program_at_all(tmp_path):
    with pytest.raises(UsageError, match="is a folder; name the interpreter in it"):
        check_interpreter(tmp_path)
    with pytest.raises(UsageError, match="no such interpreter"):
        check_interpreter(tmp_path / "python")
    with pytest.raises(UsageError, match="no such interpreter"):
        check_interpreter("python-that-is-not-there")
    (tmp_path / "plain").write_text("")
    with pytest.raises(UsageError, match="cannot be started: Permission denied"):
        check_interpreter(tmp_path / "plain")


def test_a_real_python_2_is_too_old():
    candidates = [*Path.home().glob(".pyenv/versions/2.7*/bin/python2.7"), shutil.which("python2.7")]
    old = next((path for path in candidates if path is not None), None)
    if old is None:
        pytest.skip("no Python 2.7 here")
    with pytest.raises(UsageError, match=r"is Python 2\.7"):
        check_interpreter(old)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"x = 1\ndef f(:\n", r"script.py:2: SyntaxError"),
        (b"if x:\ny\n", r"script.py:2: IndentationError"),
        (b"x = '\xff'\n", r"script.py(:\d)?: SyntaxError"),
    ],
)
def test_a_script_that_does_not_compile(here, source, message):
    (here / "script.py").write_bytes(source)
    with pytest.raises(ScriptError, match=message) as caught:
        check_script(parse_command("script.py", cwd=here), python=sys.executable)
    assert "\n" not in str(caught.value)


def test_a_binary_file_is_no_script(here):
    (here / "script.py").write_bytes(b"x = 1\0\n")
    with pytest.raises(UsageError, match=r"script.py is not a Python script: it is binary"):
        parse_command("script.py", cwd=here)


def test_a_script_is_compiled_by_the_interpreter_that_runs_it(here, interpreters):
    (here / "script.py").write_text("match 1:\n    case _: pass\n")
    command = parse_command("pytest script.py", cwd=here)
    verdicts = {}
    for interpreter in interpreters:
        try:
            check_script(command, python=interpreter.path)
            verdicts[interpreter.version >= (3, 10)] = True
        except ScriptError:
            verdicts[interpreter.version >= (3, 10)] = False
    assert all(new == compiled for new, compiled in verdicts.items())
    assert not list(here.rglob("*.pyc"))


# Recordings.


def test_what_a_run_leaves(here):
    found = recording("import pkg, sys\nprint('out', sys.argv[1:])\npkg.work(0)\n", command="script.py 'a b'", repeat=2)
    assert len(found.executions) == 2
    for number, run in enumerate(found.executions):
        assert run.folder == here.parent / "session" / "buggy" / str(number)
        assert (run.exit_status, run.signal, run.timed_out) == (1, None, False)
        assert run.stdout() == "out ['a b']\n"
        assert run.stderr().endswith("ZeroDivisionError: division by zero\n")
        (trace,) = run.traces()
        assert (trace.status, trace.complete) == (1, True)
        (uncaught,) = trace.uncaught
        assert (uncaught.type, uncaught.message) == ("ZeroDivisionError", "division by zero")
        assert [frame[2] for frame in uncaught.frames] == ["<module>", "work", "inner"]
        assert calls(run) == ["work", "inner"]
    assert found.warnings == () or [warning.slug for warning in found.warnings] == ["addresses-random"]


def test_all_forms_on_every_interpreter(here, interpreters):
    (here / "pkg" / "tool.py").write_text("import pkg\npkg.inner(1)\n")
    for interpreter in interpreters:
        for command in ("script.py", "-m pkg.tool"):
            (run,) = recording("import pkg\npkg.inner(1)\n", command=command, python=interpreter.path).executions
            assert (run.exit_status, calls(run)) == (0, ["inner"]), (interpreter, command)


def test_a_pytest_node(here):
    text = "import pkg\ndef test_a():\n    pkg.inner(0)\ndef test_b():\n    pkg.work(1)\n"
    (run,) = recording(text, command="pytest -q script.py::test_a").executions
    assert (run.exit_status, calls(run)) == (1, ["inner"])
    assert "1 failed" in run.stdout()


def test_a_pytest_node_where_pytest_is_missing(here):
    venv.create(here.parent / "bare", with_pip=False, symlinks=True)
    bare = here.parent / "bare" / "bin" / "python"
    text = "def test_a():\n    pass\n"
    with pytest.raises(ScriptError, match=f"{re.escape(str(bare))} has no pytest; install it there"):
        recording(text, command="pytest script.py::test_a", python=bare)
    raising = "import sys\ndef test_a():\n    raise SystemExit(\"No module named 'pytest'\")\n"
    assert recording(raising, command="pytest script.py::test_a").executions[0].exit_status == 1


def test_why_addresses_vary_is_told(here, monkeypatch):
    def found(program: str | None) -> list[str]:
        launch._address_fixer.cache_clear()
        if program is not None:
            tool = here / "bin" / "setarch"
            tool.parent.mkdir(exist_ok=True)
            tool.write_text(f"#!/bin/sh\n{program}\n")
            tool.chmod(0o755)
        path = f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}" if program is not None else str(here / "empty")
        with monkeypatch.context() as patch:
            patch.setenv("PATH", path)
            assert launch.fixed_addresses() == ()
            return [warned.text for warned in recording("", python=sys.executable).warnings]

    try:
        assert any("setarch (of util-linux) is not on the path" in text for text in found(None))
        refusal = "echo 'setarch: not permitted' >&2; exit 1"
        assert any("setarch was refused: setarch: not permitted" in text for text in found(refusal))
        assert any("had no effect" in text for text in found("echo 00000000"))
    finally:
        launch._address_fixer.cache_clear()


def test_each_run_makes_its_objects_at_other_addresses(here):
    if launch.why_addresses_vary():
        pytest.skip("addresses vary here by themselves")
    script = """
classes = [type("Slots", (), {"__slots__": tuple("abcdefghijklmnopqrst"[:count])}) for count in range(20)]
kept = [[make() for _ in range(3000)] for make in (*classes, object, list, dict, set, lambda: bytearray(600))]
kept.append([1 << 31 | number for number in range(3000)])
print(*(id(each[-1]) for each in kept))
"""
    found = recording(script, repeat=2)
    again = recording(script, repeat=2)
    first, second = (run.stdout().split() for run in found.executions)
    assert [at for at, (one, other) in enumerate(zip(first, second, strict=True)) if one == other] == []
    assert [run.stdout() for run in found.executions] == [run.stdout() for run in again.executions]


@pytest.mark.parametrize(("repeat", "runs"), [(1, 1), (2, 3), (4, 5)])
def test_runs_that_differ_are_followed_by_one_more(here, repeat, runs):
    told: list[str] = []
    script = "import os, pkg\nfor _ in range(int.from_bytes(os.urandom(4), 'big') % 5000): pkg.inner(1)\n"
    assert len(recording(script, repeat=repeat, progress=told.append).executions) == runs
    assert told[-1] == ("running buggy" if runs == 1 else f"running buggy, {runs} of {runs}")
    assert len(recording("import pkg\npkg.inner(1)\n", repeat=repeat).executions) == repeat


def test_a_recording_survives_its_file_and_a_move(here):
    found = recording("import pkg\npkg.inner(1)\n", repeat=2)
    folder = here.parent / "session"
    assert Recording.load(folder / "buggy") == found
    folder.rename(here.parent / "moved")
    moved = Recording.load(here.parent / "moved" / "buggy")
    assert moved.executions[1].folder == here.parent / "moved" / "buggy" / "1"
    assert calls(moved.executions[1]) == ["inner"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "xlocal-recording", "version": 99}', "\udcff"])
def test_a_damaged_recording_is_one_line(tmp_path, content):
    with pytest.raises(SessionError, match="holds no recording"):
        Recording.load(tmp_path)
    (tmp_path / "recording.json").write_text(content, "utf-8", "surrogateescape")
    with pytest.raises(SessionError) as caught:
        Recording.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_earlier_recording_of_the_role_is_gone(here):
    recording("import pkg\npkg.work(1)\n", repeat=2)
    found = recording("import pkg\npkg.inner(1)\n", repeat=1)
    assert not (here.parent / "session" / "buggy" / "1").exists()
    assert calls(found.executions[0]) == ["inner"]


ENVIRONMENT = """
import json, os, sys, tempfile
from pathlib import Path
import pkg
seen = {"tmp": os.environ["TMPDIR"], "gettempdir": tempfile.gettempdir(), "left": os.listdir(tempfile.gettempdir()),
        "hash": hash("text"), "address": id(object), "cwd": os.getcwd(), "files": os.listdir("."),
        "own": os.environ.get("OWN"), "path": os.environ.get("PYTHONPATH", ""), "stdin": sys.stdin.read(),
        "made": tempfile.mkdtemp(), "parent": os.environ.get("XLOCAL_PARENT", "").split(":")[0] == str(os.getpid())}
Path(tempfile.gettempdir(), "trash").write_text("")
Path("trash").write_text("")
print(json.dumps(seen))
"""


def seen(found: Recording) -> list[dict]:
    return [json.loads(run.stdout()) for run in found.executions]


def test_surroundings_are_the_same_in_every_run(here, monkeypatch):
    monkeypatch.setenv("XLOCAL_PARENT", "1:2:3")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    first, second = seen(recording(ENVIRONMENT, cwd="temp", repeat=2, env={"OWN": "x"}))
    (other,) = seen(recording(ENVIRONMENT, cwd="temp", role="reference", env={"OWN": "x"}))
    if not fixed_addresses():
        for values in (first, second, other):
            values.pop("address")
    assert first == second == other
    assert first["left"] == first["files"] == []
    assert first["gettempdir"] == first["tmp"]
    assert (first["own"], first["stdin"], first["parent"]) == ("x", "", True)
    assert not Path(first["tmp"]).parent.exists()
    assert not Path(first["tmp"]).is_relative_to(here.parent)


def test_the_user_has_the_last_word_on_the_environment(here, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    (seventh,) = seen(recording(ENVIRONMENT))
    (own,) = seen(recording(ENVIRONMENT, env={"PYTHONHASHSEED": "0", "TMPDIR": str(tmp_path)}))
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    (zero,) = seen(recording(ENVIRONMENT))
    assert own["hash"] == zero["hash"] != seventh["hash"]
    assert own["tmp"] == str(tmp_path)


def test_the_working_directory(here, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    assert seen(recording(ENVIRONMENT))[0]["cwd"] == str(here)
    elsewhere = recording(ENVIRONMENT, cwd=tmp_path / "elsewhere")
    assert seen(elsewhere)[0]["cwd"] == str(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"--cwd .*: no such folder"):
        recording("", cwd=tmp_path / "nowhere")


def test_odd_names_reach_the_program(here):
    name = "sp ace \u00e9\U0001f600 'q\".py"
    script("import pkg, sys\npkg.inner(1)\nprint(ascii(sys.argv[1:]))\n", name)
    command = parse_command([name, "\U0001f600", "a\\b\n"], cwd=here)
    found = record(
        command, role="r", scope=Scope((scope_root("pkg"),)), python=sys.executable, folder=here / "o \u00e9", repeat=1
    )
    assert found.executions[0].stdout() == "['\\U0001f600', 'a\\\\b\\n']\n"
    assert calls(found.executions[0]) == ["inner"]
    assert Recording.load(here / "o \u00e9" / "r") == found


@pytest.mark.parametrize(
    ("ending", "status", "number"),
    [
        ("sys.exit(3)", 3, None),
        ("os._exit(4)", 4, None),
        ("os.kill(os.getpid(), 15)", None, signal.SIGTERM),
        ("os.kill(os.getpid(), 9)", None, signal.SIGKILL),
    ],
)
def test_a_program_that_ends_in_its_own_way_is_recorded(here, ending, status, number):
    (run,) = recording(f"import os, sys, pkg\npkg.inner(1)\n{ending}\n").executions
    assert (run.exit_status, run.signal, run.timed_out) == (status, number, False)
    assert calls(run) == ["inner"]


def test_child_processes_are_part_of_the_run(here):
    text = (
        "import subprocess, sys, pkg\n"
        "if sys.argv[1:]:\n    pkg.inner(1)\nelse:\n"
        "    subprocess.run([sys.executable, __file__, 'child'], check=True)\n"
    )
    (run,) = recording(text).executions
    traces = run.traces()
    assert [[code.name for code in trace.codes if code.kind == "function"] for trace in traces][-1] == ["inner"]
    assert len(traces) == 2


# A sleeper that ignores SIGTERM, one in a session of its own, and the program that starts both.
STUBBORN = """
import os, signal, subprocess, sys, time
import pkg
pkg.inner(1)
marker = {marker!r}
sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"
for own in (False, True):
    child = subprocess.Popen([sys.executable, "-c", sleeper, marker], start_new_session=own, stdout=subprocess.PIPE)
    child.stdout.readline()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{rest}
"""


def test_a_timeout_ends_every_process_and_keeps_what_was_recorded(here, monkeypatch):
    monkeypatch.setattr("xlocal.tracer.family.GRACE_SECONDS", 0.3)
    marker = f"marker-{os.getpid()}-timeout"
    with pytest.raises(ScriptError, match=r"script.py: still ran after 1.5 seconds .* --timeout"):
        recording(STUBBORN.format(marker=marker, rest="time.sleep(99)"), timeout=1.5, repeat=3)
    assert running(marker) == []
    kept = Recording.load(here.parent / "session" / "buggy")
    (run,) = kept.executions
    assert (run.timed_out, run.exit_status, run.signal) == (True, None, None)
    assert 1.5 <= run.seconds < 10
    assert calls(run)[:1] == ["inner"]


def test_processes_left_running_are_ended_and_said(here, monkeypatch):
    monkeypatch.setattr("xlocal.tracer.family.GRACE_SECONDS", 0.3)
    monkeypatch.setattr("xlocal.tracer.launch.FINISH_SECONDS", 0.3)
    marker = f"marker-{os.getpid()}-left"
    found = recording(STUBBORN.format(marker=marker, rest="os._exit(0)"))
    assert running(marker) == []
    (warning,) = [warning for warning in found.warnings if warning.slug == "processes-left"]
    assert "left 2 processes running" in warning.text


def test_a_process_that_finishes_soon_is_waited_for(here):
    text = (
        "import subprocess, sys, pkg\n"
        "if sys.argv[1:]:\n    import time; time.sleep(0.3); pkg.inner(1)\n"
        "else:\n    subprocess.Popen([sys.executable, __file__, 'child']); sys.stderr.close()\n"
    )
    found = recording(text)
    assert calls(found.executions[0]) == ["inner"]
    assert "processes-left" not in [warning.slug for warning in found.warnings]


def test_ctrl_c_ends_the_program_and_leaves_no_recording(here, monkeypatch):
    monkeypatch.setattr("xlocal.tracer.family.GRACE_SECONDS", 0.3)
    marker = f"marker-{os.getpid()}-interrupt"
    started = here / "started"
    text = STUBBORN.format(marker=marker, rest=f"open({str(started)!r}, 'w'); time.sleep(99)")

    def interrupt() -> None:
        deadline = time.monotonic() + 30
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            recording(text)
    finally:
        thread.join()
    assert running(marker) == []
    assert not (here.parent / "session" / "buggy" / "recording.json").exists()


def test_a_program_without_a_trace_says_why(here, tmp_path):
    wrapper = (
        f'#!/bin/sh\ncase "$1" in -*) exec {sys.executable} "$@";; esac\necho first >&2\necho broken >&2\nexit 9\n'
    )
    with pytest.raises(ScriptError, match=r"wrote no trace \(exit status 9\): broken; all it wrote is in .*") as caught:
        recording("", python=program(tmp_path / "python", wrapper))
    path = Path(str(caught.value).rpartition(" is in ")[2])
    assert path.read_text() == "first\nbroken\n"
    assert not (path.parent.parent / "recording.json").exists()


def test_a_syntax_error_is_told_before_anything_runs(here):
    with pytest.raises(ScriptError, match=r"script.py:1: SyntaxError"):
        recording("def f(:\n")
    assert not (here.parent / "session").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "magic"}, "--backend magic: choose one of auto"),
        ({"repeat": 0}, "must be greater than zero"),
        ({"timeout": 0}, "must be greater than zero"),
        ({"python": "no-such-python"}, "no such interpreter"),
    ],
)
def test_wrong_options(here, options, message):
    with pytest.raises(UsageError, match=message):
        recording("", **options)


def test_a_folder_that_cannot_be_written_is_one_line(here):
    (here / "file").write_text("")
    with pytest.raises(SessionError, match="cannot be written: Not a directory"):
        recording("", folder=here / "file")


def test_a_full_disk_is_one_line(here, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        for room in (0, 40_000):
            (disk / "ballast").write_bytes(bytes(512 * 1024 - room - 4096 * 8))
            with pytest.raises(SessionError) as caught:
                recording("import pkg\nfor i in range(10**6): pkg.inner(1)\nprint('x' * 10**6)\n", folder=disk / "s")
            assert "\n" not in str(caught.value)
            assert "No space left" in str(caught.value) or "the disk is full" in str(caught.value)
            shutil.rmtree(disk / "s", ignore_errors=True)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_progress_is_told(here):
    told: list[str] = []
    recording("", repeat=2, progress=told.append)
    assert told == ["running buggy, 1 of 2", "running buggy, 2 of 2"]


def test_a_module_that_is_not_there(here):
    with pytest.raises(ScriptError, match="finds no module absent_module; check --python"):
        recording("", command="-m absent_module")
