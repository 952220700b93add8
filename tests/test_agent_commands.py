"""`xlocal reproduce`, `fix` and `trajectory` as a user meets them: what they print, refuse and leave behind."""

from __future__ import annotations

import contextlib
import http.server
import json
import shlex
import subprocess
import threading

import pytest

pytest.importorskip("pydantic_ai", reason="needs the extra agents")

from agents import (
    BUGGY,
    GOOD,
    ISSUE,
    REFERENCE,
    REPRODUCE,
    call,
    completion,
    git,
    make_repository,
    model_server,
    needs_sandbox,
    write_script,
)
from click.testing import CliRunner
from xlocal.swe_pipeline.github import fetch_issue
from xlocal.tracer.errors import UsageError

from xlocal.cli import cli


def run_cli(*arguments, **more):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], **more)


@pytest.fixture
def project(tmp_path, monkeypatch):
    repository = make_repository(tmp_path / "shop")
    (tmp_path / "issue.md").write_text(ISSUE)
    monkeypatch.chdir(repository)
    monkeypatch.delenv("XLOCAL_MODEL", raising=False)
    return tmp_path


@needs_sandbox
def test_fix_prints_a_patch_that_git_applies_and_leaves_the_repository_alone(project, monkeypatch):
    model = write_script(project / "model.json", GOOD)
    done = run_cli("fix", project / "issue.md", "--model", model, "--run", project / "run")
    assert done.exit_code == 0, done.stderr
    assert git(project / "shop", "status", "--short") == ""
    subprocess.run(["git", "apply", "-"], input=done.stdout, text=True, check=True)
    assert "lstrip" in (project / "shop" / "shop" / "core.py").read_text()
    assert "after:  reproduction 1/1, reference 1/1, validation 3/3, regression 1/1" in done.stderr
    assert "cost: $0.0000" in done.stderr
    assert "left" in done.stderr
    shown = run_cli("trajectory", "show", project / "run")
    assert "-> submit_patch" in shown.stdout
    assert shown.stdout.startswith("issue=shop-")
    only = run_cli("trajectory", "show", project / "run", "--phase", "judge", "--json").stdout.splitlines()
    assert [json.loads(line)["phase"] for line in only] == ["judge"]
    monkeypatch.chdir(project)
    again = run_cli("trajectory", "replay", "run")  # a relative folder is one of ours, not of the work tree
    assert (again.exit_code, again.stdout) == (0, done.stdout), again.stderr


@needs_sandbox
@pytest.mark.slow
def test_reproduce_goes_on_to_a_fix(project):
    model = write_script(project / "model.json", GOOD)
    done = run_cli("reproduce", "-", "--model", model, "--run", project / "run", input=ISSUE)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == str(project / "run" / "scripts" / "buggy.py")
    assert "shop/core.py" in lines[2]
    more = run_cli("fix", project / "issue.md", "--model", model, "--run", project / "run", "--resume", "--json")
    assert more.exit_code == 0, more.stderr
    assert json.loads(more.stdout)["green"] is True


@needs_sandbox
def test_fix_with_a_pair_and_in_a_default_folder(project):
    model = write_script(project / "model.json", {**GOOD, "reproduce": []})
    for name, text in (("buggy.py", REPRODUCE[1]["args"]["text"]), ("ref.py", REPRODUCE[2]["args"]["text"])):
        (project / name).write_text(text)
    pair = ("--pair", project / "buggy.py", project / "ref.py")
    done = run_cli("fix", project / "issue.md", *pair, "--model", model, "--variant", "localizer")
    assert done.exit_code == 0, done.stderr
    (run,) = (project / "shop" / ".xlocal" / "runs").iterdir()
    assert (run / "patch.diff").read_text() == done.stdout
    assert git(project / "shop", "status", "--short") == ""


@needs_sandbox
@pytest.mark.slow
def test_no_patch_exits_with_1(project):
    model = write_script(project / "model.json", {**GOOD, "repair": [{"text": "no", "repeat": True}]})
    done = run_cli("fix", project / "issue.md", "--model", model, "--run", project / "run")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "ended: gave up" in done.stderr


@needs_sandbox
def test_a_patch_that_no_test_proves_exits_with_1_and_says_so(project):
    """The model writes no scripts: the existing tests pass before and after, and show nothing."""
    nothing = [{"text": "I cannot show it.", "repeat": True}]
    script = {**GOOD, "reproduce": nothing, "localize": [call("submit_functions", functions=["shop/core.py::parse"])]}
    model = write_script(project / "model.json", script)
    done = run_cli("fix", project / "issue.md", "--model", model, "--run", project / "run")
    assert done.exit_code == 1, done.stderr
    assert "lstrip" in done.stdout
    assert "before: regression 1/1\nafter:  regression 1/1" in done.stderr
    assert "ended: unproven: no test shows the bug" in done.stderr
    assert "none failed without it" in done.stderr


def refuse(project, done, code, message):
    """One line, the exit code, and nothing left behind."""
    assert done.exit_code == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("xlocal: ")
    assert message in line
    assert done.stdout == ""
    assert not (project / "shop" / ".xlocal").exists()


GIVEN = ("--model", "scripted:MODEL")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ISSUE",), "name a model with --model"),
        (("ISSUE", "--model", "gpt"), "is not of the form"),
        (("ISSUE", "--model", "http://127.0.0.1:9/v1#m", "--budget", "$2"), "its price is not known"),
        (("ISSUE", "--model", "openai:no-such-model", "--budget", "$2"), "its price is not known"),
        (("ISSUE", "--model", "scripted:nowhere.json"), "nowhere.json: cannot be read: No such file"),
        (("ISSUE", "--model", "scripted:ISSUE"), "issue.md: is not JSON"),
        (("ISSUE", *GIVEN, "--budget", "-1"), "is not more than 0"),
        (("ISSUE", *GIVEN, "--budget", "much"), "is not an amount"),
        (("ISSUE", *GIVEN, "--prices", "nowhere.toml"), "does not exist"),
        (("ISSUE", *GIVEN, "--resume"), "--resume needs the folder"),
        (("ISSUE", *GIVEN, "--step", "3"), "--step needs --resume"),
        (("ISSUE", *GIVEN, "--resume", "--run", "nowhere"), "nowhere: holds no run of xlocal fix or reproduce"),
        (("ISSUE", *GIVEN, "--run", "HOME"), "holds something else; choose a new folder"),
        (("ISSUE", *GIVEN, "--repo", "/no/such"), "does not exist"),
        (("ISSUE", *GIVEN, "--repo", "HOME"), "is in no git work tree"),
        (("ISSUE", *GIVEN, "--repo", "EMPTY"), "has no commit yet"),
        (("ISSUE", *GIVEN, "--python", "/no/python"), "no such interpreter"),
        (("ISSUE", *GIVEN, "--pair", "nowhere.py", "ISSUE"), "does not exist"),
        (("ISSUE", *GIVEN, "--pair", "BINARY", "ISSUE"), "cannot be read as UTF-8 text"),
        (("ISSUE", *GIVEN, "--ranker", "paper"), "--ranker paper needs an encoder"),
        (("ISSUE", *GIVEN, "--ranker", "embedding", "--encoder", "unknown/name"), "unknown/name: is no folder"),
        (("ISSUE", *GIVEN, "--ranker", "spectrum"), "'spectrum' is not one of"),
        (GIVEN, "name the ISSUE"),
        (("nowhere.md", *GIVEN), "ISSUE nowhere.md: cannot be read: No such file"),
        (("BINARY", *GIVEN), "binary.py: is not UTF-8 text"),
        (("-", *GIVEN), "ISSUE standard input: holds no text"),
        (("https://github.com/pallets/flask", *GIVEN), "is not the address of a GitHub issue"),
    ],
)
def test_wrong_usage_is_told_in_one_line_and_leaves_nothing_behind(project, arguments, message):
    write_script(project / "model.json", GOOD)
    (project / "binary.py").write_bytes(b"\xff\xfe\xff")
    (project / "empty").mkdir()
    git(project / "empty", "init", "-q")
    places = {"ISSUE": "issue.md", "MODEL": "model.json", "HOME": "", "EMPTY": "empty", "BINARY": "binary.py"}
    words = []
    for word in arguments:
        kind, _, rest = word.rpartition(":")
        put = project / places[rest] if rest in places else None
        words.append(word if put is None else f"{kind}:{put}" if kind else put)
    refuse(project, run_cli("fix", *words, input="  \n"), 2, message)


def test_a_missing_key_is_told_before_anything_is_copied(project, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    done = run_cli("fix", project / "issue.md", "--model", "anthropic:claude-sonnet-4-5")
    refuse(project, done, 4, "set the environment variable ANTHROPIC_API_KEY")


def test_without_a_sandbox_nothing_is_copied_unless_it_is_allowed(project, monkeypatch):
    monkeypatch.setattr("xlocal.swe_pipeline.sandbox.sandbox_problem", lambda: "bubblewrap is not installed")
    model = write_script(project / "model.json", GOOD)
    command = ("fix", project / "issue.md", "--model", model)
    refuse(project, run_cli(*command), 2, "must run in a sandbox, and bubblewrap is not installed")
    done = run_cli(*command, "--unsafe-local")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith("warning: --unsafe-local")
    assert "lstrip" in done.stdout


@needs_sandbox
@pytest.mark.parametrize(
    ("buggy", "reference", "message"),
    [
        (REFERENCE, BUGGY, "the buggy script exits with 0 before any repair"),
        (BUGGY, BUGGY, "the reference script fails before any repair, but must exit with 0: AssertionError: 2"),
    ],
)
def test_a_pair_that_cannot_judge_a_repair_is_refused(project, buggy, reference, message):
    model = write_script(project / "model.json", GOOD)
    (project / "a.py").write_text(buggy)
    (project / "b.py").write_text(reference)
    pair = ("--pair", project / "a.py", project / "b.py")
    done = run_cli("fix", project / "issue.md", *pair, "--model", model, "--run", project / "run")
    assert done.exit_code == 2
    assert f"xlocal: --pair: {message}" in done.stderr


@needs_sandbox
def test_a_server_that_is_not_there_costs_nothing_and_is_told_at_once(project):
    (project / "prices.toml").write_text('["http://127.0.0.1:9/v1#m"]\ninput = 3\noutput = 15\n')
    model = ("--model", "http://127.0.0.1:9/v1#m", "--prices", project / "prices.toml", "--time", "4")
    done = run_cli("fix", project / "issue.md", *model, "--run", project / "run")
    assert done.exit_code == 1
    assert "no answer from the model (Connection error: " in done.stderr
    assert "ended: limit: the time limit of 4 s is reached (no answer from the model: Connection error" in done.stderr
    assert "cost: $0.0000, 0 tokens in" in done.stderr
    assert f"`xlocal fix --resume --run {project / 'run'}` goes on" in done.stderr


@needs_sandbox
@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (
            401,
            {"error": {"message": "bad key"}},
            "answers 401 (Unauthorized): bad key; check the key in XLOCAL_API_KEY",
        ),
        (404, {"detail": "no m"}, "answers 404 (Not Found): no m; check the name of the model and the URL"),
        (
            429,
            {"error": {"message": "slow down"}},
            "no answer in 5 attempts: the server answers 429 (Too Many Requests)",
        ),
        (200, "<!DOCTYPE html><html><body>Welcome</body></html>", "this URL does not speak the API"),
        (200, "it works", "this URL does not speak the API"),
    ],
)
def test_a_provider_that_fails_is_told_in_one_line_with_the_cost_and_how_to_go_on(
    project, monkeypatch, status, body, said
):
    async def sleep(_seconds):
        return None

    monkeypatch.setattr("xlocal.swe_pipeline.conversation.asyncio.sleep", sleep)
    with model_server(lambda number, request: (status, body)) as (url, seen):
        (project / "prices.toml").write_text(f'["{url}#m"]\ninput = 3\noutput = 15\n')
        model = ("--model", f"{url}#m", "--prices", project / "prices.toml")
        done = run_cli("fix", project / "issue.md", *model, "--run", project / "run")
        assert len(seen) == (5 if status == 429 else 1)
    assert (done.exit_code, done.stdout) == (4, "")
    cost, hint, error = done.stderr.splitlines()[-3:]
    assert cost.startswith("cost: $0.0000, 0 tokens in")
    assert hint == f"next: `xlocal fix --resume --run {project / 'run'}` goes on when the cause is mended"
    assert error.startswith("xlocal: --model http://")
    assert said in error
    assert "{" not in error


@needs_sandbox
def test_an_interrupt_tells_how_to_go_on(project, monkeypatch):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("xlocal.swe_pipeline.solve.solve", interrupted)
    model = write_script(project / "model.json", GOOD)
    done = run_cli("fix", project / "issue.md", "--model", model, "--run", project / "run")
    assert done.exit_code == 130
    assert f"`xlocal fix --resume --run {project / 'run'}` goes on from there" in done.stderr.splitlines()[-1]


@needs_sandbox
def test_estimated_costs_are_marked(project):
    turns = [*GOOD["reproduce"], *GOOD["judge"]]
    with model_server(lambda n, request: (200, completion(turns[n - 1], usage=None))) as (url, _):
        (project / "prices.toml").write_text(f'["{url}#m"]\ninput = 3\noutput = 15\n')
        model = ("--model", f"{url}#m", "--prices", project / "prices.toml")
        done = run_cli("reproduce", project / "issue.md", *model, "--run", project / "run")
    assert done.exit_code == 0, done.stderr
    assert "(estimated: 5 calls told no counts, the most they can have used is counted), " in done.stderr


@needs_sandbox
@pytest.mark.slow
def test_a_run_is_resumed_by_its_folder_alone(project, monkeypatch):
    model = write_script(project / "model.json", GOOD)
    assert run_cli("reproduce", project / "issue.md", "--model", model, "--run", project / "run").exit_code == 0
    standing = run_cli("trajectory", "show", project / "run")
    assert "goes on to a repair" in standing.stderr
    monkeypatch.chdir(project)
    done = run_cli("fix", "--resume", "--run", "run", "--model", model)
    assert done.exit_code == 0, done.stderr
    assert "lstrip" in done.stdout
    shown = run_cli("trajectory", "show", "run")
    assert "passes all tests; the patch is in run/patch.diff" in shown.stderr
    (project / "other.md").write_text("Another issue")
    other = run_cli("fix", "other.md", "--resume", "--run", "run", "--model", model)
    assert (other.exit_code, "is a run of another issue" in other.stderr) == (2, True)
    make_repository(project / "elsewhere")
    away = run_cli("fix", "--repo", "elsewhere", "--resume", "--run", "run", "--model", model)
    assert (away.exit_code, "leave --repo out" in away.stderr) == (2, True)


@needs_sandbox
def test_the_printed_command_goes_on_with_the_options_of_the_run(project, monkeypatch):
    """What the run was made with need not be said again, and what it was not made with is refused by its option."""
    turns = [{**turn, "usage": {"input_tokens": 10_000, "output_tokens": 500}} for turn in GOOD["repair"]]
    model = write_script(project / "model.json", {**GOOD, "repair": turns})
    (project / "prices.toml").write_text("[scripted]\ninput = 3\noutput = 15\n")
    for name, text in (("a.py", BUGGY), ("b.py", REFERENCE)):
        (project / name).write_text(text)
    made = ["--pair", "../a.py", "../b.py", "--variant", "localizer", "--ranker", "lexical", "--top", "7"]
    made += ["--candidates", "2", "--prices", "../prices.toml", "--budget", "0.04", "--run", project / "run"]
    first = run_cli("fix", project / "issue.md", "--model", model, *made)
    assert (first.exit_code, "goes on, with a higher --budget" in first.stderr) == (1, True), first.stderr
    command = shlex.split(first.stderr.rpartition("next: `xlocal ")[2].partition("`")[0])
    monkeypatch.chdir(project)
    whole = (project / "run" / "trajectory.jsonl").read_bytes()
    for option in (("--variant", "full"), ("--ranker", "fused"), ("--top", "9"), ("--candidates", "3")):
        refused = run_cli(*command, *option, "--step", "2")
        (line,) = refused.stderr.splitlines()[-1:]
        assert (refused.exit_code, line.startswith(f"xlocal: {' '.join(option)}: ")) == (2, True), line
    other = run_cli(*command, "--pair", "b.py", "a.py", "--step", "2")
    assert (other.exit_code, "--pair: " in other.stderr, "{" in other.stderr) == (2, True, False)
    assert (project / "run" / "trajectory.jsonl").read_bytes() == whole
    done = run_cli(*command, "--budget", "1")
    assert done.exit_code == 0, done.stderr
    assert "cost: $0.1125" in done.stderr


@needs_sandbox
def test_a_record_is_shown_so_that_people_can_read_it(project):
    model = write_script(project / "model.json", {**GOOD, "repair": [*GOOD["repair"][:1], {"text": "I give up."}]})
    done = run_cli("fix", project / "issue.md", "--model", model, "--run", project / "run")
    assert done.exit_code == 1
    assert "next: `xlocal trajectory show" in done.stderr
    lines = run_cli("trajectory", "show", project / "run").stdout.splitlines()
    assert any(line.endswith("reproduce: tool: create") for line in lines)
    place = next(n for n, line in enumerate(lines) if line.endswith("run: script buggy.py, seed 0"))
    assert lines[place + 1].strip().startswith("exit status 1 after")
    assert "       1 of 1 tests pass" in lines
    assert "       shop/core.py::total: was given items=['-1', '2'], but ['1', '2'] in the reference run" in lines
    assert not any('"digest"' in line for line in lines)
    talk = next(number for number, line in enumerate(lines) if line.strip() == "I give up.")
    assert lines[talk + 1].strip() == "(no tool called; the model is told so)"
    assert lines[-2].endswith(" s  end")
    only = run_cli("trajectory", "show", project / "run", "--phase", "nonsense")
    assert (only.exit_code, only.stdout) == (2, "")
    assert "it has reproduce, judge" in only.stderr


@pytest.mark.parametrize(
    ("place", "code", "message"),
    [
        ("", 2, "holds no run (trajectory.jsonl is not in it)"),
        ("issue.md", 4, "issue.md: is not a trajectory of xlocal"),
    ],
)
def test_what_is_no_record_is_told(project, place, code, message):
    done = run_cli("trajectory", "show", project / place)
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in done.stderr


@contextlib.contextmanager
def github(status, document):
    """A server in the place of GitHub's."""
    paths = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            """Quiet."""

        def do_GET(self):
            paths.append(self.path)
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", paths
        finally:
            server.shutdown()
            thread.join()


def test_an_issue_is_read_by_its_address():
    with github(200, {"title": "It breaks", "body": "When I do this\n"}) as (api, paths):
        text = fetch_issue("https://github.com/pallets/click/issues/2682#issuecomment-1", api=api)
    assert text == "It breaks\n\nWhen I do this\n"
    assert paths == ["/repos/pallets/click/issues/2682"]


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("https://github.com/pallets/click", 200, "is not the address of a GitHub issue"),
        ("https://github.com/a/b/issues/1", 404, "says 404"),
        ("https://github.com/a/b/issues/1", 403, "without GITHUB_TOKEN"),
    ],
)
def test_an_issue_that_cannot_be_had_is_told(address, status, message):
    with github(status, {"message": "no"}) as (api, _), pytest.raises(UsageError, match=message):
        fetch_issue(address, api=api)
