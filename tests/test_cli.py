"""The command line as users meet it: results, exit codes, one clear line for each kind of wrong input."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from xlocal.ranking.closer import cut_apart

import xlocal
from xlocal.cli import cli
from xlocal.session import FILE, Session, replacing
from xlocal.settings import BACKENDS, RANKERS

ROOT = Path(__file__).resolve().parent.parent
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
KEYS = ["schema", "ranker", "issue", "runs", "warnings", "suspects"]


def copy_of_the_timesheet(folder: Path) -> Path:
    shutil.copytree(ROOT / "examples" / "timesheet", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("XLOCAL_DEBUG", raising=False)


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A copy of the timesheet example to stand in, outside of any git work tree."""
    folder = copy_of_the_timesheet(tmp_path / "project")
    stand_in(folder, monkeypatch)
    return folder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A project that was traced once, without an issue; tests only read it."""
    folder = copy_of_the_timesheet(tmp_path_factory.mktemp("recorded") / "project")
    with pytest.MonkeyPatch.context() as monkeypatch:
        stand_in(folder, monkeypatch)
        assert trace().exit_code == 0
    return folder


@pytest.fixture
def traced(recorded, monkeypatch) -> Path:
    """The traced project, to stand in and to rank."""
    stand_in(recorded, monkeypatch)
    return recorded


@pytest.fixture
def kept(project, recorded) -> Path:
    """A project of its own that has a session."""
    shutil.copytree(recorded / ".xlocal", project / ".xlocal")
    return project


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin, prog_name="xlocal")


def trace(*arguments: str, scripts: tuple[str, ...] = ("buggy.py", "reference.py"), **options) -> Result:
    return run("trace", *scripts, "--repeat", "1", *arguments, **options)


def as_document(result: Result) -> dict:
    """The JSON on stdout, which holds nothing else."""
    document = json.loads(result.stdout)
    assert list(document) == KEYS
    return document


def slugs(result: Result) -> list[str]:
    return [warning["slug"] for warning in as_document(result)["warnings"]]


def refused(result: Result, code: int, *texts: str) -> None:
    """One line on stderr, nothing on stdout, the exit code."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for text in texts:
        assert text in result.stderr
    assert result.stderr.startswith("xlocal: ")
    assert len(result.stderr.splitlines()) == 1


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return name


# --- trace and rank -----------------------------------------------------------------------------------------------------


def test_trace_prints_the_suspects_and_keeps_the_session(project):
    result = trace("--json")
    assert result.exit_code == 0, result.output
    document = as_document(result)
    assert document["suspects"][0]["function"]["qualname"] == "from_days"
    assert document["suspects"][0]["function"]["path"] == "timesheet/entry.py"
    assert document["suspects"][0]["evidence"]
    buggy, reference = document["runs"]
    assert (buggy["role"], buggy["command"], buggy["exit_status"]) == ("buggy", "buggy.py", 1)
    assert (reference["role"], reference["command"], reference["exit_status"]) == ("reference-1", "reference.py", 0)
    assert buggy["calls"] > 0
    assert reference["calls"] > 0
    assert Session.load(project / ".xlocal" / "latest").commands == ("buggy.py", "reference.py")
    assert (project / ".xlocal" / ".gitignore").read_text() == "*\n"


def test_rank_says_the_same_without_running_anything(project):
    traced = trace("--json")
    for script in ("buggy.py", "reference.py"):
        (project / script).unlink()
    ranked = run("rank", "--json")
    assert ranked.exit_code == 0
    assert as_document(ranked) == as_document(traced)


@pytest.mark.parametrize("output", [("--format", "json"), ("--json",)])
def test_rank_takes_top_ranker_and_issue(traced, output):
    write(traced, "issue.md", "from_days() gives too much")
    document = as_document(run("rank", "--top", "2", "--ranker", "lexical", "--issue", "issue.md", *output))
    assert (document["ranker"], document["issue"]) == ("lexical", "from_days() gives too much")
    assert [item["rank"] for item in document["suspects"]] == [1, 2]
    assert as_document(run("rank", "--issue", "-", *output, stdin="from a pipe"))["issue"] == "from a pipe"


def test_rank_keeps_to_the_issue_of_the_recording(project):
    trace("--issue", "issue.txt")
    assert as_document(run("rank", "--json"))["issue"] == (project / "issue.txt").read_text()


def test_text_output_for_people(project):
    result = trace()
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("buggy")
    # A table, or a list where the paths leave no room for one.
    assert re.search(r"^\s*1\.?\s+from_days\b", result.stdout, re.MULTILINE)
    assert "timesheet/entry.py:31" in result.stdout
    assert any(line.startswith("The call trees differ by ") for line in lines)
    assert any("xlocal rank --issue FILE" in line for line in lines)
    assert result.stderr == ""


def test_markdown_output(project):
    result = trace("--format", "markdown")
    assert result.exit_code == 0
    assert result.stdout.startswith("# Suspects\n")
    assert "1. `from_days` in `timesheet/entry.py:31`" in result.stdout


def test_several_references(project):
    other = write(project, "other.py", "from timesheet import Sheet\nprint(Sheet().tasks())\n")
    document = as_document(trace("--json", scripts=("buggy.py", "reference.py", other)))
    assert [item["role"] for item in document["runs"]] == ["buggy", "reference-1", "reference-2"]


def test_every_form_of_command_is_understood(project):
    write(project, "tool.py", "import sys\nfrom timesheet import parse_entry\nprint(parse_entry(sys.argv[1]))\n")
    result = trace("--json", scripts=("-m tool '1d 2h'", "tool.py '8h 2h'"))
    assert result.exit_code == 0, result.output
    document = as_document(result)
    assert [item["command"] for item in document["runs"]] == ["-m tool '1d 2h'", "tool.py '8h 2h'"]
    assert document["suspects"][0]["function"]["qualname"] == "from_days"


def test_a_pytest_node_id_is_understood(project):
    text = "from timesheet import parse_entry\n\n\ndef test_{0}():\n    assert parse_entry('{1}') == 600\n"
    write(project, "test_entry.py", text.format("bad", "1d 2h") + "\n\n" + text.format("good", "8h 2h"))
    result = trace("--json", scripts=("pytest test_entry.py::test_bad", "pytest test_entry.py::test_good"))
    assert result.exit_code == 0, result.output
    assert as_document(result)["suspects"][0]["function"]["qualname"] == "from_days"


def test_a_script_after_two_dashes(project):
    shutil.copy("buggy.py", "-b.py")
    assert trace("--json", "--", "./-b.py", "reference.py", scripts=()).exit_code == 0


def test_options_reach_the_scripts(project, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    name = write(
        project,
        "where.py",
        "import os, sys\nimport timesheet\ntimesheet.parse_entry('1h')\n"
        f"print(os.environ['A'], os.getcwd(), file=open({str(tmp_path / 'said')!r}, 'w'))\n",
    )
    options = ("--cwd", str(tmp_path / "elsewhere"), "--env", "A=1=2", "--python", sys.executable, "--json")
    result = trace(*options, scripts=(name, "reference.py"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "said").read_text() == f"1=2 {tmp_path / 'elsewhere'}\n"


def test_settings_of_the_project_are_used_and_overruled(project):
    write(project, "pyproject.toml", '[tool.xlocal]\nsession = "kept"\ntop = 1\nranker = "evidence"\nrepeat = 1\n')
    first = as_document(run("trace", "buggy.py", "reference.py", "--json"))
    assert (first["ranker"], len(first["suspects"]), first["runs"][0]["repeats"]) == ("evidence", 1, 1)
    assert Session.load(project / "kept").commands == ("buggy.py", "reference.py")
    second = as_document(run("rank", "--top", "2", "--ranker", "lexical", "--issue", "issue.txt", "--json"))
    assert (second["ranker"], len(second["suspects"])) == ("lexical", 2)


def test_changed_sources_are_told(project):
    trace()
    entry = project / "timesheet" / "entry.py"
    entry.write_text(entry.read_text() + "\n# changed\n")
    result = run("rank", "--json")
    assert slugs(result).count("source-changed") == 1
    assert "timesheet/entry.py" in as_document(result)["warnings"][-1]["text"]


# --- a pair that shows little -------------------------------------------------------------------------------------------


def test_the_same_script_twice_finds_nothing_and_says_so(project):
    result = trace("--json", scripts=("reference.py", "reference.py"))
    assert result.exit_code == 1, result.output
    assert as_document(result)["suspects"] == []
    assert slugs(result)[-1] == "nothing-found"
    text = trace(scripts=("reference.py", "reference.py"))
    assert text.exit_code == 1
    assert "No suspects. Compared 'reference.py'" in text.stdout
    assert run("rank").exit_code == 1


def test_a_reference_that_fails_too_and_a_buggy_script_that_does_not_are_warnings(project):
    both_fail = trace("--json", scripts=("buggy.py", "buggy.py"))
    assert both_fail.exit_code in (0, 1)
    assert any("reference" in slug for slug in slugs(both_fail))
    wrong_value = write(
        project, "quiet.py", "from timesheet import parse_entry\nprint(parse_entry('1d 2h'), parse_entry('5m'))\n"
    )
    quiet = trace("--json", scripts=(wrong_value, "reference.py"))
    assert quiet.exit_code == 0
    assert any("buggy" in slug for slug in slugs(quiet))


def test_a_scope_that_never_runs_names_what_ran_instead(project):
    (project / "unused").mkdir()
    write(project, "unused/__init__.py", "def f():\n    pass\n")
    result = trace("--json", "--scope", "unused")
    assert result.exit_code == 1, result.output
    assert "timesheet" in json.dumps(as_document(result)["warnings"])


def test_values_that_differ_far_from_their_beginning_are_shown_where_they_differ(project):
    write(project, "lib.py", "def near(x):\n    return x\n\n\ndef far(x):\n    return x\n")
    for name, end in (("a.py", "'one'"), ("b.py", "'two'")):
        calls = f"import lib\nlib.near('x' * 150 + ' end=' + {end})\nlib.far('y' * 900 + {end})\n"
        write(project, name, calls + ("assert 0\n" if name == "a.py" else ""))
    assert trace("--scope", "lib", scripts=("a.py", "b.py")).exit_code == 0
    near = run("explain", "near").output
    assert "given x=...end=one', but ...end=two' in the reference run" in near
    assert "same" not in near.split("How often")[0]
    far = " ".join(run("explain", "far").output.split())
    assert "which differs from the reference run beyond what is shown" in far
    assert far.count("differs beyond what is shown") == 2


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        ("a", "b", ("a", "b")),
        ("a" * 40, "b", ("a" * 17 + "...", "b")),
        ("x" * 50, "x" * 49, ("..." + "x" * 11, "..." + "x" * 10)),
        ("x" * 40 + " q=1 " + "z" * 90, "x" * 40 + " q=2", ("...q=1 " + "z" * 10 + "...", "...q=2")),
    ],
)
def test_texts_are_cut_around_their_first_difference(here, there, expected):
    assert cut_apart(here, there, 20) == expected


# --- wrong usage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["trace"], "Missing argument 'BUGGY'"),
        (["trace", "buggy.py"], "REFERENCE"),
        (["trace", "absent.py", "reference.py"], "No such script: absent.py"),
        (["trace", "buggy.py", "absent.py"], "No such script: absent.py"),
        (["trace", "buggy.py", "timesheet"], "timesheet"),
        (["trace", "pytest absent.py::test_x", "reference.py"], "No such test file: absent.py"),
        (["trace", "buggy.py", "-m"], "Quote the whole command"),
        (["trace", "buggy.py", "-m "], "-m needs the name of a module"),
        (["trace", "buggy.py", "'unbalanced"], "Cannot read the command"),
        (["trace", "--scop", "x", "buggy.py", "reference.py"], "No such option"),
        (["trace", "buggy.py", "reference.py", "--scope", "absent_package"], "absent_package"),
        (["trace", "buggy.py", "reference.py", "--python", "/absent/python"], "no such interpreter"),
        (["trace", "buggy.py", "reference.py", "--python", "/dev/null"], "/dev/null"),
        (["trace", "buggy.py", "reference.py", "--python", "/bin/ls"], "does not run Python code (exit status 2)"),
        (["trace", "buggy.py", "reference.py", "--cwd", "absent"], "absent"),
        (["trace", "buggy.py", "reference.py", "--env", "A"], "is not of the form K=V"),
        (["trace", "buggy.py", "reference.py", "--env", "=1"], "is not of the form K=V"),
        (["trace", "buggy.py", "reference.py", "--timeout", "0"], "0"),
        (["trace", "buggy.py", "reference.py", "--repeat", "0"], "0"),
        (["trace", "buggy.py", "reference.py", "--backend", "magic"], "magic"),
        (["trace", "buggy.py", "reference.py", "--issue", "absent.md"], "--issue absent.md: cannot be read"),
        (["trace", "buggy.py", "reference.py", "--issue", "timesheet"], "--issue timesheet: cannot be read"),
        (["rank", "--top", "0"], "0"),
        (["rank", "--format", "yaml"], "yaml"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(project, arguments, text):
    result = run(*arguments)
    refused(result, 2, text)
    assert not (project / ".xlocal").exists()


def test_an_unknown_ranker_is_refused(traced):
    refused(run("rank", "--ranker", "best"), 2, "best", "fused")


def test_wrong_settings_are_refused(project):
    write(project, "pyproject.toml", "[tool.xlocal]\nspeed = 9\n")
    refused(run("rank"), 2, "pyproject.toml", "unknown key 'speed'")


def test_an_interpreter_that_is_too_old_is_refused(project):
    old = next(iter(sorted((Path.home() / ".pyenv" / "versions").glob("2.7*/bin/python"))), None)
    if old is None:
        pytest.skip("no Python older than 3.6 here")
    refused(trace("--python", str(old)), 2, "2.7", "3.6")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this interpreter has sys.monitoring")
def test_monitoring_is_refused_where_python_has_none(project):
    refused(trace("--backend", "monitoring"), 2, "--backend monitoring: needs Python 3.12 or later")
    assert not (project / ".xlocal" / "latest").exists()


# --- scripts that do not behave -----------------------------------------------------------------------------------------


def test_a_syntax_error_names_the_line(project):
    refused(
        trace(scripts=(write(project, "broken.py", "x = 1\nif\n"), "reference.py")), 3, "broken.py:2", "SyntaxError"
    )
    assert not (project / ".xlocal" / "latest").exists()


def test_a_script_that_never_ends_is_ended(project):
    endless = write(project, "endless.py", "import time\nimport timesheet\ntime.sleep(600)\n")
    started = time.monotonic()
    refused(trace("--timeout", "1", scripts=("buggy.py", endless)), 3, "endless.py", "--timeout")
    assert time.monotonic() - started < 60


def test_a_failed_recording_leaves_the_former_session(kept):
    before = as_document(run("rank", "--json"))
    trace(scripts=(write(kept, "broken.py", "if\n"), "reference.py"))
    assert as_document(run("rank", "--json")) == before


# --- issue text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "slug", "kept"),
    [
        (b"", "issue-empty", None),
        (b" \n\t\n", "issue-empty", None),
        (b"\xef\xbb\xbf", "issue-empty", None),
        (b"carry " * 400_000, "issue-cut", 1_000_000),
        ("é".encode() * 700_000, "issue-cut", 500_000),
        (b"x" + "é".encode() * 700_000, "issue-cut", 500_000),
        (b"carry \xff\xfe\x00 hour", "issue-encoding", 14),
        ("carry é".encode("utf-16"), None, 7),
        ("carry é".encode(), None, 7),
    ],
)
@pytest.mark.parametrize("source", ["file", "stdin"])
def test_odd_issue_texts_are_told(traced, content, slug, kept, source):
    (traced / "issue.md").write_bytes(content)
    result = (
        run("rank", "--json", "--issue", "-", stdin=content)
        if source == "stdin"
        else run("rank", "--json", "--issue", "issue.md")
    )
    assert result.exit_code == 0, result.output
    assert [item for item in slugs(result) if item.startswith("issue")] == ([slug] if slug else [])
    issue = as_document(result)["issue"]
    assert (issue if issue is None else len(issue)) == kept


def test_an_empty_issue_replaces_that_of_the_session(project):
    (project / "issue.md").write_text("whole_hours is wrong", "utf-8")
    (project / "empty.md").write_text("", "utf-8")
    trace("--issue", "issue.md")
    assert as_document(run("rank", "--json"))["issue"] == "whole_hours is wrong"
    assert as_document(run("rank", "--json", "--issue", "empty.md"))["issue"] is None


# --- sessions -----------------------------------------------------------------------------------------------------------


def test_rank_without_a_session_says_how_to_make_one(project):
    refused(run("rank"), 4, "no session here; record one with: xlocal trace BUGGY REFERENCE")
    refused(run("rank", "--session", "timesheet"), 4, "is not an xlocal session")


def test_a_session_of_a_newer_xlocal_is_refused(kept):
    file = kept / ".xlocal" / "latest" / FILE
    file.write_text(file.read_text().replace('"version": 1', '"version": 99'))
    refused(run("rank"), 4, "session version 99 was written by a newer xlocal")


def test_a_damaged_comparison_is_refused(kept):
    file = kept / ".xlocal" / "latest" / "comparison.json"
    whole = file.read_text()
    for keep in (0, 1, 100, len(whole) - 1):
        file.write_text(whole[:keep])
        refused(run("rank"), 4, "comparison.json")
    file.unlink()
    refused(run("rank"), 4, "record with xlocal trace")


def test_a_folder_with_other_things_is_never_used_as_a_session(project):
    refused(trace("--session", "timesheet"), 4, "is not an xlocal session; choose another folder")
    assert (project / "timesheet" / "entry.py").exists()


# --- real processes: signals, locks, pipes ------------------------------------------------------------------------------


def start(*arguments: object, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "xlocal", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


def waiting_script(folder: Path) -> str:
    """A script that writes its pid and then waits."""
    return write(
        folder,
        "waiting.py",
        "import os, time\nimport timesheet\nopen('pid.new', 'w').write(str(os.getpid()))\n"
        "os.rename('pid.new', 'pid')\ntime.sleep(600)\n",
    )


def wait_for(file: Path) -> str:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} never came"
        time.sleep(0.05)
    return file.read_text()


@POSIX
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_script_and_leaves_the_former_session_whole(kept, number, code):
    before = sorted(path.name for path in (kept / ".xlocal").iterdir())
    process = start("trace", "buggy.py", waiting_script(kept), "--repeat", 1)
    script = int(wait_for(kept / "pid"))
    assert is_running(script)
    process.send_signal(number)
    status, out, err = ended(process)
    assert (status, out) == (code, "")
    assert err in ("", "xlocal: interrupted; the former session in .xlocal/latest is as it was\n")
    assert bool(err) == (number == signal.SIGINT)
    assert not is_running(script)
    assert sorted(path.name for path in (kept / ".xlocal").iterdir()) == before
    assert Session.load(kept / ".xlocal" / "latest").commands == ("buggy.py", "reference.py")


@POSIX
def test_an_interrupt_of_the_first_trace_tells_of_no_former_session(project):
    process = start("trace", "buggy.py", waiting_script(project), "--repeat", 1)
    wait_for(project / "pid")
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "", "xlocal: interrupted\n")


@POSIX
def test_two_at_once_in_one_session_folder(kept):
    process = start("trace", "buggy.py", waiting_script(kept), "--repeat", 1)
    try:
        wait_for(kept / "pid")
        refused(trace(), 4, "another xlocal is using this session", str(process.pid))
        # The former session can be read meanwhile, and another folder is free.
        assert run("rank").exit_code == 0
        assert trace("--session", "other").exit_code == 0
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert trace().exit_code == 0


@POSIX
def test_a_script_that_a_signal_ends_names_it_and_what_is_wrong_with_the_machine_is_said_once(project, monkeypatch):
    monkeypatch.setenv("CC", "absent-compiler")
    monkeypatch.setenv("XLOCAL_CACHE", str(project / "cache"))
    killed = write(
        project,
        "killed.py",
        "import os, signal\nfrom timesheet import parse_entry\nparse_entry('1h')\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\nos.kill(os.getpid(), signal.SIGTERM)\n",
    )
    found = as_document(trace("--json", "--repeat", "1", scripts=(killed, "reference.py")))
    assert found["runs"][0]["exit_status"] == -signal.SIGTERM
    said = [(warning["slug"], warning["text"]) for warning in found["warnings"]]
    assert len(said) == len(set(said))


@POSIX
def test_a_full_disk_is_one_line_and_keeps_the_former_session(kept):
    import resource

    big = write(
        kept,
        "big.py",
        "from timesheet import parse_entry\nimport random\n"
        "for _ in range(300000):\n    parse_entry(random.choice(['1d', '5m', '1h']))\n",
    )

    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    status, out, err = ended(start("trace", big, "reference.py", "--repeat", 1, preexec_fn=small_files_only))
    assert (status, out) == (4, ""), err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err
    assert Session.load(kept / ".xlocal" / "latest").commands == ("buggy.py", "reference.py")


@POSIX
def test_a_reader_that_goes_away_is_no_error(traced):
    process = start("rank", "--json")
    process.stdout.close()
    process.stdout = None
    status, _, err = ended(process)
    assert (status, err) == (141, "")


@POSIX
@pytest.mark.parametrize("arguments", [["rank"], ["diff"], ["explain", "parse_entry"]])
def test_a_reader_that_goes_away_is_no_missing_suspect(traced, arguments):
    process = start(*arguments)
    process.stdout.close()
    process.stdout = None
    status, _, err = ended(process)
    assert (status, err) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("arguments", [["rank"], ["rank", "--json"], ["doctor"], ["--help"], ["rank", "--help"]])
def test_a_full_disk_behind_stdout_is_one_line(traced, arguments):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "xlocal", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (4, "xlocal: cannot write the output: No space left on device\n")


def test_an_interrupt_while_modules_are_imported_is_one_line(project):
    write(project, "click.py", "raise KeyboardInterrupt\n")
    status, out, err = ended(start("--help", env={**os.environ, "PYTHONPATH": str(project)}))
    assert (status, out, err) == (130, "", "xlocal: interrupted\n")


def test_agents_without_their_packages_name_the_extra(project):
    write(project, "issue.txt", "The report is wrong.")
    write(project, "pydantic.py", "raise ModuleNotFoundError('no pydantic', name='pydantic')\n")
    environment = {**os.environ, "PYTHONPATH": str(project)}
    status, out, err = ended(start("fix", "issue.txt", "--model", "http://127.0.0.1:9/v1#m", env=environment))
    assert (status, out) == (4, "")
    assert err.splitlines()[-1].startswith("xlocal: agents need pydantic; ")
    assert "pip install 'xlocal[agents]'" in err


def test_real_exit_codes(project):
    assert ended(start("--version"))[:2] == (0, f"xlocal {xlocal.__version__}\n")
    assert ended(start("rank"))[0] == 4
    assert ended(start("trace", "buggy.py", "reference.py", "--repeat", 1))[0] == 0
    assert ended(start("rank", "--ranker", "best"))[0] == 2


def test_names_that_the_terminal_cannot_show(project):
    shutil.copy("buggy.py", "büggy.py")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    status, out, err = ended(start("trace", "büggy.py", "reference.py", "--repeat", 1, env=environment))
    assert (status, err) == (0, "")
    assert "b\\xfcggy.py" in out


def test_an_unexpected_exception_is_one_line_and_debug_shows_the_rest(project):
    spoil = "import xlocal.question\nxlocal.question.rerank = None\nfrom xlocal.cli import main\nmain()\n"
    write(project, "spoiled.py", spoil)

    def attempt(*arguments: str, debug: str = "") -> tuple[int, str, str]:
        return ended(
            subprocess.Popen(
                [sys.executable, "spoiled.py", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "XLOCAL_DEBUG": debug},
            )
        )

    status, out, err = attempt("rank")
    assert (status, out) == (4, "")
    assert err.startswith("xlocal: unexpected TypeError: ")
    assert len(err.splitlines()) == 1
    assert "XLOCAL_DEBUG=1" in err
    for status, out, err in (attempt("--debug", "rank"), attempt("rank", debug="1")):
        assert (status, out) == (4, "")
        assert "Traceback (most recent call last)" in err


# --- help, documentation, the rest --------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """Without line breaks, which differ between versions of click."""
    return text.split()


def test_the_page_of_the_command_line_is_what_help_says():
    generator = runpy.run_path(str(ROOT / "docs" / "generate_cli.py"))
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert words(page) == words(generator["document"]()), "run: python docs/generate_cli.py"


@pytest.mark.parametrize("name", ["", *cli.commands])
def test_help_of_every_command(name):
    result = run(*filter(None, [name, "--help"]))
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: xlocal {name}".rstrip())


def test_help_needs_none_of_the_modules_that_do_the_work():
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom xlocal.cli import cli\n"
        "assert CliRunner().invoke(cli, ['trace', '--help']).exit_code == 0\n"
        "print(sorted({'numpy', 'numba', 'rich', 'git', 'apted'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_names_in_help_are_those_that_exist():
    from xlocal.ranking import rank
    from xlocal.tracer import record

    assert rank.ranker_names() == RANKERS
    assert set(BACKENDS) <= set(record.BACKENDS)
    option = next(item for item in cli.commands["trace"].params if item.name == "backend")
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == BACKENDS


def test_doctor_finds_this_interpreter(project):
    result = run("doctor", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    version = ".".join(map(str, sys.version_info[:3]))
    assert any(item["name"] == f"Python {version}" and item["works"] for item in document["checks"])
    assert all(item["works"] or item["detail"] for item in document["checks"])
    text = run("doctor")
    assert text.exit_code == 0
    assert f"yes Python {version}" in text.stdout


def test_the_public_names_exist():
    assert set(xlocal.__all__) <= set(dir(xlocal))
    for name in xlocal.__all__:
        assert getattr(xlocal, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = xlocal.absent


def test_the_lock_is_free_after_a_named_error(project):
    trace("--session", "s", scripts=(write(project, "broken.py", "if\n"), "reference.py"))
    with replacing(project / "s") as folder:
        Session(commands=("x",), python="", cwd="").save(folder)
    assert Session.load(project / "s").commands == ("x",)


# --- messages.md --------------------------------------------------------------------------------------------------------


def slugs_in(source: str) -> set[str]:
    """The slugs of all warnings that a module can give: first arguments of `Warned(...)`, `....warn(...)` and `_Unavailable(...)`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if called in ("Warned", "warn", "_warn", "_Unavailable") and isinstance(node.args[0].value, str):
                found.add(node.args[0].value)
    return found


def test_every_warning_and_exit_code_has_its_paragraph_and_the_other_way_round():
    given = set()
    for folder in ("tracer", "ranking", "swe_pipeline", "xlocal"):
        for file in (ROOT / folder).rglob("*.py"):
            given |= slugs_in(file.read_text("utf-8"))
    assert {"hook-lost", "scope-guessed", "issue-cut", "nothing-found"} <= given
    page = (ROOT / "docs" / "messages.md").read_text("utf-8")
    explained = re.findall(r"^### (\S+)$", page, re.MULTILINE)
    assert sorted(explained) == sorted(given)
    assert re.findall(r"^### (\d+): ", page, re.MULTILINE) == ["0", "1", "2", "3", "4", "130", "141"]
