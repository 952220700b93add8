"""Patches: candidates judged by all tests, feedback, disputes, and a final patch without tests and scripts."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

pytest.importorskip("pydantic_ai", reason="needs the extra agents")

from agents import AUGMENT, GOOD, RIGHT, SUBMIT, Shop, call, copy_of, git, needs_sandbox
from xlocal.swe_pipeline.checks import Check, Results
from xlocal.swe_pipeline.cleaning import clean_patch
from xlocal.swe_pipeline.existing import ExistingTests
from xlocal.swe_pipeline.repair import Patch, _is_better
from xlocal.swe_pipeline.trajectory import FILE, read_trajectory
from xlocal.tracer.errors import PatchError

LOCALIZED = {"variant": "localizer"}
WRONG = call("edit", path="shop/core.py", old="text.isdigit()", new="text.isdecimal()")
UNDO = call("edit", path="shop/core.py", old="text.isdecimal()", new="text.lstrip('-').isdigit()")
BREAKS = call("edit", path="shop/core.py", old="else 0", new="else -1")


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path)


def steps(shop, kind):
    return [step for step in read_trajectory(shop.run / FILE).steps if step.kind == kind]


@needs_sandbox
def test_a_wrong_patch_comes_back_with_what_fails_and_a_right_one_ends_the_work(shop):
    solution = shop.solve(shop.model(repair=[WRONG, SUBMIT, UNDO, SUBMIT]), **LOCALIZED)
    assert (solution.ended, solution.green) == ("green", True)
    assert solution.before.summary() == "reproduction 0/1, reference 1/1"
    assert solution.patch.results.summary() == "reproduction 1/1, reference 1/1"
    assert "isdecimal" not in solution.diff


@needs_sandbox
def test_existing_tests_that_passed_must_still_pass(shop):
    more = "\n\ndef test_words_count_nothing():\n    assert total(['x']) == 0\n"
    file = shop.repository / "tests" / "test_core.py"
    file.write_text(file.read_text() + more)
    shop.copy = copy_of(shop.repository, shop.folder / "fresh")
    turns = [
        RIGHT,
        BREAKS,
        SUBMIT,
        call("run_tests"),
        call("edit", path="shop/core.py", old="else -1", new="else 0"),
        SUBMIT,
    ]
    solution = shop.solve(shop.model(repair=turns), regression=ExistingTests(), **LOCALIZED)
    assert solution.green
    assert solution.patch.results.summary() == "reproduction 1/1, reference 1/1, regression 2/2"
    (shown,) = [step.result for step in steps(shop, "tool") if step.request["tool"] == "run_tests"]
    assert shown.startswith("reproduction 1/1, reference 1/1, regression 1/2")
    assert "regression tests/test_core.py::test_words_count_nothing fails" in shown


@needs_sandbox
def test_the_patch_holds_no_tests_scripts_or_litter_and_applies(shop):
    turns = [
        call("create", path="reproduce.py", text="print(1)\n"),
        call("create", path="tests/test_new.py", text="def test_x(): pass\n"),
        call(
            "bash",
            command="echo '# changed' >> tests/test_core.py; echo x > shop/core.py.orig; printf '\\0\\1' > data.bin",
        ),
        RIGHT,
        SUBMIT,
    ]
    solution = shop.solve(shop.model(repair=turns), **LOCALIZED)
    assert solution.green
    assert solution.diff.count("diff --git") == 1
    left = {"data.bin", "reproduce.py", "shop/core.py.orig", "tests/test_core.py", "tests/test_new.py"}
    assert set(solution.patch.left_out) == left
    shop.copy.reset()
    shop.copy.apply(solution.diff)
    assert "lstrip" in (shop.copy.tree / "shop" / "core.py").read_text()


@needs_sandbox
def test_the_patch_does_nothing_to_the_tree_that_its_text_does_not_say(shop):
    commands = [
        "ln -s /etc/passwd shop/data",
        "ln -s ../../away shop/away",
        "ln -s .git/config config",
        "ln -s core.py shop/alias.py",
        "echo '* -diff' > shop/.gitattributes",
        "echo '[submodule \"x\"]' > .gitmodules",
        "rm shop/__init__.py; ln -s /dev/null shop/__init__.py",
        "chmod +x shop/core.py setup.cfg",
        "echo 'X = 1' > shop/more.py",
    ]
    (shop.repository / "setup.cfg").write_text("")
    git(shop.repository, "add", ".")
    shop.copy = copy_of(shop.repository, shop.folder / "fresh")
    turns = [RIGHT, call("bash", command="; ".join(commands)), SUBMIT]
    solution = shop.solve(shop.model(repair=turns), **LOCALIZED)
    assert solution.green
    assert set(solution.patch.left_out) == {
        "shop/data (a link out of the work tree)",
        "shop/away (a link out of the work tree)",
        "config (a link out of the work tree)",
        "shop/__init__.py (a link out of the work tree)",
        "shop/.gitattributes (steers git)",
        ".gitmodules (steers git)",
        "setup.cfg (its mode)",
        "shop/core.py (its mode)",
    }
    assert solution.patch.new_files == ("shop/alias.py", "shop/more.py")
    assert "mode 100755" not in solution.diff
    assert json.loads((shop.run / "result.json").read_text())["new_files"] == ["shop/alias.py", "shop/more.py"]
    shop.copy.reset()
    shop.copy.apply(solution.diff)
    assert "lstrip" in (shop.copy.tree / "shop" / "core.py").read_text()
    assert not (shop.copy.tree / "shop" / "core.py").stat().st_mode & 0o111


@needs_sandbox
def test_tests_that_were_tampered_with_are_written_anew(shop):
    cheat = call("create", path=".xlocal/buggy.py", text="print('all is well')\n")
    dummy = call("edit", path="shop/core.py", old="def parse(text):", new="def parse(text):  # looked at")
    solution = shop.solve(shop.model(repair=[cheat, dummy, SUBMIT, {"text": "done"}]), **LOCALIZED)
    assert not solution.green
    assert solution.patch.results.of("reproduction")[0].passed is False


@needs_sandbox
@pytest.mark.slow
def test_an_empty_patch_is_not_taken(shop):
    solution = shop.solve(shop.model(repair=[SUBMIT, SUBMIT, RIGHT, SUBMIT]), **LOCALIZED)
    assert solution.green


@needs_sandbox
def test_the_best_candidate_is_kept(shop):
    giving_up = [call("edit", path="shop/core.py", old="else 0", new="else 0  # hm"), SUBMIT, {"text": "I give up"}]
    solution = shop.solve(shop.model(repair_1=giving_up, repair_2=[RIGHT, SUBMIT]), candidates=3, **LOCALIZED)
    assert (solution.green, solution.patch.candidate) == (True, 2)
    assert "# hm" not in solution.diff


@needs_sandbox
@pytest.mark.slow
def test_a_validation_test_may_be_disputed_but_counts_as_failed(shop):
    absurd = [
        call(
            "submit_test",
            source="from shop.core import total\nassert total(['-1']) == 5\n",
            checks="absurd",
            kind="related behaviour",
        )
    ]
    disputed = call("submit_patch", cause="c", function="f", disputed_tests=["validation_1.py"])
    model = shop.model(augment_1=absurd, augment=AUGMENT, repair=[RIGHT, SUBMIT, disputed])
    solution = shop.solve(model)
    assert (solution.ended, solution.green) == ("accepted with disputed tests", False)
    assert solution.patch.results.summary() == "reproduction 1/1, reference 1/1, validation 2/3"


@needs_sandbox
def test_an_existing_test_that_asserts_the_bug_may_be_disputed_and_is_named(shop):
    file = shop.repository / "tests" / "test_core.py"
    file.write_text(file.read_text() + "\n\ndef test_signs():\n    assert total(['-1', '2']) == 2\n")
    shop.copy = copy_of(shop.repository, shop.folder / "fresh")
    signs = "tests/test_core.py::test_signs"
    disputed = call("submit_patch", cause="c", function="f", disputed_tests=[signs])
    model = shop.model(repair=[RIGHT, SUBMIT, disputed])
    solution = shop.solve(model, regression=ExistingTests(), **LOCALIZED)
    assert (solution.ended, solution.green) == ("accepted with disputed tests", False)
    assert solution.patch.results.summary() == "reproduction 1/1, reference 1/1, regression 1/2"
    assert [check.name for check in solution.patch.results.checks if not check.passed] == [signs]
    asked = [step for step in steps(shop, "model") if step.request["conversation"] == "repair-1"]
    assert len(asked) == 3


@needs_sandbox
def test_vanilla_sees_the_issue_alone(shop):
    model = shop.model(repair=[RIGHT, call("run_tests"), SUBMIT])
    solution = shop.solve(model, variant="vanilla", regression=ExistingTests())
    # Tests that pass before and after say nothing of the bug.
    assert (solution.green, solution.verdict) == (False, "unproven")
    assert solution.ended == "unproven: no test shows the bug"
    assert json.loads((shop.run / "result.json").read_text())["verdict"] == "unproven"
    assert solution.reproduction is None
    assert solution.patch.results.summary() == "regression 1/1"
    assert {step.phase for step in steps(shop, "model")} == {"repair"}


@needs_sandbox
@pytest.mark.slow
def test_augmented_tests_are_labelled_mended_once_or_dropped(shop):
    def test(source, kind="related behaviour"):
        return call("submit_test", source=source, checks="a thing", kind=kind)

    broken = test("from shop.core import nothing\n")
    flaky = test("import os\nassert os.environ['PYTHONHASHSEED'] == '0'\n")
    reveals = test("from shop.core import parse\nassert parse('-7') == -7\n", "the reported behaviour")
    model = shop.model(
        augment_1=[broken],
        mend_1=[reveals],
        augment_2=[flaky],
        mend_2=[flaky],
        augment_3=AUGMENT,
        repair=GOOD["repair"],
    )
    solution = shop.solve(model)
    assert solution.green
    assert [(t.name, t.fails_before, t.mended, t.temperature) for t in solution.tests] == [
        ("validation_1.py", True, True, 0.4),
        ("validation_3.py", False, False, 0.8),
    ]
    assert solution.tests[0].label == "validation_1.py: the reported behaviour: a thing (fails before the repair)"
    assert [(d.name, d.why) for d in solution.dropped] == [("validation_2.py", "it gives another result each time")]


def test_a_better_patch_fixes_then_keeps_then_is_small():
    def patch(diff, **outcome):
        return Patch(diff, Results(tuple(Check(kind, "n", ok) for kind, ok in outcome.items())), "")

    def proven(diff, **outcome):
        return replace(patch(diff, **outcome), proven=True)

    nothing = Patch("", Results(()), "")
    broken = patch("+a", reproduction=True, regression=False)
    kept = patch("+a\n+b", reproduction=True, regression=True)
    small = patch("+a", reproduction=True, regression=True)
    unfixed = patch("+a", reproduction=False, regression=True)
    shown = proven("+a\n+b\n+c", reproduction=True, regression=True)
    order = [nothing, unfixed, broken, kept, small, shown]
    for worse, better in itertools.pairwise(order):
        assert _is_better(better, worse)
        assert not _is_better(worse, better)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ({"reproduction": False, "regression": True}, {"reproduction": True, "regression": True}, "green"),
        ({"validation": False}, {"validation": True}, "green"),
        ({"validation": True, "regression": True}, {"validation": True, "regression": True}, "unproven"),
        ({"regression": True}, {"regression": True}, "unproven"),
        ({"reproduction": False}, {"reproduction": False}, "not green"),
        ({}, {}, "not green"),
    ],
)
def test_green_needs_a_test_that_failed_before(before, after, verdict):
    first, last = (Results(tuple(Check(kind, "n", ok) for kind, ok in found.items())) for found in (before, after))
    assert Patch("+a", last, "", proven=last.shows_repair(first)).verdict == verdict
    assert Patch("", last, "", proven=True).verdict == "no patch"


def test_no_tests_are_no_proof():
    assert not Results(()).green
    assert Results(()).summary() == "no tests"


def test_a_patch_that_reaches_outside_is_refused():
    with pytest.raises(PatchError):
        clean_patch("diff --git a/../x.py b/../x.py\n--- a/../x.py\n+++ b/../x.py\n@@ -1 +1 @@\n-a\n+b\n")
