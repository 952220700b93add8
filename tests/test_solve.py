"""Whole runs: limits in every phase, models that misbehave, and a batch that is killed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from decimal import Decimal

import pytest

pytest.importorskip("pydantic_ai", reason="needs the extra agents")

from agents import (
    CORE,
    GOOD,
    ISSUE,
    REPRODUCE,
    RIGHT,
    SUBMIT,
    TEST,
    Shop,
    call,
    copy_of,
    git,
    make_repository,
    needs_sandbox,
    write_script,
)
from batches import Inline
from click.testing import CliRunner
from containers import FakeEngine
from rich.console import Console
from xlocal.swe_pipeline.batch import Board
from xlocal.swe_pipeline.engines import Key
from xlocal.swe_pipeline.existing import ExistingTests
from xlocal.swe_pipeline.limits import Limits
from xlocal.swe_pipeline.prices import FilePrice
from xlocal.swe_pipeline.solving import doing
from xlocal.swe_pipeline.trajectory import FILE, read_trajectory

from xlocal.cli import cli
from xlocal.swe_progress import shown, table

LOCALIZED = {"variant": "localizer"}
PRICES = {"scripted": FilePrice(Decimal(3), Decimal(15), Decimal(3), Decimal(3))}
USAGE = {"usage": {"input_tokens": 10_000, "output_tokens": 500}}
PER_CALL = Decimal("0.0375")
SETUP = "from setuptools import setup\n\nsetup(name='shop', version='1', packages=['shop'])\n"


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path)


def priced(shop, **changed):
    """The good script, each answer of which costs the same."""
    script = {**GOOD, **changed}
    return write_script(shop.folder / "model.json", {n: [{**t, **USAGE} for t in turns] for n, turns in script.items()})


@needs_sandbox
@pytest.mark.parametrize("calls", [5, *(pytest.param(calls, marks=pytest.mark.slow) for calls in (1, 4, 7, 10))])
def test_a_limit_in_dollars_holds_in_every_phase_and_keeps_what_there_is(shop, calls):
    """Reproduce takes 4 calls, judge 1, context 1, augment 3, repair 3: the limit falls into each."""
    limit = PER_CALL * calls + Decimal("0.005")
    solution = shop.solve(priced(shop), prices=PRICES, limits=Limits(dollars=limit))
    assert solution.ended.startswith("limit: the limit of $")
    assert solution.spent.dollars <= limit
    assert solution.spent.calls <= calls
    assert json.loads((shop.run / "result.json").read_text())["spent"]["dollars"] == str(solution.spent.dollars)
    last = read_trajectory(shop.run / FILE).steps[-1]
    assert (last.kind, last.result) == ("end", solution.ended)
    go_on = shop.solve(priced(shop), prices=PRICES, limits=Limits(dollars=Decimal(2)), resume=True)
    assert go_on.green
    assert go_on.spent.dollars == go_on.spent.calls * PER_CALL


@needs_sandbox
def test_an_endless_loop_ends_at_the_limit_of_actions(shop):
    loop = [{**call("view", path="shop/core.py"), "repeat": True}]
    limits = Limits(reproduce_actions=7, repair_actions=9)
    chosen = [call("submit_functions", functions=["shop/core.py::parse"])]
    solution = shop.solve(shop.model(reproduce=loop, repair=loop, localize=chosen), limits=limits)
    assert "the limit of 7 actions" in solution.reproduction.why_not
    assert solution.ended == "limit: repair-1: the limit of 9 actions is reached"
    views = [step for step in read_trajectory(shop.run / FILE).steps if step.kind == "tool"]
    assert len(views) == 16


@needs_sandbox
def test_an_edit_that_was_never_handed_in_is_still_given(shop):
    loop = {**call("view", path="shop/core.py"), "repeat": True}
    solution = shop.solve(shop.model(repair=[RIGHT, loop]), limits=Limits(repair_actions=5), **LOCALIZED)
    assert solution.ended.startswith("limit")
    assert "lstrip" in solution.diff
    assert solution.patch.results.summary() == "reproduction 1/1, reference 1/1"


@needs_sandbox
def test_malformed_calls_are_told_and_counted(shop):
    noise = [
        call("no_such_tool", x=1),
        call("view"),
        call("view", path=["a"]),
        {"tool": "edit", "args": "{not json"},
        {"calls": [call("view", path="shop/core.py"), call("view", path="nothing.py")]},
        {"text": "Let me think."},
        call("submit_patch"),
    ]
    solution = shop.solve(shop.model(repair=[*noise, RIGHT, SUBMIT]), **LOCALIZED)
    assert solution.green
    # Four that do not parse, two views, a word, a submission that does not parse, an edit, a submission.
    repairing = 4 + 2 + 1 + 1 + 2
    assert solution.spent.actions == len(REPRODUCE) + 1 + repairing
    back = [step for step in read_trajectory(shop.run / FILE).steps if step.kind == "sent-back"]
    assert [step.request["tool"] for step in back] == ["no_such_tool", "view", "view", "edit", None, "submit_patch"]
    assert [step.request["turn"] for step in back] == [1, 2, 3, 4, 6, 7]
    assert "no_such_tool" in back[0].result
    assert "path" in back[1].result
    shown = CliRunner().invoke(cli, ["trajectory", "show", str(shop.run), "--phase", "repair"]).stdout
    assert "repair: sent-back: repair-1, turn 1, tool no_such_tool" in shown


@needs_sandbox
def test_a_refusal_ends_the_repair_and_is_told(shop):
    solution = shop.solve(shop.model(repair=[{"text": "I cannot help with that.", "repeat": True}]), **LOCALIZED)
    said = 'gave up: repair: the model gave no usable answer (it said: "I cannot help with that.")'
    assert (solution.ended, solution.diff) == (said, "")
    assert "retries" not in (shop.run / FILE).read_text()


@needs_sandbox
def test_calls_that_never_fit_end_the_repair_and_are_told(shop):
    solution = shop.solve(shop.model(repair=[{**call("view", way="up"), "repeat": True}]), **LOCALIZED)
    assert solution.ended.startswith(
        "gave up: repair: the model gave no usable answer (its last call does not fit: view"
    )


@needs_sandbox
def test_progress_counts_steps_as_the_trajectory_does(shop):
    seen = []
    noise = [call("no_such_tool", x=1), RIGHT, SUBMIT]
    shop.solve(shop.model(repair=noise), progress=seen.append, **LOCALIZED)
    steps = {step.number: step for step in read_trajectory(shop.run / FILE).steps}
    for progress in seen:
        step = steps[progress.step]
        kinds = ("model",) if progress.doing.startswith("asking") else ("tool", "run", "locate")
        assert step.kind in kinds, (progress, step)
        assert step.phase == progress.phase
    assert len(seen) > 10


@needs_sandbox
def test_time_is_a_limit(shop):
    slow = call("bash", command="sleep 2")
    solution = shop.solve(shop.model(reproduce=[slow] * 20), limits=Limits(seconds=3.0), **LOCALIZED)
    assert solution.ended == "limit: the time limit of 3 s is reached"
    assert solution.spent.seconds < 12


@needs_sandbox
def test_time_is_held_against_tools_and_keeps_the_patch(shop):
    """A command that asks for ten minutes gets the seconds that are left."""
    slow = call("bash", command="sleep 300", timeout=600)
    limits = Limits(seconds=8.0)
    solution = shop.solve(shop.model(repair=[RIGHT, slow, SUBMIT]), variant="vanilla", limits=limits)
    assert solution.ended == "limit: the time limit of 8 s is reached"
    assert "lstrip" in solution.diff
    assert 8 <= solution.spent.seconds < 13
    (told,) = [s.result for s in read_trajectory(shop.run / FILE).steps if s.request.get("tool") == "bash"]
    assert told.startswith("[ended by the time limit after ")


@needs_sandbox
def test_time_is_held_against_existing_tests(shop):
    file = shop.repository / "tests" / "test_core.py"
    file.write_text("import time\n" + TEST + "\n\ndef test_slow():\n    time.sleep(60)\n")
    shop.copy = copy_of(shop.repository, shop.folder / "fresh")
    solution = shop.solve(variant="vanilla", limits=Limits(seconds=6.0), regression=ExistingTests())
    assert solution.ended == "limit: the time limit of 6 s is reached"
    assert solution.spent.seconds < 15


@needs_sandbox
@pytest.mark.slow
def test_a_circle_is_pointed_out(shop):
    view = call("view", path="shop/core.py")
    shop.solve(shop.model(repair=[view, view, view, RIGHT, SUBMIT]), **LOCALIZED)
    # The model is told in its own conversation; the record keeps the plain answer.
    tools = [step for step in read_trajectory(shop.run / FILE).steps if step.kind == "tool" and step.phase == "repair"]
    assert [step.result for step in tools[:3]] == [tools[0].result] * 3


# --- a batch


@needs_sandbox
@pytest.mark.slow
def test_a_killed_batch_goes_on_and_its_account_is_exact(tmp_path):
    """Steps of a batch are killed with its process; what was billed before stays billed, and nothing twice."""
    script = {name: [{**turn, **USAGE} for turn in turns] for name, turns in GOOD.items()}
    model = write_script(tmp_path / "model.json", script)
    (tmp_path / "prices.toml").write_text("[scripted]\ninput = 3\noutput = 15\n")
    file = tmp_path / "issues.jsonl"
    files = {"setup.py": SETUP, "shop/__init__.py": "", "shop/core.py": CORE, "tests/test_core.py": TEST}
    rows = []
    for number in range(2):
        repository = make_repository(tmp_path / f"shop{number}", files)
        row = {"instance_id": f"shop__shop-{number}", "repo": str(repository), "problem_statement": ISSUE}
        row["base_commit"] = git(repository, "rev-parse", "HEAD").strip()
        rows.append({**row, "setup": {"python": "3.11", "requirements": ["pytest"], "until": "2024-06-01"}})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        sys.executable,
        "-m",
        "xlocal",
        "swe",
        "run",
        "--dataset",
        file,
        "--root",
        tmp_path / "root",
        "--cache",
        tmp_path / "cache",
    ]
    command += ["--out", tmp_path / "out", "--model", model, "--prices", tmp_path / "prices.toml", "--budget", "1"]
    command += ["--batch-budget", "1.20", "--variant", "full"]
    command = [str(word) for word in command]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    record = tmp_path / "out" / "shop__shop-0" / "agent" / FILE
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not (record.exists() and len(record.read_text().splitlines()) > 12):
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert record.exists()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["instances"] == 2
    assert report["green"] == 2
    each = [json.loads((tmp_path / "out" / row["instance_id"] / "agent" / "result.json").read_text()) for row in rows]
    assert [result["spent"]["dollars"] for result in each] == [str(PER_CALL * 12)] * 2
    assert Decimal(report["dollars"]) == PER_CALL * 24
    manifest = json.loads((tmp_path / "out" / "run.json").read_text())
    assert manifest["cost"]["dollars"] == str(PER_CALL * 24)
    predictions = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert ["lstrip" in row["model_patch"] for row in predictions] == [True, True]


@pytest.fixture
def batch(tmp_path, monkeypatch):
    """`xlocal swe run` on three instances whose checkouts are copies of one repository; returns the outcome of a call."""
    repository = make_repository(tmp_path / "shop")
    base = git(repository, "rev-parse", "HEAD").strip()
    rows = [
        {"instance_id": f"shop__shop-{number}", "repo": "shop/shop", "base_commit": base, "problem_statement": ISSUE}
        for number in range(3)
    ]
    (tmp_path / "issues.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "prices.toml").write_text("[scripted]\ninput = 3\noutput = 15\n")

    @contextlib.contextmanager
    def opened(issue, workplace, backend):
        yield copy_of(repository, tmp_path / "copies" / issue.id)

    monkeypatch.setattr("xlocal.swe_pipeline.solving.opened", opened)
    monkeypatch.setattr("xlocal.swe_pipeline.checkout.LocalCheckout.prepare", lambda self: True)
    monkeypatch.setattr("xlocal.swe_pipeline.engines.LocalEngine", Inline)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        words = ["swe", "run", "--dataset", "issues.jsonl", "--out", "out", "--prices", "prices.toml"]
        return CliRunner().invoke(cli, [*words, "--variant", "localizer", *map(str, arguments)])

    return run


@needs_sandbox
def test_instances_ended_by_a_limit_go_on_with_a_higher_one(batch, tmp_path):
    usage = {name: [{**turn, **USAGE} for turn in turns] for name, turns in GOOD.items()}
    model = write_script(tmp_path / "model.json", usage)
    given = ("--model", model, "--instances", "shop__shop-0")
    first = batch(*given, "--batch-budget", "0.08")
    assert first.exit_code == 1, first.stderr
    report = json.loads(first.stdout)
    assert (report["patches"], report["errors"]) == (0, 0)
    assert report["ended"]["shop__shop-0"].startswith("limit: the batch's limit of $0.08")
    same = batch(*given, "--batch-budget", "0.08")
    assert (same.exit_code, "solve: done before" in same.stderr) == (1, True)
    agent = tmp_path / "out" / "shop__shop-0" / "agent"
    shown = CliRunner().invoke(cli, ["trajectory", "show", str(agent)])
    assert shown.stderr.rstrip().endswith("` goes on with it, with a higher --batch-budget")
    command = shlex.split(shown.stderr.rpartition("`xlocal ")[2].partition("`")[0])
    again = CliRunner().invoke(cli, [*command, "--batch-budget", "1"])
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["green"] == 1
    result = json.loads((agent / "result.json").read_text())
    assert result["spent"]["dollars"] == str(PER_CALL * result["spent"]["calls"])
    assert (result["spent"]["calls"], Decimal(json.loads(again.stdout)["dollars"])) == (8, PER_CALL * 8)
    manifest = json.loads((tmp_path / "out" / "run.json").read_text())
    assert manifest["cost"]["dollars"] == str(PER_CALL * 8)
    limits = {"budget": "2", "tokens": "5000000", "seconds": "3600.0", "batch_budget": "1", "batch_tokens": "none"}
    assert limits.items() <= manifest["arguments"].items()


@needs_sandbox
def test_a_batch_shows_what_each_instance_is_doing(batch, tmp_path):
    model = write_script(tmp_path / "model.json", GOOD)
    assert batch("--model", model, "--instances", "shop__shop-0").exit_code == 0
    key = Key("shop__shop-0", "solve")
    line = doing(tmp_path / "out", key)
    last = read_trajectory(tmp_path / "out" / "shop__shop-0" / "agent" / FILE).steps[-2].number
    assert re.fullmatch(rf"repair: step {last}, \d+ tokens, \$\S+ spent, \$1\.\d+ left: regression tests .*", line)
    assert doing(tmp_path / "out", Key("shop__shop-1", "solve")) == ""
    out = io.StringIO()
    said = iter(("one", "two", "two", "two"))
    with shown(Console(file=out, width=200), doing=lambda key: f"repair: [a.py::f]: {next(said)}") as (_, progress):
        for seconds in (1.0, 5.0, 12.0, 30.0):
            progress(Board(("solve",), 1, {"solve": {}}, ((key, seconds),), 0.0, seconds))
    assert [row.split("s  ")[1] for row in out.getvalue().splitlines()] == [
        f"shop__shop-0 repair: [a.py::f]: {now}" for now in ("one", "two")
    ]
    drawn = io.StringIO()
    board = Board(("solve",), 1, {"solve": {}}, ((key, 3.0),), 0.0, 3.0)
    Console(file=drawn, width=200).print(table(board, doing=lambda key: "repair: [a.py::f]: bash"))
    assert "shop__shop-0 solve 0:00:03 repair: [a.py::f]: bash" in drawn.getvalue()


@needs_sandbox
def test_predictions_and_report_tell_of_all_instances_of_the_folder(batch, tmp_path):
    model = write_script(tmp_path / "model.json", GOOD)
    assert batch("--model", model, "--instances", "shop__shop-0,shop__shop-1").exit_code == 0
    fewer = batch("--model", model, "--instances", "shop__shop-1")
    report = json.loads(fewer.stdout)
    assert (report["instances"], report["patches"], report["green"]) == (2, 2, 2)
    rows = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert sorted(row["instance_id"] for row in rows) == ["shop__shop-0", "shop__shop-1"]


@pytest.mark.slow
def test_a_batch_in_containers_goes_all_the_way(tmp_path, monkeypatch):
    """The engine stands in for Docker's: files are edited here, and everything is run over there."""
    pytest.importorskip("docker", reason="containers are an extra: pip install 'xlocal[docker]'")
    repository = make_repository(tmp_path / "shop")
    base = git(repository, "rev-parse", "HEAD").strip()
    testbed = tmp_path / "images" / "testbed"
    git(tmp_path, "clone", "-q", str(repository), str(testbed))
    engine = FakeEngine(testbed, copies=True)
    monkeypatch.setattr("xlocal.swe_pipeline.container._engine_of_environment", lambda: engine)
    monkeypatch.setattr("xlocal.swe_pipeline.engines.LocalEngine", Inline)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    # The images have the project installed.
    monkeypatch.setenv("PYTHONPATH", str(testbed.with_name("testbed-0")))
    row = {"instance_id": "shop__shop-1", "repo": str(repository), "base_commit": base, "problem_statement": ISSUE}
    (tmp_path / "issues.jsonl").write_text(json.dumps(row) + "\n")
    chosen = [call("submit_functions", functions=["shop/core.py::parse"])]
    model = write_script(tmp_path / "model.json", {**GOOD, "localize": chosen})
    arguments = [
        "swe",
        "run",
        "--dataset",
        tmp_path / "issues.jsonl",
        "--root",
        tmp_path / "root",
        "--backend",
        "docker",
    ]
    arguments += ["--out", tmp_path / "out", "--model", model]
    done = CliRunner().invoke(cli, [str(word) for word in arguments])
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["green"], report["reproduced"], report["errors"]) == (1, 1, 0)
    run = tmp_path / "out" / "shop__shop-1" / "agent"
    result = json.loads((run / "result.json").read_text())
    assert result["after"] == "reproduction 1/1, reference 1/1, validation 3/3, regression 1/1"
    assert result["existing"]["how"].startswith("by what they execute: ")
    assert "lstrip" in json.loads((tmp_path / "out" / "predictions.jsonl").read_text())["model_patch"]
    (container,) = engine.made
    assert container.removed
    assert container.options["network_disabled"] is True
    # The scripts and the tests ran over there; the image and the user's repository are as they were.
    assert sum("python /testbed/.xlocal/buggy.py" in " ".join(command) for command in container.commands) >= 3
    assert git(testbed, "status", "--porcelain") == git(repository, "status", "--porcelain") == ""
