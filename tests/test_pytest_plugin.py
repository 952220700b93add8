"""The pytest plugin in real runs of pytest: what it prints, keeps and leaves alone; and its choices, one by one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xlocal.ranking.evidence import Suspect
from xlocal.ranking.spectrum import KIND, ochiai, spectrum_scores
from xlocal.tracer import executed as plugin
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import ScriptError, UsageError

from xlocal import executed
from xlocal.executed import Executed, TestRun, run_tests
from xlocal.failing import Relative, TestQuestion, by_name, localize_test, nearest, references, test_code
from xlocal.pytest_session import kept_options
from xlocal.session import named_after

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import pytest
from timesheet import Sheet

@pytest.mark.parametrize(("text", "minutes"), [("45m", 45), ("8h 2h", 600), ("1d 2h", 600)])
def test_add_returns_the_minutes(text, minutes):
    assert Sheet().add("review", text) == minutes

def test_each_task_is_listed_once():
    sheet = Sheet()
    sheet.add("review", "2h")
    assert sheet.tasks() == ["review"]
"""


def a_project(folder: Path, *, tests: str = TESTS, ini: str = "") -> Path:
    """The timesheet package with tests, whose failing one is the parameter `1d 2h`."""
    shutil.copytree(ROOT / "examples" / "timesheet" / "timesheet", folder / "timesheet")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_sheet.py").write_text(textwrap.dedent(tests))
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = .\n{ini}")
    (folder / ".git").mkdir()
    return folder


def run_pytest(folder: Path, *arguments: str, plugins: bool = False, **env: str) -> subprocess.CompletedProcess[str]:
    """Pytest with our plugin; with `plugins` all others that are installed too."""
    chosen = {} if plugins else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    extra = () if plugins else ("-p", "xlocal")
    environment = {**os.environ, **chosen, **env}
    environment.pop("PYTEST_ADDOPTS", None)
    program = [sys.executable, "-m", "pytest", *extra, *arguments]
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def ranked(folder: Path, *arguments: str) -> dict:
    session = next(folder.glob(".xlocal/test-*"))
    program = [sys.executable, "-m", "xlocal", "rank", "--json", "--session", str(session), *arguments]
    return json.loads(subprocess.run(program, cwd=folder, capture_output=True, text=True, check=True).stdout)


def names(document: dict) -> list[str]:
    return [suspect["function"]["qualname"] for suspect in document["suspects"]]


# --- whole runs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run with everything on, which the tests below only read; warnings are errors in it."""
    folder = a_project(tmp_path_factory.mktemp("run"), ini="filterwarnings = error\naddopts = -ra --maxfail=9\n")
    return folder, run_pytest(folder, "--xlocal", "--xlocal-spectrum", "--xlocal-top", "3", "tests")


def test_the_suspects_stand_under_the_failure(run):
    _, result = run
    assert result.returncode == 1, result.stdout
    failures = result.stdout.partition(" FAILURES ")[2].partition("short test summary")[0]
    section = re.search(r"-+ xlocal -+\n(.*?)\n=", failures, re.DOTALL)
    assert section, result.stdout
    lines = section[1].splitlines()
    assert lines[0].startswith("compared with tests/test_sheet.py::test_add_returns_the_minutes[8h 2h-600] (6 of 7")
    assert not lines[1].startswith("compared with")  # one function tells them apart, so that one is enough
    assert len([line for line in lines if re.match(r" \d\. ", line)]) == 3
    assert any(re.match(r" [123]\. from_days  timesheet/entry\.py:\d+", line) for line in lines), lines
    assert lines[-1].startswith("more: xlocal explain NAME --session .xlocal/test-")


def test_the_session_is_kept_and_holds_no_test_code(run):
    folder, _ = run
    document = ranked(folder)
    assert [entry["role"] for entry in document["runs"]] == ["buggy", "reference-1"]
    assert [entry["repeats"] for entry in document["runs"]] == [2, 1]
    assert document["runs"][0]["command"] == "pytest 'tests/test_sheet.py::test_add_returns_the_minutes[1d 2h-600]'"
    assert document["runs"][0]["exception"] == "AssertionError"
    assert {suspect["function"]["path"].partition("/")[0] for suspect in document["suspects"]} == {"timesheet"}
    assert (folder / ".xlocal" / ".gitignore").read_text() == "*\n"


def test_the_spectrum_is_one_more_ranker(run):
    folder, _ = run
    document = ranked(folder, "--ranker", "spectrum")
    first = document["suspects"][0]
    assert first["function"]["qualname"] == "from_days"
    details = {item["kind"]: item["detail"] for item in first["evidence"]}
    assert details["spectrum"] == "runs in 1 of 1 failing and 0 of 3 passing tests"


def test_nothing_is_written_and_nothing_loaded_when_it_is_off(tmp_path):
    folder = a_project(tmp_path)
    (folder / "conftest.py").write_text(
        "import sys\n"
        "def pytest_sessionfinish():\n"
        "    loaded = sorted(name for name in sys.modules if name.startswith(('xlocal', 'numpy', 'rich', 'click')))\n"
        "    print('LOADED', *loaded)\n"
    )
    result = run_pytest(folder, "-s", "tests")
    assert "LOADED xlocal xlocal.pytest_plugin\n" in result.stdout
    assert "1 failed, 3 passed" in result.stdout
    assert not (folder / ".xlocal").exists()


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (("--xlocal-top", "0"), "xlocal_top must be a whole number above 0"),
        (("--xlocal-max", "-1"), "xlocal_max must be a whole number above 0"),
        (("--xlocal-jobs", "many"), "xlocal_jobs must be a whole number above 0, or auto"),
        (("--xlocal-ranker", "best"), "xlocal_ranker: there is no ranker 'best'; choose one of fused, "),
        (("--xlocal-ranker", "spectrum"), "add --xlocal-spectrum"),
        (("--xlocal-scope", "nowhere"), "xlocal_scope: nowhere: neither a file or folder here nor a package"),
        (("--xlocal-scope", "./nowhere"), "xlocal_scope: ./nowhere: neither a file or folder here nor a package"),
    ],
)
def test_wrong_options_are_refused_before_any_test_is_collected(tmp_path, option, text):
    result = run_pytest(a_project(tmp_path), "--xlocal", *option, "tests")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert text in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "collected" not in result.stdout


def test_a_scope_that_tests_put_on_the_path_themselves_is_taken(tmp_path):
    folder = a_project(tmp_path)
    (folder / "tests" / "fakes.py").write_text("def fake(): pass\n")
    for scope in ("fakes", "timesheet", "timesheet/entry.py", "json"):
        result = run_pytest(folder, "--xlocal", "--xlocal-scope", scope, "-k", "listed")
        assert result.returncode == 0, result.stderr


def test_a_run_without_failures_says_nothing(tmp_path):
    result = run_pytest(a_project(tmp_path), "--xlocal", "tests", "-k", "listed or 45m")
    assert result.returncode == 0
    assert "xlocal:" not in result.stdout


ALONE = "tests/test_sheet.py::test_add_returns_the_minutes[1d 2h-600]"


@pytest.mark.parametrize("words", [(ALONE,), ("tests", "-k", "1d")], ids=["by-name", "by-keyword"])
def test_a_failing_test_that_runs_alone_finds_its_relatives(tmp_path, words):
    result = run_pytest(a_project(tmp_path), "--xlocal", "--tb=no", "--no-header", *words)
    assert "1 failed" in result.stdout
    assert "compared with tests/test_sheet.py::test_add_returns_the_minutes[8h 2h-600] (6 of 7" in result.stdout
    assert re.search(r"^ [12]\. from_days  timesheet/entry", result.stdout, re.MULTILINE), result.stdout
    # In the progress, above the suspects, and in pytest's own summary.
    assert result.stdout.count(ALONE) == 3
    assert f"xlocal: 1 of 1: {ALONE}\n" in result.stdout


def test_tests_that_the_user_keeps_out_by_mark_are_no_relatives(tmp_path):
    tests = TESTS.replace("def test_each", "@pytest.mark.costly\ndef test_each")
    tests = tests.replace('("45m", 45), ("8h 2h", 600), ("1d 2h", 600)', '("1d 2h", 600)')
    ini = "markers = costly\naddopts = -m 'not costly'\n"
    folder = a_project(tmp_path, tests=tests, ini=ini)
    result = run_pytest(folder, "--xlocal", "--tb=no", "tests/test_sheet.py::test_add_returns_the_minutes")
    assert "not localized: no test near it passes, so there is nothing to compare it with\n" in result.stdout


def test_several_failing_tests_are_counted_and_share_the_look_at_their_relatives(tmp_path):
    tests = TESTS.replace('("1d 2h", 600)', '("1d 2h", 600), ("2d", 960)')
    folder = a_project(tmp_path, tests=tests)
    (folder / "conftest.py").write_text(
        "import os, sys\n"
        "def pytest_configure(config):\n"
        "    with open(os.path.join(os.path.dirname(__file__), 'starts'), 'a') as file:\n"
        "        print(len(config.args), 'xlocal_executed' in sys.modules, file=file)\n"
    )
    result = run_pytest(folder, "--xlocal", "--xlocal-jobs", "1", "--xlocal-top", "1", "--tb=no", "tests")
    assert "xlocal: localizing 2 failing tests\n" in result.stdout
    assert f"xlocal: 1 of 2: {ALONE}\n" in result.stdout
    assert "xlocal: 2 of 2: tests/test_sheet.py::test_add_returns_the_minutes[2d-960]\n" in result.stdout
    assert len(re.findall(r"^ 1\. ", result.stdout, re.MULTILINE)) == 2
    starts = (folder / "starts").read_text().splitlines()
    # One look at all five tests; then for each failing one two runs and a look closer at it, one and one of a relative.
    assert [line for line in starts if line.endswith("True")] == ["5 True"]
    assert starts.count("1 False") == 1 + 2 * 6


@pytest.mark.slow
def test_several_at_once_give_what_one_after_another_gives(tmp_path):
    tests = TESTS.replace('("1d 2h", 600)', '("1d 2h", 600), ("2d", 960), ("3d", 0)')
    folder = a_project(tmp_path, tests=tests)
    shown = []
    for jobs in ("1", "3"):
        result = run_pytest(folder, "--xlocal", "--xlocal-jobs", jobs, "--tb=no", "tests")
        shown.append(result.stdout.partition("= xlocal =")[2].partition("short test summary")[0])
    assert shown[0] == shown[1]
    assert shown[0].count("from_days") >= 3


APART = """
import lib

def test_alone():
    assert lib.parse("7") == 8

def test_other():
    assert lib.render(3) == "3"
"""
LIB = """
def parse(text):
    return convert(text)

def convert(text):
    return int(text) + int(raises(text))

def raises(text):
    raise ValueError(text)

def render(number):
    return pad(str(number))

def pad(text):
    return text
"""


def test_a_reference_with_nothing_in_common_is_dropped_with_what_it_alone_executes(tmp_path):
    folder = a_project(tmp_path, tests=APART)
    (folder / "lib.py").write_text(LIB)
    result = run_pytest(folder, "--xlocal", "--tb=no", "tests")
    assert "compared with" not in result.stdout
    assert "relatives-apart: of 1 passing tests near it none executes a function of the project" in result.stdout
    assert names(ranked(folder))[0] == "raises"
    assert set(names(ranked(folder))) == {"parse", "convert", "raises"}


def test_a_failure_without_passing_relatives_is_told(tmp_path):
    tests = """
    def test_first():
        assert False

    def test_second():
        assert False
    """
    result = run_pytest(a_project(tmp_path, tests=tests), "--xlocal", "--tb=no", "tests", "-k", "first")
    assert result.returncode == 1
    assert "not localized: no test near it passes, so there is nothing to compare it with\n" in result.stdout


def test_a_test_that_fails_only_after_others_is_told(tmp_path):
    tests = """
    import os

    def test_first():
        os.environ["SEEN"] = "1"

    def test_second():
        pass

    def test_third():
        assert "SEEN" not in os.environ
    """
    folder = a_project(tmp_path, tests=tests)
    question = TestQuestion(
        "tests/test_sheet.py::test_third", relatives=("tests/test_sheet.py::test_second",), cwd=folder
    )
    with pytest.raises(ScriptError, match="test_third: passes when it runs with few others"):
        localize_test(question, session=tmp_path / "session")


# --- beside other plugins -------------------------------------------------------------------------------------------

BUSY_TESTS = (
    TESTS
    + """
from hypothesis import given, strategies

@given(strategies.integers(0, 90))
def test_minutes_come_back(number):
    assert Sheet().add("a", f"{number}m") == number
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("spectrum", [(), ("--xlocal-spectrum",)], ids=["plain", "spectrum"])
def test_it_works_with_xdist_coverage_and_hypothesis_at_once(tmp_path, spectrum):
    """Coverage goes on to measure the run, and follows none of the processes that xlocal starts."""
    folder = a_project(tmp_path, tests=BUSY_TESTS, ini="filterwarnings = error\n")
    options = ("-n", "2", "--cov=timesheet", "--cov-report=json")
    result = run_pytest(folder, *options, "--xlocal", *spectrum, "tests", plugins=True)
    assert "1 failed, 4 passed" in result.stdout, result.stdout + result.stderr
    assert re.search(r"^ [1-5]\. from_days  timesheet/entry", result.stdout, re.MULTILINE), result.stdout
    files = json.loads((folder / "coverage.json").read_text())["files"]
    assert files["timesheet/entry.py"]["summary"]["percent_covered"] > 90
    if spectrum:
        assert names(ranked(folder, "--ranker", "spectrum"))[0] == "from_days"


ASYNC_TESTS = """
import asyncio, pytest
from timesheet import Sheet

@pytest.mark.asyncio
@pytest.mark.parametrize(("text", "minutes"), [("45m", 45), ("8h 2h", 600), ("1d 2h", 600)])
async def test_add_later(text, minutes):
    await asyncio.sleep(0)
    assert Sheet().add("review", text) == minutes
"""


@pytest.mark.slow
def test_it_works_with_the_plugin_for_asyncio(tmp_path):
    """That plugin is installed beside, since it wants a setting of its own in every project that has it."""
    beside = tmp_path / "beside"
    install = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(beside),
        "pytest-asyncio",
    ]
    if subprocess.run(install, check=False).returncode:
        pytest.skip("pytest-asyncio cannot be installed here")
    ini = "asyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    folder = a_project(tmp_path / "project", tests=ASYNC_TESTS, ini=ini)
    options = ("-p", "pytest_asyncio.plugin", "--xlocal", "--xlocal-spectrum", "tests")
    result = run_pytest(folder, *options, PYTHONPATH=str(beside))
    assert "1 failed, 2 passed" in result.stdout, result.stdout + result.stderr
    assert re.search(r"^ [1-5]\. from_days  timesheet/entry", result.stdout, re.MULTILINE), result.stdout


@pytest.mark.slow
def test_a_held_profile_hook_is_told_and_left_alone(tmp_path):
    """On Python 3.12 and later the hooks are apart, so there is nothing to hold."""
    held = """
    import sys

    def held(frame, event, argument):
        pass

    def pytest_runtest_setup(item):
        sys.setprofile(held)

    def pytest_runtest_teardown(item):
        assert sys.getprofile() is held
        sys.setprofile(None)
    """
    folder = a_project(tmp_path)
    (folder / "conftest.py").write_text(textwrap.dedent(held))
    result = run_pytest(folder, "--xlocal", "tests")
    assert "1 failed, 3 passed" in result.stdout
    if sys.version_info < (3, 12):
        assert "relatives-unseen: " in result.stdout


# --- real projects --------------------------------------------------------------------------------------------------


class Seeded(NamedTuple):
    """A bug put into the sources of a release, which its own tests find; `place` is how high the function must stand."""

    release: str
    file: str
    right: str
    wrong: str
    function: str
    place: int


STEP = "real_index += d_stop - d_start"
SEEDED = [
    Seeded("inflection==0.5.1", "inflection/__init__.py", "in (11, 12, 13)", "in (11, 12)", "ordinal", 1),
    Seeded("boltons==24.0.0", "boltons/setutils.py", STEP, f"{STEP} - 1", "IndexedSet._get_real_index", 5),
]


@pytest.mark.slow
@pytest.mark.parametrize("seeded", SEEDED, ids=lambda seeded: seeded.release)
def test_it_finds_a_seeded_bug_with_the_suite_of_a_release(tmp_path, seeded):
    release, file, right, wrong, function, place = seeded
    download = ["download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(tmp_path), release]
    if subprocess.run([sys.executable, "-m", "pip", *download], capture_output=True, check=False).returncode:
        pytest.skip(f"the sources of {release} are not to be had here")
    shutil.unpack_archive(next(tmp_path.glob("*.tar.gz")), tmp_path)
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    (folder / "tests" / "conftest.py").unlink(missing_ok=True)  # it has hooks that newer pytests refuse
    source = (folder / file).read_text("utf-8")
    assert source.count(right) == 1
    (folder / file).write_text(source.replace(right, wrong), "utf-8")
    result = run_pytest(folder, "--xlocal", "--xlocal-max", "1", "--xlocal-top", "5", "-q", "--tb=no")
    assert result.returncode == 1, result.stderr
    assert function in names(ranked(folder))[:place], result.stdout[-3000:]


# --- the choices ----------------------------------------------------------------------------------------------------


def test_options_that_choose_report_or_distribute_are_left_out():
    words = ["-vvx", "-n", "4", "--dist", "load", "-k", "a or b", "--cov", "src", "--cov-report=xml", "tests", "-rA"]
    words += ["--lf", "tests/test_b.py::test_c", "-p", "plugin", "--ds=settings", "-W", "error", "--strict-markers"]
    words += ["--xlocal", "--xlocal-top", "3", "--junitxml=out.xml", "-s", "--tb", "short", "-mslow", "-n4"]
    kept = kept_options(words, positional=["tests", "tests/test_b.py::test_c"])
    assert kept == ["-p", "plugin", "--ds=settings", "-W", "error", "--strict-markers", "-s"]


@given(st.lists(st.sampled_from(["-x", "-k", "tests", "-p", "other", "--lf", "-n", "2"])))
def test_no_positional_word_and_no_choice_is_ever_kept(words):
    kept = kept_options(words, positional=[word for word in words if word == "tests"])
    assert {"tests", "-x", "-k", "--lf", "-n"}.isdisjoint(kept)


def test_relatives_are_sorted_by_kinship():
    others = [
        "tests/test_b.py::test_x",
        "tests/test_a.py::test_x",
        "tests/test_a.py::TestK::test_y",
        "tests/test_a.py::TestK::test_x[2]",
        "other/test_a.py::test_x",
    ]
    assert by_name("tests/test_a.py::TestK::test_x[1]", others) == [others[n] for n in (3, 2, 1, 0, 4)]


def places(*numbers: int) -> frozenset[tuple[str, int, str]]:
    return frozenset(("m.py", number, f"f{number}") for number in numbers)


def test_the_nearest_relative_has_the_largest_share_in_common():
    failing = TestRun("failed", places(1, 2, 3), ())
    passing = {
        "far": TestRun("passed", places(1, 8, 9), ()),
        "unseen": TestRun("passed", None, ()),
        "near": TestRun("passed", places(1, 2, 3, 4), ()),
        "outside": TestRun("passed", places(1, 2, 99), ()),
    }
    found = nearest(failing, passing, lambda place: place[1] < 50)
    assert [relative.nodeid for relative in found] == ["near", "outside", "far", "unseen"]
    assert (found[0].common, found[0].either) == (3, 4)
    assert str(found[-1]) == "unseen (a relative by name)"


def test_one_reference_is_enough_where_little_sets_the_test_apart():
    def relative(common: int, either: int, missing: int) -> Relative:
        return Relative(f"{common}", common, either, missing)

    near, far, apart = relative(9, 11, 1), relative(3, 14, 7), relative(0, 20, 10)
    assert references([near, far, apart], most=2) == [near]
    same = relative(10, 10, 0)
    assert references([same, near, apart], most=3) == [same, near]
    assert references([same, far], most=2) == [same]  # less than half as near
    assert references([far, relative(2, 14, 8)], most=2) == [far, relative(2, 14, 8)]
    assert references([far, far, far], most=2) == [far, far]
    assert references([apart], most=2) == []
    unseen = Relative("unseen", None, None)
    assert references([unseen, unseen, unseen], most=2) == [unseen, unseen]


def test_what_belongs_to_the_tests_is_told_by_name_and_folder():
    check = test_code(TestQuestion("src/pkg/tests/unit/test_a.py::test_x"))
    assert [check(path) for path in ("src/pkg/tests/tools.py", "conftest.py", "a/test_b.py")] == [True] * 3
    assert [check(path) for path in ("src/pkg/core.py", "src/pkg/testing/fakes.py", "contest.py")] == [False] * 3
    asked = test_code(TestQuestion("tests/test_a.py::test_x", tests=True))
    assert not asked("tests/test_a.py")


def test_sessions_of_tests_have_short_names_of_their_own():
    assert named_after("tests/test_a.py::test_b[13-x]").startswith("test-tests-test-a-py-test-b-13-x-")
    nodeids = ["test_a.py::test_b[13]", "test_a.py::test_b[-13]", "test_a.py::test_b[" + "x" * 300 + "]"]
    assert len({named_after(nodeid) for nodeid in nodeids}) == 3
    assert all(len(named_after(nodeid)) < 70 for nodeid in nodeids)


# --- the spectrum ---------------------------------------------------------------------------------------------------

F, G, H = (Function("m.py", name) for name in "fgh")


def test_ochiai_is_the_published_coefficient():
    found = ochiai([{F, G}, {F}], [{G}, {G, H}, set()])
    assert found[F].weight == 1.0
    assert found[G].weight == pytest.approx(1 / (2 * 3) ** 0.5, abs=1e-4)
    assert H not in found
    assert found[G].detail == "runs in 1 of 2 failing and 2 of 3 passing tests"


executions = st.lists(st.sets(st.sampled_from([F, G, H])), max_size=6)


@given(executions, executions)
def test_ochiai_lies_between_nothing_and_one(failing, passing):
    for function, evidence in ochiai(failing, passing).items():
        assert 0 < evidence.weight <= 1
        alone = all(function in executed for executed in failing) and not any(function in one for one in passing)
        assert (evidence.weight == 1) == alone


def test_the_spectrum_ranker_needs_a_spectrum():
    suspects = [Suspect(F, 1, 2, evidence=tuple(ochiai([{F}], []).values())), Suspect(G, 3, 4)]
    assert spectrum_scores(suspects, None).tolist() == [1.0, 0.0]
    with pytest.raises(UsageError, match="pytest --xlocal-spectrum"):
        spectrum_scores(suspects[1:], None)
    assert suspects[0].evidence[0].kind == KIND


# --- what runs in the target ----------------------------------------------------------------------------------------


def test_both_sides_mean_the_same_file():
    assert (plugin.VARIABLE, plugin.VERSION) == (executed.VARIABLE, executed.VERSION)
    assert Path(plugin.__file__) == executed.PLUGIN


def helper() -> int:
    return 1


def test_the_recorder_sees_what_runs_between_and_frees_the_hook():
    recorder = plugin.Recorder()
    recorder.begin()
    helper()
    seen = recorder.end()
    recorder.close()
    assert seen is not None
    assert helper.__code__ in seen
    assert sys.getprofile() is None


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring has room for several tools")
def test_the_recorder_leaves_a_held_hook_alone():
    def other(_frame, _event, _argument):
        pass

    recorder = plugin.Recorder()
    sys.setprofile(other)
    try:
        recorder.begin()
        assert recorder.end() is None
        assert sys.getprofile() is other
        assert "other" in recorder.held_by
    finally:
        sys.setprofile(None)


def test_a_run_tells_what_each_test_executed_and_where_it_raised(tmp_path):
    folder = a_project(tmp_path)
    seen = run_tests(["tests"], python=sys.executable, cwd=folder, env={}, timeout=60)
    assert len(seen.collected) == 4
    failing = seen.tests["tests/test_sheet.py::test_add_returns_the_minutes[1d 2h-600]"]
    assert failing.outcome == "failed"
    assert failing.raised[0].type == "AssertionError"
    assert {name for _, _, name in failing.places or ()} >= {"add", "parse_entry", "from_days"}
    listed = seen.tests["tests/test_sheet.py::test_each_task_is_listed_once"]
    assert listed.outcome == "passed"
    assert "from_days" not in {name for _, _, name in listed.places or ()}


def test_parts_of_a_run_are_merged_and_a_held_hook_is_not_forgotten():
    parts = [Executed({"a": TestRun("passed", None, ())}, ("a",)), Executed({}, ("a", "b"), "/r", "other")]
    whole = Executed.merged(parts)
    assert (set(whole.tests), whole.collected, whole.rootdir, whole.held_by) == ({"a"}, ("a", "b"), "/r", "other")


def test_pytest_that_does_not_start_is_one_clear_line(tmp_path):
    with pytest.raises(ScriptError, match=r"did not run the tests \(exit status 4\)"):
        run_tests(["missing.py"], python=sys.executable, cwd=tmp_path, env={"PYTEST_ADDOPTS": "--nonsense"}, timeout=60)
