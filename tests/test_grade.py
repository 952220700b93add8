"""Grading: predictions read, patches tried in a real repository, verdicts and files as the benchmark's package has them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from batches import Inline
from click.testing import CliRunner
from containers import FakeEngine
from xlocal.swe_pipeline import official as ours
from xlocal.swe_pipeline.checkout import LocalCheckout, Run, Workplace
from xlocal.swe_pipeline.grade import Calibration, calibrate, evaluate, grade, judge, read_log
from xlocal.swe_pipeline.issue import Gold, Issue, load_dataset
from xlocal.swe_pipeline.predictions import Prediction, load_predictions
from xlocal.swe_pipeline.regression import choose_tests, is_test_file, regression_command, run_tests
from xlocal.swe_pipeline.reports import Rate, rates, read_run_report, read_verdict, write_instance, write_run_report
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import CheckoutError, UsageError

from xlocal.cli import cli

CODE = "def total(prices):\n    return sum(prices)\n\n\ndef label(price):\n    return str(price)\n"
TESTS = "from shop.prices import label, total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n\n\ndef test_label():\n    assert label(1) == '1'\n"
NEW_TEST = "def test_empty():\n    assert total([]) is None\n"
FIX = "    return sum(prices) if prices else None\n"


def git(folder, *arguments):
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def diff_of(folder, changes):
    """The diff that some new file contents make; the folder is as before afterwards."""
    for name, text in changes.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    diff = git(folder, "diff", "--cached")
    git(folder, "reset", "--quiet", "--hard")
    return diff


class Bench(LocalCheckout):
    """A checkout of a repository of our own, in this interpreter: the installation is another module's business."""

    def __init__(self, issue, folder):
        super().__init__(issue, Workplace(folder, folder / "cache"))

    @property
    def python(self):
        return sys.executable

    def prepare(self):
        return False

    def run(self, command, *, timeout, env=None, cwd=None):
        command = [sys.executable if word == "python" else word for word in command]
        extra = ["-p", "no:cacheprovider"] if "pytest" in command else []
        return super().run(
            [*command, *extra], timeout=timeout, env={"PYTHONPATH": self.repository, **(env or {})}, cwd=cwd
        )


@pytest.fixture
def bench(tmp_path):
    """A checkout of a shop with one bug: the total of nothing should be None."""
    tree = tmp_path / "shop__shop-1" / "repo"
    (tree / "shop").mkdir(parents=True)
    (tree / "tests").mkdir()
    (tree / "shop" / "__init__.py").write_text("")
    (tree / "shop" / "prices.py").write_text(CODE)
    (tree / "tests" / "test_prices.py").write_text(TESTS)
    git(tree, "init", "--quiet", "--initial-branch", "base")
    git(tree, "config", "user.email", "shop@example.org")
    git(tree, "config", "user.name", "Shop")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "-m", "first")
    commit = git(tree, "rev-parse", "HEAD").strip()
    return Bench(Issue("shop__shop-1", "shop/shop", commit, "The total of nothing should be None."), tmp_path)


@pytest.fixture
def fix(bench):
    return diff_of(bench.tree, {"shop/prices.py": CODE.replace("    return sum(prices)\n", FIX)})


@pytest.fixture
def gold(bench, fix):
    return Gold(
        id="shop__shop-1",
        patch=fix,
        test_patch=diff_of(bench.tree, {"tests/test_prices.py": TESTS + "\n\n" + NEW_TEST}),
        fail_to_pass=("tests/test_prices.py::test_empty",),
        pass_to_pass=("tests/test_prices.py::test_total", "tests/test_prices.py::test_label"),
    )


@pytest.fixture
def swebench():
    """The benchmark's own package."""
    with pytest.MonkeyPatch.context() as patch:
        # It writes nothing, but its clients would look for keys and settings in the user's home.
        patch.setenv("HF_HUB_OFFLINE", "1")
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pytest.importorskip(
                "swebench", reason="the benchmark's package is an extra: pip install 'xlocal[swe]'"
            )


# Predictions


def write(folder, rows, name="predictions.jsonl"):
    file = folder / name
    text = "\n".join(map(json.dumps, rows)) if name.endswith("l") else json.dumps(rows)
    file.write_text(text + "\n")
    return file


def row(name="a-1", **more):
    return {"instance_id": name, "model_name_or_path": "lab/model", "model_patch": "diff", **more}


def test_predictions_are_read_in_the_three_forms_of_the_harness(tmp_path):
    rows = [row(), row("a-2", model_patch=None)]
    want = {"a-1": Prediction("a-1", "lab/model", "diff"), "a-2": Prediction("a-2", "lab/model", None)}
    assert load_predictions(write(tmp_path, rows)) == want
    assert load_predictions(write(tmp_path, rows, "list.json")) == want
    assert load_predictions(write(tmp_path, {each["instance_id"]: each for each in rows}, "object.json")) == want
    assert want["a-1"].folder == "lab__model"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", r"line 1: is not JSON"),
        ("[1]", r"line 1: is not an object but list"),
        ('{"model_name_or_path": "m", "model_patch": ""}', r"line 1: instance_id is missing"),
        ('{"instance_id": "a", "model_patch": ""}', r"line 1: model_name_or_path is missing"),
        ('{"instance_id": "a", "model_name_or_path": 3, "model_patch": ""}', r"model_name_or_path is not text"),
        ('{"instance_id": "a", "model_name_or_path": "..", "model_patch": ""}', r"'\.\.' cannot name a folder"),
        ('{"instance_id": "a", "model_name_or_path": "m"}', r"line 1: model_patch is missing"),
        ('{"instance_id": "a", "model_name_or_path": "m", "model_patch": 3}', r"model_patch is not text but int"),
        ("", r"holds no prediction"),
        (json.dumps(row()) + "\n" + json.dumps(row()), r"line 2: a-1 is there twice"),
        (json.dumps(row()) + "\n" + json.dumps(row("b", model_name_or_path="n")), r"predictions of 2 models"),
    ],
)
def test_malformed_predictions_are_refused_in_one_line(tmp_path, text, why):
    file = tmp_path / "p.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError, match=why) as caught:
        load_predictions(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_predictions_in_another_kind_of_file(tmp_path):
    for name, content, why in (
        ("p.txt", b"{}", r"a \.json or a \.jsonl"),
        ("p.json", b"3", "neither a list"),
        ("p.json", b"\xff\xfe", "UTF-8"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=why):
            load_predictions(tmp_path / name)


# Logs


def test_a_log_without_both_markers_tells_nothing():
    assert ours.test_output(f"a\n+ : '{ours.START}'\nok\n+ : '{ours.END}'\n").strip(" :'+\n") == "ok"
    assert ours.test_output("ok") is None
    assert ours.test_output(f"{ours.START} ok") is None
    assert ours.test_output(f"{ours.NOT_APPLIED}\n{ours.START} ok {ours.END}") is None


def test_the_markers_are_the_official_ones(swebench):
    from swebench.harness import constants

    official = (constants.APPLY_PATCH_PASS, constants.APPLY_PATCH_FAIL, constants.TESTS_TIMEOUT)
    assert official == (ours.APPLIED, ours.NOT_APPLIED, ours.TIMED_OUT)
    assert (constants.START_TEST_OUTPUT, constants.END_TEST_OUTPUT) == (ours.START, ours.END)


def test_grading_says_what_it_needs(monkeypatch):
    ours.official.cache_clear()
    monkeypatch.setitem(sys.modules, "swebench.harness", None)
    with pytest.raises(UsageError, match=r"grading needs swebench 4.*pip install 'xlocal\[swe\]'"):
        ours.official()
    ours.official.cache_clear()


# Evaluation


def test_the_gold_patch_resolves_and_an_empty_one_does_not(bench, gold, swebench, tmp_path):
    found = calibrate(bench, gold, folder=tmp_path / "kept")
    assert found.behaving(gold) == (gold.fail_to_pass, gold.pass_to_pass)
    verdict, evaluation = grade(bench, gold, Prediction(gold.id, "m", gold.patch), calibration=found)
    assert (verdict.resolved, verdict.practical, verdict.valid, verdict.completed) == (True, True, True, True)
    assert evaluation.statuses[gold.fail_to_pass[0]] == "PASSED"
    empty, _ = grade(bench, gold, Prediction(gold.id, "m", " \n"), calibration=found)
    assert (empty.resolved, empty.practical, empty.completed, empty.problem) == (
        False,
        False,
        False,
        "there is no patch",
    )
    assert bench.diff() == ""


def test_a_calibration_is_made_once_for_one_question(bench, gold, swebench, tmp_path, monkeypatch):
    first = calibrate(bench, gold, folder=tmp_path / "kept")
    assert {file.name for file in (tmp_path / "kept" / "calibration").iterdir()} == {"before.txt", "gold.txt"}
    runs = []
    monkeypatch.setattr(bench, "run", lambda *a, **k: runs.append(a) or Run(0, False, 0.0, ""))
    assert calibrate(bench, gold, folder=tmp_path / "kept") == first
    assert runs == []
    other = dataclasses.replace(gold, pass_to_pass=())
    assert calibrate(bench, other, folder=tmp_path / "kept") != first
    assert runs
    (tmp_path / "kept" / "calibration.json").write_text("{")
    assert calibrate(bench, gold, folder=tmp_path / "kept").before == {}


def test_a_patch_cannot_soften_the_tests(bench, gold, swebench):
    softened = diff_of(bench.tree, {"tests/test_prices.py": "def test_empty():\n    pass\n"})
    verdict, _ = grade(bench, gold, Prediction(gold.id, "m", softened))
    assert (verdict.applied, verdict.resolved) == (True, False)
    whole = diff_of(
        bench.tree, {"tests/test_prices.py": "", "shop/prices.py": CODE.replace("    return sum(prices)\n", FIX)}
    )
    assert grade(bench, gold, Prediction(gold.id, "m", whole))[0].resolved


def test_a_patch_that_breaks_another_test_does_not_resolve(bench, gold, swebench):
    broken = diff_of(
        bench.tree, {"shop/prices.py": CODE.replace("    return sum(prices)\n", FIX).replace("str(price)", "''")}
    )
    verdict, _ = grade(bench, gold, Prediction(gold.id, "m", broken))
    assert not verdict.resolved
    assert verdict.tests["PASS_TO_PASS"] == {"success": [gold.pass_to_pass[0]], "failure": [gold.pass_to_pass[1]]}


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("not a diff", "does not apply"),
        (
            "--- a/shop/prices.py\n+++ b/shop/prices.py\n@@ -1,2 +1,2 @@\n def other():\n-    return 0\n+    return 1\n",
            "does not apply",
        ),
        ("--- a/../../evil.py\n+++ b/../../evil.py\n@@ -0,0 +1 @@\n+x = 1\n", "not a file of the work tree"),
        ("--- /dev/null\n+++ b/.git/hooks/post-checkout\n@@ -0,0 +1 @@\n+x\n", "not a file of the work tree"),
    ],
)
def test_a_patch_that_does_not_fit_is_a_verdict(bench, gold, swebench, patch, why):
    verdict, evaluation = grade(bench, gold, Prediction(gold.id, "m", patch))
    assert (verdict.applied, verdict.resolved, verdict.patch_exists) == (False, False, True)
    assert why in verdict.problem
    assert evaluation.log.startswith(ours.NOT_APPLIED)
    assert bench.diff() == ""


def test_half_a_patch_is_not_graded(dataset, gold, swebench, tmp_path):
    """A dry run of `patch` passes, since the link is not there yet; a true one would stop behind it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    patch = (
        f"diff --git a/ln b/ln\nnew file mode 120000\n--- /dev/null\n+++ b/ln\n@@ -0,0 +1 @@\n+{elsewhere}\n"
        "\\ No newline at end of file\n"
        "diff --git a/ln/pwn.py b/ln/pwn.py\nnew file mode 100644\n--- /dev/null\n+++ b/ln/pwn.py\n@@ -0,0 +1 @@\n+x\n"
    )
    row_ = json.loads(dataset.read_text())
    row_["setup"] = {"install": "path", "project": False, "python": "{}.{}".format(*sys.version_info[:2])}
    dataset.write_text(json.dumps(row_) + "\n")
    predictions = write(tmp_path, [row(gold.id, model_patch=gold.patch + patch)])
    places = ("--mirrors", tmp_path / "mirrors", "--root", tmp_path / "root", "--cache", tmp_path / "cache")
    arguments = ("--dataset", dataset, *places, "--out", tmp_path / "out", "--no-calibrate")
    result = xlocal("grade", predictions, "--run-id", "r", *arguments)
    why = "the patch does not apply: it makes ln/pwn.py, and ln no folder but a file or a link"
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (0, f"{gold.id}: not resolved: {why}")
    folder = tmp_path / "out" / "logs" / "run_evaluation" / "r" / "lab__model" / gold.id
    assert why in (folder / "run_instance.log").read_text()
    assert not (folder / "report.json").exists()
    assert git(tmp_path / "root" / gold.id / "repo", "status", "--porcelain") == ""
    assert list(elsewhere.iterdir()) == []


def test_tests_that_do_not_end_are_killed_and_told(bench, gold, swebench):
    endless = diff_of(bench.tree, {"shop/prices.py": CODE + "\n\nwhile True:\n    pass\n"})
    verdict, evaluation = grade(bench, gold, Prediction(gold.id, "m", endless), timeout=3)
    assert verdict.problem == "the tests took longer than 3 seconds"
    assert (verdict.applied, verdict.resolved, verdict.completed, verdict.tests) == (True, False, False, {})
    assert evaluation.seconds < 20
    assert evaluation.log.endswith("\n\nTimeout error: 3 seconds exceeded.\n")


def test_what_cannot_be_calibrated_is_told_and_not_kept(bench, gold, swebench, tmp_path):
    wrong = dataclasses.replace(gold, patch="nonsense")
    said = r"shop__shop-1: cannot be calibrated: with its fix, the patch does not apply"
    with pytest.raises(UsageError, match=f"^{said}"):
        calibrate(bench, wrong, folder=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_disk_that_refuses_is_told_in_one_line(bench, gold, swebench, tmp_path):
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(CheckoutError, match=r"cannot be written: (Not a directory|File exists)"):
        calibrate(bench, gold, folder=tmp_path / "kept")


# Files and rates


def test_the_official_tools_read_our_files(bench, gold, swebench, tmp_path, monkeypatch):
    """report.json is what the harness's own grading makes of our log, and its report of the run agrees with ours."""
    from swebench.harness import reporting
    from swebench.harness.grading import get_eval_report
    from swebench.harness.test_spec.test_spec import TestSpec

    # Any Python repository that the package knows and that pytest tests.
    rows = {"good": gold.patch, "bad": "nonsense", "weak": diff_of(bench.tree, {"notes.txt": "x\n"}), "none": ""}
    predictions = {name: Prediction(name, "lab/model", patch) for name, patch in rows.items()}
    verdicts = {}
    for name, prediction in predictions.items():
        verdict, evaluation = grade(bench, gold, prediction)
        verdicts[name] = dataclasses.replace(verdict, id=name)
        write_instance(tmp_path, "run", prediction, verdicts[name], evaluation, label="local")
    file = write_run_report(tmp_path, "run", predictions, verdicts, instances=[*rows, "unseen"])
    mine = read_run_report(file)

    spec = TestSpec(
        "good",
        "pallets/flask",
        "2.0",
        [],
        [],
        [],
        "x86_64",
        list(gold.fail_to_pass),
        list(gold.pass_to_pass),
        "py",
        {},
        None,
    )
    folder = tmp_path / "logs" / "run_evaluation" / "run" / "lab__model" / "good"
    prediction = {"instance_id": "good", "model_name_or_path": "lab/model", "model_patch": gold.patch}
    theirs = get_eval_report(spec, prediction, str(folder / "test_output.txt"), True)
    own = json.loads((folder / "report.json").read_text())
    groups = ("FAIL_TO_PASS", "PASS_TO_PASS")
    for group in groups:
        assert own["good"]["tests_status"][group] == theirs["good"]["tests_status"][group]
    assert {k: v for k, v in own["good"].items() if k != "tests_status"} == {
        k: v for k, v in theirs["good"].items() if k != "tests_status"
    }

    monkeypatch.chdir(tmp_path)
    file.rename(tmp_path / "ours.json")
    given = {
        name: {"instance_id": name, "model_name_or_path": "lab/model", "model_patch": patch}
        for name, patch in rows.items()
    }
    reporting.make_run_report(given, [{"instance_id": name} for name in [*rows, "unseen"]], "run")
    official = json.loads((tmp_path / "lab__model.run.json").read_text())
    assert {key: mine[key] for key in official} == official
    assert mine["resolved_ids"] == ["good"]
    assert mine["error_ids"] == ["bad"]
    assert mine["xlocal"]["comparable"] is False
    assert read_verdict(tmp_path, "run", predictions["good"]) == verdicts["good"]
    assert read_verdict(tmp_path, "run", Prediction("good", "lab/model", "other")) is None


def test_an_evaluated_log_is_read_again_as_it_was(bench, gold, swebench):
    evaluation = evaluate(bench, gold, gold.patch)
    assert read_log("shop/shop", evaluation.log) == evaluation.statuses


def test_three_denominators(swebench, gold):
    """Official over all; valid where fail-to-pass tests behave; practical by the tests that behave."""
    statuses = {"tests/test_prices.py::test_empty": "PASSED", "tests/test_prices.py::test_total": "PASSED"}
    needs_network = {"tests/test_prices.py::test_total": "PASSED"}
    local = Calibration(gold.id, needs_network, {**statuses}, 1.0)

    def verdict(found, calibration):
        evaluation = Evaluation(True, False, 1.0, "", found)
        return judge(Prediction(gold.id, "m", "diff"), gold, evaluation, calibration)

    from xlocal.swe_pipeline.grade import Evaluation

    # test_label fails here whatever one does: officially unresolved, by the tests that behave resolved.
    good = verdict(statuses, local)
    assert (good.resolved, good.practical, good.valid) == (False, True, True)
    dead = verdict(statuses, Calibration(gold.id, {}, {}, 1.0))
    assert (dead.resolved, dead.practical, dead.valid) == (False, None, False)
    bad = verdict(needs_network, local)
    assert (bad.practical, bad.valid) == (False, True)
    found = rates([good, dead, bad], instances=5)
    assert (found.official, found.valid, found.practical) == (Rate(0, 5), Rate(0, 2), Rate(1, 2))
    assert str(found.practical) == "1/2 (50.0 %)"
    assert Rate(0, 0).percent is None


@pytest.mark.parametrize(
    ("text", "why"), [("{", "is not JSON"), ("[]", "is not a report"), ('{"resolved_ids": []}', "is not a report")]
)
def test_a_damaged_report_is_refused(tmp_path, text, why):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UsageError, match=why):
        read_run_report(tmp_path / "r.json")


# Tests for solvers


def test_tests_are_chosen_from_the_base_commit_alone(bench, gold):
    where = [Function("shop/prices.py", "total")]
    assert choose_tests(bench, where) == ("tests/test_prices.py",)
    # What comes after the base commit, as a test patch does, changes nothing.
    (bench.tree / "tests" / "test_total.py").write_text("from shop.prices import total\n")
    git(bench.tree, "add", "--all")
    git(bench.tree, "commit", "--quiet", "-m", "later")
    assert choose_tests(bench, where) == ("tests/test_prices.py",)
    assert choose_tests(bench, []) == ()


def test_existing_tests_run_and_are_read(bench, swebench):
    found = run_tests(bench, ["tests/test_prices.py"], timeout=60)
    assert found.passed == {"tests/test_prices.py::test_total", "tests/test_prices.py::test_label"}
    bench.apply(diff_of(bench.tree, {"shop/prices.py": CODE.replace("str(price)", "''")}))
    assert run_tests(bench, ["tests/test_prices.py"], timeout=60).failed == {"tests/test_prices.py::test_label"}


def test_djangos_runner_takes_dotted_names(tmp_path):
    issue = Issue("django__django-1", "django/django", "0" * 40, "text", version="4.0")
    checkout = LocalCheckout(issue, Workplace(tmp_path, tmp_path))
    assert regression_command(checkout, ["tests/admin_utils/tests.py"])[-1] == "admin_utils.tests"


@pytest.mark.parametrize(
    ("path", "yes"),
    [
        ("tests/test_a.py", True),
        ("a/a_test.py", True),
        ("tests/x/tests.py", True),
        ("tests/unittest_a.py", True),
        ("tests/conftest.py", False),
        ("a/latest.py", False),
        ("tests/data/a.txt", False),
        ("contest.py", False),
    ],
)
def test_what_names_a_file_of_tests(path, yes):
    assert is_test_file(path) is yes


# Commands


@pytest.fixture
def dataset(bench, gold, tmp_path):
    """The issue as a row of a dataset, and a mirror of its repository."""
    mirror = tmp_path / "mirrors" / "shop__shop.git"
    mirror.parent.mkdir()
    git(tmp_path, "clone", "--quiet", "--bare", str(bench.tree), str(mirror))
    file = tmp_path / "dataset.jsonl"
    line = {
        "instance_id": gold.id,
        "repo": "shop/shop",
        "base_commit": bench.issue.base_commit,
        "problem_statement": "The total of nothing should be None.",
        "patch": gold.patch,
        "test_patch": gold.test_patch,
        "FAIL_TO_PASS": json.dumps(gold.fail_to_pass),
        "PASS_TO_PASS": json.dumps(gold.pass_to_pass),
    }
    file.write_text(json.dumps(line) + "\n")
    assert load_dataset(str(file)).gold[gold.id] == gold
    return file


def xlocal(*arguments):
    result = CliRunner().invoke(cli, ["swe", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_metrics_of_gold_are_perfect_and_of_nothing_are_zero(dataset, gold, tmp_path):
    mirrors = tmp_path / "mirrors"
    for patch, f1, note in (
        (gold.patch, "100.0", ""),
        (None, "0.0", "1 without a patch"),
        ("nonsense", "0.0", "it is not a unified diff"),
    ):
        predictions = write(tmp_path, [row(gold.id, model_patch=patch)])
        result = xlocal("metrics", predictions, "--dataset", dataset, "--mirrors", mirrors)
        assert result.exit_code == 0, result.output
        table = [line.split() for line in result.stdout.splitlines()]
        assert [line[5] for line in table[1:3]] == [f1, f1]
        assert note in result.output


def test_metrics_need_base_files(dataset, gold, tmp_path):
    predictions = write(tmp_path, [row(gold.id, model_patch=gold.patch)])
    result = xlocal("metrics", predictions, "--dataset", dataset, "--root", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "are read from --mirrors, or from a checkout in --root" in result.stderr


def test_wrong_predictions_end_each_command_in_one_line(dataset, tmp_path):
    stranger = write(tmp_path, [row("shop__shop-9")])
    for arguments in (("metrics", stranger), ("grade", stranger, "--run-id", "r", "--out", tmp_path)):
        result = xlocal(*arguments, "--dataset", dataset)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert "shop__shop-9 is not in the dataset" in result.stderr
    result = xlocal("grade", stranger, "--run-id", "../r", "--dataset", dataset)
    assert (result.exit_code, "--run-id '../r'" in result.stderr) == (2, True)
    result = xlocal("validate", "--instances", "shop__shop-2", "--dataset", dataset)
    assert (result.exit_code, "did you mean shop__shop-1?" in result.stderr) == (2, True)


@pytest.mark.usefixtures("swebench")
@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (
            "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n-a\n+b\n c\n",
            "the patch does not apply: x.py: No such file or directory",
        ),
        ("--- a/../x\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n", "the patch touches ../x, which is not a file of the work tree"),
    ],
)
def test_a_patch_that_cannot_be_is_a_line_of_grading(dataset, containers, gold, tmp_path, patch, why):
    predictions = write(tmp_path, [row(gold.id, model_patch=patch)])
    arguments = ("--dataset", dataset, "--root", tmp_path, "--out", tmp_path, "--backend", "docker", "--no-calibrate")
    result = xlocal("grade", predictions, "--run-id", "r", *arguments)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (0, f"{gold.id}: not resolved: {why}")
    rates_ = [line.split("  ")[-1].strip() for line in result.stdout.splitlines()[-3:]]
    assert rates_[1:] == ["not calibrated", "not calibrated"]
    assert json.loads((tmp_path / "lab__model.r.json").read_text())["xlocal"]["calibrated"] is False


def test_a_mirror_that_is_missing_is_told_and_nothing_is_tried_again(dataset, tmp_path):
    (tmp_path / "none").mkdir()
    result = xlocal("validate", "--dataset", dataset, "--mirrors", tmp_path / "none", "--root", tmp_path / "root")
    assert result.exit_code == 4
    assert "no such mirror" in result.stdout
    outcome = json.loads((tmp_path / "root" / "validate" / "shop__shop-1" / "prepare.json").read_text())
    assert (outcome["status"], outcome["attempts"]) == ("gave up", 1)


def test_a_report_is_printed_with_its_label_and_rates(tmp_path):
    file = write_run_report(tmp_path, "r", {"a": Prediction("a", "m", "")}, {}, instances=["a", "b"])
    result = xlocal("report", file)
    assert "not comparable with the leaderboard" in result.stdout
    assert "resolved, official rule, of all instances" in result.stdout
    assert json.loads(xlocal("report", file, "--json").stdout)["empty_patch_ids"] == ["a"]


# Containers: the whole way, with an engine that stands in for Docker's


@pytest.fixture
def containers(bench, tmp_path, monkeypatch):
    """The engine that DOCKER_HOST would name; its image holds the shop, and a commit of its installation on top."""
    pytest.importorskip("docker", reason="containers are an extra: pip install 'xlocal[docker]'")
    testbed = tmp_path / "images" / "testbed"
    git(tmp_path, "clone", "--quiet", str(bench.tree), str(testbed))
    (testbed / "setup.cfg").write_text("[installed]\n")
    git(testbed, "add", ".")
    git(testbed, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "installation")
    engine = FakeEngine(testbed, copies=True)
    monkeypatch.setattr("xlocal.swe_pipeline.container._engine_of_environment", lambda: engine)
    monkeypatch.setattr("xlocal.swe_pipeline.engines.LocalEngine", Inline)
    # The test runner's own settings are not the container's.
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return engine


def test_validation_in_containers(dataset, containers, swebench, tmp_path):
    arguments = ("validate", "--dataset", dataset, "--root", tmp_path / "root", "--backend", "docker")
    result = xlocal(*arguments)
    assert result.exit_code == 0, result.output
    assert "gold resolves, empty does not (fail-to-pass 1/1, pass-to-pass 2/2 behave)" in result.stdout
    (container,) = containers.made
    assert container.removed
    assert container.options["image"] == "swebench/sweb.eval.x86_64.shop_1776_shop-1:latest"
    assert container.options["network_disabled"] is True
    assert sum("pytest" in " ".join(command) for command in container.commands) == 2
    assert "test_empty" in (tmp_path / "root" / "shop__shop-1" / "calibration" / "gold.txt").read_text()
    # A second time nothing runs, and where tests run is part of what a folder holds.
    assert xlocal(*arguments).stdout == result.stdout
    assert len(containers.made) == 1
    local = xlocal(*arguments[:-1], "local")
    assert (local.exit_code, "holds a run with the steps validate" in local.stderr) == (2, True)


@pytest.mark.usefixtures("swebench")
@pytest.mark.parametrize(
    ("patch", "want"),
    [
        ("gold", (0, 1, True)),
        ("", (0, 0, False)),
        ("not a diff", (0, 0, False)),
        ("--- a/../x\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n", (0, 0, False)),
    ],
)
def test_grading_in_containers(dataset, containers, gold, tmp_path, patch, want):
    text = gold.patch if patch == "gold" else patch
    predictions = write(tmp_path, [row(gold.id, model_patch=text)])
    arguments = ("--dataset", dataset, "--root", tmp_path / "root", "--out", tmp_path / "out", "--backend", "docker")
    result = xlocal("grade", predictions, "--run-id", "r", *arguments)
    report = json.loads((tmp_path / "out" / "lab__model.r.json").read_text())
    folder = tmp_path / "out" / "logs" / "run_evaluation" / "r" / "lab__model" / gold.id
    found = (result.exit_code, report["resolved_instances"], (folder / "report.json").exists())
    assert found == want, result.output
    assert report["xlocal"] == {
        **report["xlocal"],
        "label": "the benchmark's images, run by xlocal",
        "comparable": True,
    }
    assert report["xlocal"]["rates"]["practical"] == {"resolved": want[1], "n": 1}
    assert all(container.removed for container in containers.made)
    # Nothing of a patch stays in the image.
    assert git(containers.testbed, "status", "--porcelain") == ""


def test_an_engine_that_fails_once_is_asked_again(dataset, containers, gold, swebench, tmp_path):
    predictions = write(tmp_path, [row(gold.id, model_patch=gold.patch)])
    arguments = ("--dataset", dataset, "--root", tmp_path / "root", "--out", tmp_path / "out", "--backend", "docker")
    containers.down = 1
    result = xlocal("grade", predictions, "--run-id", "r", *arguments, "--retries", "0")
    assert result.exit_code == 4
    complaint = f"{gold.id}: not graded: swebench/sweb.eval.x86_64.shop_1776_shop-1:latest: the Docker engine"
    assert [line for line in result.stderr.splitlines() if line.startswith(complaint)] != []
    assert result.stderr.splitlines()[-1].endswith("says: the engine is restarting")
    containers.down = 1
    result = xlocal("grade", predictions, "--run-id", "r", *arguments, "--retries", "1")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out" / "lab__model.r.json").read_text())["resolved_ids"] == [gold.id]


def test_a_patch_is_made_in_a_container(dataset, containers, gold, tmp_path):
    """`xlocal swe run`: the model edits a copy here, its commands run over there."""
    pytest.importorskip("pydantic_ai", reason="agents are an extra: pip install 'xlocal[agents]'")
    old, new = "    return sum(prices)", FIX.rstrip("\n")
    turns = [
        {"tool": "bash", "args": {"command": "python -m pytest -q tests; pwd"}},
        {"tool": "edit", "args": {"path": "shop/prices.py", "old": old, "new": new}},
        {"tool": "submit_patch", "args": {"cause": "nothing sums to 0", "function": "shop/prices.py::total"}},
    ]
    (tmp_path / "turns.json").write_text(json.dumps({"repair": turns}))
    model = ("--model", f"scripted:{tmp_path / 'turns.json'}", "--variant", "vanilla", "--budget", "none")
    where = ("--dataset", dataset, "--mirrors", tmp_path / "mirrors", "--root", tmp_path / "root")
    result = xlocal("run", *where, "--out", tmp_path / "out", "--backend", "docker", *model)
    assert result.exit_code == 0, result.output
    (line,) = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    assert json.loads(line)["model_patch"] == gold.patch
    (container,) = containers.made
    assert container.removed
    assert any("pytest -q tests" in word for command in container.commands for word in command)
