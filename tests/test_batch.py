"""The batch: every job once, resumed, retried only for faults of the infrastructure, alone in its folder."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import fields
from pathlib import Path

import pytest
from batches import Noted, ended, issues, journal
from rich.console import Console
from xlocal.swe_pipeline.batch import Options, read_outcome, run_batch
from xlocal.swe_pipeline.checkout import Workplace
from xlocal.swe_pipeline.engines import Key, LocalEngine
from xlocal.swe_pipeline.issue import GRADING_FIELDS, Issue, load_dataset
from xlocal.swe_pipeline.manifest import read_manifest
from xlocal.swe_pipeline.predictions import Prediction
from xlocal.swe_pipeline.steps import GradeStep, PrepareStep, ValidateStep
from xlocal.tracer.errors import SessionError, UsageError

from xlocal.swe_progress import shown, table

FAST = Options(retries=2, pause=0.01)


def batch(folder, steps, *, count=2, workers=2, options=FAST, **more):
    return run_batch(issues(count), steps, folder=folder / "run", engine=LocalEngine(workers), options=options, **more)


@pytest.fixture
def notes(tmp_path):
    return tmp_path / "journal.jsonl"


def statuses(outcomes):
    return [(outcome.instance[-1], outcome.step, outcome.status) for outcome in outcomes]


def test_every_issue_goes_through_every_step_once_and_not_again(tmp_path, notes):
    steps = [Noted("one", notes), Noted("two", notes)]
    outcomes = batch(tmp_path, steps)
    assert statuses(outcomes) == [(i, s, "done") for i in "01" for s in ("one", "two")]
    assert outcomes[1].result["former"] == ["one"]
    assert len(ended(notes)) == 4
    assert batch(tmp_path, steps) == outcomes
    assert len(journal(notes)) == 8
    assert read_outcome(tmp_path / "run", Key("shop__shop-0", "two")) == outcomes[1]


def test_more_instances_and_a_changed_fact_are_done_and_the_rest_is_not(tmp_path, notes):
    batch(tmp_path, [Noted("one", notes), Noted("two", notes)])
    batch(tmp_path, [Noted("one", notes), Noted("two", notes)], count=3)
    assert len(ended(notes)) == 6
    batch(tmp_path, [Noted("one", notes), Noted("two", notes, facts={"patch": "new"})], count=3)
    assert len(ended(notes)) == 9
    assert [step for _, step in ended(notes)].count("two") == 6


def test_what_follows_changed_work_is_done_again(tmp_path, notes):
    batch(tmp_path, [Noted("one", notes), Noted("two", notes)], count=1)
    batch(tmp_path, [Noted("one", notes, facts={"commit": 1}), Noted("two", notes)], count=1)
    assert [step for _, step in ended(notes)] == ["one", "one", "two", "two"]


def test_work_that_fails_is_not_tried_again_and_ends_its_issue_alone(tmp_path, notes):
    steps = [Noted("one", notes, {"shop__shop-0": "fail"}), Noted("two", notes)]
    outcomes = batch(tmp_path, steps)
    assert statuses(outcomes) == [
        ("0", "one", "failed"),
        ("0", "two", "skipped"),
        ("1", "one", "done"),
        ("1", "two", "done"),
    ]
    assert (outcomes[0].error, outcomes[0].attempts) == ("this cannot work", 1)
    assert not (tmp_path / "run" / "shop__shop-0" / "two.json").exists()
    batch(tmp_path, steps)
    assert sum(row[0] == "shop__shop-0" for row in journal(notes)) == 1
    assert statuses(batch(tmp_path, [Noted("one", notes), Noted("two", notes)], options=Options(again=True)))[1] == (
        "0",
        "two",
        "done",
    )


def test_what_is_missing_is_not_tried_again_though_checkouts_may_fail_for_a_while(tmp_path, notes):
    (outcome,) = batch(tmp_path, [Noted("one", notes, {"shop__shop-0": "miss"})], count=1)
    assert (outcome.status, outcome.attempts) == ("gave up", 1)
    # It may have been installed or fetched since: the next run looks again.
    (outcome,) = batch(tmp_path, [Noted("one", notes)], count=1)
    assert outcome.status == "done"


def test_a_mistake_in_a_job_is_told_with_its_traceback(tmp_path, notes):
    (outcome,) = batch(tmp_path, [Noted("one", notes, {"shop__shop-0": "bug"})], count=1)
    assert (outcome.status, outcome.error) == ("failed", "ZeroDivisionError: a mistake")
    assert "batches.py" in outcome.details


@pytest.mark.parametrize("how", ["fault 2", "die 2"])
def test_a_fault_of_the_infrastructure_is_tried_again(tmp_path, notes, how):
    (outcome,) = batch(tmp_path, [Noted("one", notes, {"shop__shop-0": how})], count=1)
    assert (outcome.status, outcome.attempts, outcome.error) == ("done", 3, None)
    assert len(ended(notes)) == 1


@pytest.mark.parametrize(
    ("how", "why"), [("fault 9", "the network is away"), ("die 9", "the worker process ended by SIGKILL")]
)
def test_attempts_end_and_a_later_run_tries_anew(tmp_path, notes, how, why):
    (outcome,) = batch(tmp_path, [Noted("one", notes, {"shop__shop-0": how})], count=1)
    assert (outcome.status, outcome.attempts) == ("gave up", 3)
    assert outcome.error.startswith(why)
    (outcome,) = batch(tmp_path, [Noted("one", notes)], count=1)
    assert outcome.status == "done"


def test_a_damaged_result_is_made_again(tmp_path, notes):
    batch(tmp_path, [Noted("one", notes)], count=1)
    (tmp_path / "run" / "shop__shop-0" / "one.json").write_text('{"format": 1, "inst')
    assert batch(tmp_path, [Noted("one", notes)], count=1)[0].status == "done"
    assert len(ended(notes)) == 2


def test_the_manifest_tells_versions_seed_arguments_and_costs(tmp_path, notes):
    batch(tmp_path, [Noted("one", notes)], arguments={"dataset": "shop.jsonl"}, options=Options(seed=7))
    manifest = read_manifest(tmp_path / "run")
    assert manifest["state"] == "ended"
    assert (manifest["seed"], manifest["arguments"]) == (7, {"dataset": "shop.jsonl"})
    assert manifest["cost"] == {"dollars": "0.50", "tokens": 20}
    assert manifest["outcomes"] == {"one": {"done": 2}}
    assert manifest["versions"].keys() >= {"python", "xlocal"}
    assert manifest["instances"] == ["shop__shop-0", "shop__shop-1"]


def test_a_folder_keeps_to_one_kind_of_run(tmp_path, notes):
    batch(tmp_path, [Noted("one", notes, arguments={"timeout": 5})])
    with pytest.raises(UsageError, match=r"run: holds a run with one: timeout = 5, not 6; use another folder"):
        batch(tmp_path, [Noted("one", notes, arguments={"timeout": 6})])
    with pytest.raises(UsageError, match="holds a run with the steps one"):
        batch(tmp_path, [Noted("two", notes)])
    with pytest.raises(UsageError, match="seed 0, not 3"):
        batch(tmp_path, [Noted("one", notes, arguments={"timeout": 5})], options=Options(seed=3))
    (tmp_path / "run" / "run.json").write_text("[]")
    with pytest.raises(UsageError, match=r"run\.json: is not the manifest"):
        batch(tmp_path, [Noted("one", notes)])


def test_two_runs_in_one_folder_are_refused(tmp_path, notes):
    first = threading.Thread(target=batch, args=(tmp_path, [Noted("one", notes, {"shop__shop-0": "sleep 3"})]))
    first.start()
    while not journal(notes):
        time.sleep(0.05)
    with pytest.raises(SessionError, match="another run is going on there"):
        batch(tmp_path, [Noted("one", notes)])
    first.join()
    assert len(ended(notes)) == 2


def test_a_folder_that_cannot_be_written(tmp_path, notes):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(UsageError, match="cannot hold a run: File exists"):
        batch(tmp_path, [Noted("one", notes)])


def test_a_batch_of_nothing_or_of_twins_is_refused(tmp_path, notes):
    with pytest.raises(UsageError, match="at least one instance"):
        batch(tmp_path, [Noted("one", notes)], count=0)
    with pytest.raises(UsageError, match="the step one is there twice"):
        batch(tmp_path, [Noted("one", notes), Noted("one", notes)])


PROGRAM = """
import sys
from pathlib import Path
from batches import Noted, issues
from xlocal.swe_pipeline.batch import run_batch
from xlocal.swe_pipeline.engines import LocalEngine

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    step = Noted("one", folder / "journal.jsonl", {"shop__shop-2": "sleep 60"} if sys.argv[2] == "slow" else {})
    run_batch(issues(4), [step], folder=folder / "run", engine=LocalEngine(1))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_goes_on_where_it_was(tmp_path, notes, how):
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}

    def start(speed):
        command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), speed]
        return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)

    process = start("slow")
    while not any(row[0] == "shop__shop-2" for row in journal(notes)):
        time.sleep(0.05)
    process.send_signal(how)
    process.wait(20)
    worker = journal(notes)[-1][3]
    for _ in range(100):
        if not Path(f"/proc/{worker}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()
    assert [instance for instance, _ in ended(notes)] == ["shop__shop-0", "shop__shop-1"]
    state = read_manifest(tmp_path / "run")["state"]
    assert state == ("interrupted" if how == signal.SIGINT else "running")

    assert start("fast").wait(60) == 0
    assert [instance for instance, _ in ended(notes)] == [issue.id for issue in issues(4)]
    assert read_manifest(tmp_path / "run")["state"] == "ended"
    assert not list((tmp_path / "run").rglob("*.new"))


def test_progress_is_a_table_on_a_terminal_and_lines_elsewhere(tmp_path, notes):
    boards = []
    batch(tmp_path, [Noted("one", notes, {"shop__shop-1": "fail"}), Noted("two", notes)], progress=boards.append)
    console = Console(file=io.StringIO(), width=120)
    console.print(table(boards[-1]))
    text = console.file.getvalue()
    assert "2 of 2 instances" in text
    assert "$0.50" in text
    assert next(line.split("│") for line in text.splitlines() if "│ one" in line)[6].strip() == "1"

    plain = Console(file=io.StringIO())
    with shown(plain) as (told, progress):
        batch(
            tmp_path, [Noted("one", notes, {"shop__shop-1": "fail"}), Noted("two", notes)], told=told, progress=progress
        )
    lines = plain.file.getvalue().splitlines()
    assert len(lines) == 3
    assert any(line.endswith("shop__shop-1 one: failed before, this cannot work") for line in lines)


def test_a_live_table_follows_the_run(tmp_path, notes):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with shown(console) as (told, progress):
        batch(tmp_path, [Noted("one", notes, {"shop__shop-1": "fail"})], told=told, progress=progress)
    text = console.file.getvalue()
    assert "shop__shop-1 one: this cannot work" in text
    assert "2 of 2 instances" in text


SECRET = "only-for-grading"


@pytest.fixture
def dataset(tmp_path):
    """One issue whose grading fields all hold a word of their own."""
    diff = f"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+{SECRET}\n"
    row = {
        "instance_id": "shop__shop-0",
        "repo": "shop/shop",
        "base_commit": "0" * 40,
        "problem_statement": "The total is wrong.",
        "patch": diff,
        "test_patch": diff,
        "FAIL_TO_PASS": json.dumps([SECRET]),
        "PASS_TO_PASS": json.dumps([SECRET]),
    }
    file = tmp_path / "dataset.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return load_dataset(str(file))


def test_no_grading_field_reaches_a_job_that_does_not_grade(dataset, tmp_path):
    (issue,) = dataset.issues
    assert {name.lower() for name in GRADING_FIELDS}.isdisjoint(field.name for field in fields(Issue))
    assert SECRET.encode() not in pickle.dumps(issue)
    workplace = Workplace(tmp_path / "root", tmp_path / "cache")
    assert SECRET.encode() not in pickle.dumps(PrepareStep(workplace).job(issue))
    # The probe itself works: the steps that grade do carry it.
    predictions = {issue.id: Prediction(issue.id, "m", "")}
    grading = GradeStep(workplace, dataset.gold, tmp_path, "r", predictions=predictions)
    assert SECRET.encode() in pickle.dumps(grading.job(issue))
    assert SECRET.encode() in pickle.dumps(ValidateStep(workplace, dataset.gold).job(issue))


def test_a_job_carries_the_gold_of_its_own_issue_alone(dataset, tmp_path):
    (issue,) = dataset.issues
    other = Issue("shop__shop-1", "shop/shop", "0" * 40, "Another.")
    step = ValidateStep(Workplace(tmp_path, tmp_path), dataset.gold)
    assert step.job(issue).gold.id == issue.id
    with pytest.raises(UsageError, match="shop__shop-1: the dataset has no test patch for it"):
        step.job(other)


RAY = """
import json
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from batches import Noted, ended, issues, journal
from xlocal.swe_pipeline.batch import Options, run_batch
from xlocal.swe_pipeline.ray_engine import RayEngine

folder = Path(sys.argv[1])
notes = folder / "journal.jsonl"
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
lost = cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
count = 6
how = {issue.id: "sleep 2" for issue in issues(count)}


def kill():
    # In mid-run: both nodes have ended some jobs, and both work on others.
    while len(ended(notes)) < 4:
        time.sleep(0.1)
    cluster.remove_node(lost, allow_graceful=False)


threading.Thread(target=kill, daemon=True).start()
outcomes = run_batch(
    issues(count),
    [Noted("one", notes, how), Noted("two", notes, how)],
    folder=folder / "run",
    engine=RayEngine(),
    options=Options(retries=3, pause=0.1),
)
rows = [[o.instance, o.step, o.status, o.attempts] for o in outcomes]
print(json.dumps({"rows": rows, "workers": len({row[3] for row in journal(notes)})}))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_node_that_is_killed_in_mid_run_costs_nothing_and_nothing_is_done_twice(tmp_path, notes):
    pytest.importorskip("ray", reason="the engine for many machines needs the extra ray")
    (tmp_path / "program.py").write_text(RAY)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "RAY_DEDUP_LOGS": "0"}
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [row[2] for row in found["rows"]] == ["done"] * 12
    assert found["workers"] >= 2
    # Each job ended once; what the lost node was at was started again, and nothing else.
    assert ended(notes) == sorted((issue.id, step) for issue in issues(6) for step in ("one", "two"))
    again = sum(row[3] - 1 for row in found["rows"])
    starts = sum(row[2] == "start" for row in journal(notes))
    assert starts == 12 + again
    assert again == 1


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:9", "no cluster answers there: Connection refused"),
        ("127.0.0.1:99999", "no cluster answers there"),
        ("ray://127.0.0.1:9", "no cluster answers there: Connection refused"),
        ("nonsense", "no cluster: "),
        ("auto", "no cluster: "),
    ],
)
def test_a_cluster_that_is_not_there_is_told_at_once(address, why):
    pytest.importorskip("ray", reason="the engine for many machines needs the extra ray")
    from xlocal.swe_pipeline.ray_engine import RayEngine

    started = time.monotonic()
    with pytest.raises(UsageError, match=f"--ray-address {address}: {why}") as caught:
        RayEngine(address=address)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 60


def test_ray_is_an_extra(monkeypatch):
    from xlocal.swe_pipeline.ray_engine import RayEngine

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"needs the package ray: pip install 'xlocal\[ray\]'"):
        RayEngine()
