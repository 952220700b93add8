"""From two scripts to suspects, on small projects run for real: each kind of evidence, and each doubt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small import kinds, located, slugs, suspects
from xlocal.ranking.comparison import Comparison
from xlocal.ranking.diff import diff
from xlocal.ranking.signals import difference_findings
from xlocal.tracer.calltree import CallTree, Function
from xlocal.tracer.errors import SessionError

from xlocal.doctor import interpreters
from xlocal.report import revealed

CALLS = """
    def start(x):
        if x:
            only_bad()
            return shared(x)
        only_good()
        return shared(x)

    def only_bad():
        helper()

    def only_good():
        pass

    def helper():
        pass

    def shared(x):
        return [helper() for _ in range(1 + x)]
"""


def test_calls_that_differ_are_evidence(tmp_path: Path) -> None:
    found = located(tmp_path, CALLS, "import lib; lib.start(1); assert 0", "import lib; lib.start(0)")
    assert kinds(found, "only_bad")["only-buggy"] == "runs once, only in the buggy run"
    assert kinds(found, "only_bad")["deleted"] == "its only call has no counterpart in the reference run"
    assert kinds(found, "only_good")["only-reference"] == "runs once in the reference run, never in the buggy one"
    assert "only_bad" in kinds(found, "start")["parent-of-deleted"]
    assert "only_good" in kinds(found, "start")["parent-of-inserted"]
    assert kinds(found, "helper")["count"] == "called 3 times, but once in the reference run"
    assert suspects(found)[-1] == "only_good"  # never executed in the buggy run


def test_the_function_whose_lines_differ_comes_first_though_both_runs_call_the_same(tmp_path: Path) -> None:
    module = """
        def parse(text):
            return [convert(word) for word in text.split()]

        def convert(word):
            if word.startswith("-"):
                return 0
            return int(word)

        def total(words):
            return sum(words)
    """
    bad = "import lib; got = lib.total(lib.parse('1 -2')); assert got == -1, got"
    found = located(tmp_path, module, bad, "import lib; assert lib.total(lib.parse('1 2')) == 3")
    assert suspects(found)[0] == "convert"
    said = kinds(found, "convert")
    assert said["line"] == "took line 7 only in the buggy run"
    assert said["return"] == "returned 0, but 2 in the reference run (1 of 2 calls seen)"
    assert "line" not in kinds(found, "total")


def test_a_call_with_equal_arguments_and_another_outcome_is_an_origin(tmp_path: Path) -> None:
    module = """
        MODE = []

        def configure(mode):
            MODE.append(mode)

        def answer(x):
            return x + 1 if MODE[0] == "plus" else x - 1

        def show(x):
            return str(answer(x))
    """
    found = located(
        tmp_path,
        module,
        "import lib; lib.configure('minus'); assert lib.show(3) == '4'",
        "import lib; lib.configure('plus'); assert lib.show(3) == '4'",
    )
    assert kinds(found, "answer")["origin"] == (
        "called with the same arguments in both runs, returned 2, but 4 in the reference run"
    )
    assert "mode='minus', but 'plus' in the reference run" in kinds(found, "configure")["argument"]


def test_the_last_writer_of_a_differing_attribute_is_named(tmp_path: Path) -> None:
    module = """
        class Box:
            def __init__(self, flag):
                self.flag = self.decide(flag)
                self.log = []

            def decide(self, flag):
                return bool(flag)

            def use(self, x):
                if self.flag:
                    return x
                return None
    """
    found = located(
        tmp_path,
        module,
        "import lib; box = lib.Box(''); assert box.use(3) == 3",
        "import lib; box = lib.Box('yes'); assert box.use(3) == 3",
    )
    assert kinds(found, "Box.__init__")["writer"] == (
        "last set self.flag to False, which differs when Box.use diverges"
    )


def test_the_raiser_and_the_traceback(tmp_path: Path) -> None:
    module = """
        def outer(x):
            return middle(x)

        def middle(x):
            return inner(x)

        def inner(x):
            return {1: 2}[x]
    """
    found = located(tmp_path, module, "import lib; lib.outer(5)", "import lib; lib.outer(1)")
    assert suspects(found)[0] == "inner"
    assert kinds(found, "inner")["exception"] == "raises KeyError only in the buggy run"
    assert kinds(found, "middle")["exception"] == "is left by KeyError only in the buggy run"
    assert kinds(found, "inner")["traceback"] == "in the traceback at line 9, where it meets KeyError"
    assert found.runs[0].exception == "KeyError"
    assert found.runs[0].message == "5"


def test_the_same_script_twice_gives_no_evidence(tmp_path: Path) -> None:
    script = "import lib; lib.start(1)"
    found = located(tmp_path, CALLS, script, script)
    assert found.comparison.cost == 0
    assert not any(ranked.suspect.evidence for ranked in found.suspects)
    assert found.comparison.blindness is not None
    assert "same calls" in found.comparison.blindness
    assert "same-behaviour" in slugs(found)


def test_noise_of_a_script_is_no_evidence(tmp_path: Path) -> None:
    module = """
        import os

        def steady(x):
            return x

        def noisy(x):
            # Its calls follow a value that no seed reaches.
            return [steady(i) for i in range(os.getpid() % 7 + x)]

        def culprit(x):
            return steady(x) if x else None
    """
    script = """
        import lib, os
        real = os.getpid
        os.getpid = lambda: int.from_bytes(os.urandom(4), "big")
        lib.noisy(1)
        lib.culprit({})
    """
    found = located(tmp_path, module, script.replace("{}", "1"), script.replace("{}", "0"), repeat=4)
    assert "runs-differ" in slugs(found)
    assert not {"count", "deleted", "parent-of-deleted"} & kinds(found, "noisy").keys()
    assert "line" not in kinds(found, "steady")


def test_several_references_give_the_best_of_each(tmp_path: Path) -> None:
    found = located(
        tmp_path, CALLS, "import lib; lib.start(1)", ["import lib; lib.start(1)", "import lib; lib.start(0)"]
    )
    assert [run.role for run in found.runs] == ["buggy", "reference-1", "reference-2"]
    assert found.comparison.cost == 0  # to the nearest
    assert "only-buggy" in kinds(found, "only_bad")


def test_the_scripts_own_functions_are_no_suspects(tmp_path: Path) -> None:
    script = "import lib\ndef mine(): lib.start({})\nmine()"
    found = located(tmp_path, CALLS, script.format(1), script.format(0))
    assert "mine" not in suspects(found)
    assert "start" in suspects(found)


def test_doubts_about_the_scripts_are_said(tmp_path: Path) -> None:
    both_fail = located(tmp_path, CALLS, "import lib; lib.start(1); 1 / 0", "import lib; lib.start(0); 1 / 0")
    assert "reference-fails" in slugs(both_fail)
    wrong_value = located(tmp_path, CALLS, "import lib; print(lib.start(1))", "import lib; print(lib.start(0))")
    assert "buggy-passes" in slugs(wrong_value)


def test_an_issue_adds_what_it_names_even_if_it_never_ran(tmp_path: Path) -> None:
    module = CALLS + "\n    def never_called_at_all():\n        pass\n"
    found = located(
        tmp_path,
        module,
        "import lib; lib.start(1)",
        "import lib; lib.start(0)",
        issue="`never_called_at_all` is broken",
    )
    assert "named-in-issue" in kinds(found, "never_called_at_all")
    assert set(suspects(found)[-2:]) == {"only_good", "never_called_at_all"}


def test_without_a_second_pass_there_are_no_values(tmp_path: Path) -> None:
    found = located(tmp_path, CALLS, "import lib; lib.start(1)", "import lib; lib.start(0)", values=False)
    said = {evidence.kind for ranked in found.suspects for evidence in ranked.suspect.evidence}
    assert "deleted" in said
    assert not said & {"line", "argument", "return", "origin"}


def test_a_comparison_survives_its_file(tmp_path: Path) -> None:
    found = located(tmp_path, CALLS, "import lib; lib.start(1)", "import lib; lib.start(0)")
    file = tmp_path / "comparison.json"
    found.comparison.save(file)
    assert Comparison.load(file) == found.comparison
    file.write_text('{"version": 99}')
    with pytest.raises(SessionError, match="newer xlocal"):
        Comparison.load(file)
    file.write_text("{")
    with pytest.raises(SessionError, match="damaged"):
        Comparison.load(file)
    file.unlink()
    with pytest.raises(SessionError, match="holds no comparison"):
        Comparison.load(file)


# 3.12 and later record by sys.monitoring, which a profile function does not touch.
UNHOOKED = """
    import sys
    def leaf(x):
        if x: raise ValueError(x)
    def hook(x):
        sys.setprofile(lambda *event: None)
        sys.setprofile(None)
        {call}
"""


@pytest.mark.parametrize("backend", ["native", "setprofile"])
def test_the_traceback_names_functions_whose_calls_the_lost_hook_missed(tmp_path: Path, backend: str) -> None:
    module = UNHOOKED.format(call="leaf(x)")
    python = next((p for p in interpreters() if p.version < (3, 12)), None)
    if python is None:
        pytest.skip("needs a Python before 3.12")
    options = {"python": python.path, "backend": backend}
    found = located(tmp_path, module, "import lib; lib.hook(1)", "import lib; lib.hook(0)", **options)
    leaf = next(ranked.suspect for ranked in found.suspects if ranked.suspect.function.qualname == "leaf")
    assert (leaf.executed, leaf.calls) == (True, (0, 0))
    assert "where it meets ValueError" in kinds(found, "leaf")["traceback"]
    (text,) = {warned.text.partition(": ")[2] for warned in found.comparison.warnings if warned.slug == "hook-lost"}
    assert ("recursion limit" in text) == (backend == "setprofile")
    module = UNHOOKED.format(call="return leaf(0) or x")
    found = located(tmp_path, module, "import lib; assert lib.hook(1) == 0", "import lib; lib.hook(1)", **options)
    assert found.comparison.blindness is not None
    assert "hook that records calls was lost in buggy, reference" in found.comparison.blindness
    assert "values" not in found.comparison.blindness


def test_functions_of_the_script_itself_are_no_suspects_for_their_place_in_the_traceback(tmp_path: Path) -> None:
    bad = "import lib\ndef own(): lib.leaf(1)\nown()"
    module = "def leaf(x): return 1 / (x - 1)"
    found = located(tmp_path, module, bad, "import lib; lib.leaf(0)", scope=(str(tmp_path / "project"),))
    assert suspects(found) == ["leaf"]


def test_module_level_code_alone_is_told_of(tmp_path: Path) -> None:
    found = located(tmp_path, "VALUE = 3", "import lib; assert lib.VALUE == 4", "import lib; assert lib.VALUE == 3")
    assert found.comparison.blindness == (
        "no function of the scope was called after its import: of lib.py only module-level code ran, with what it "
        "calls, and that is not recorded as calls"
    )


TWO = """
    def pick(x):
        if x > 3:
            return high(x)
        return low(x)

    def high(x):
        return 0

    def low(x):
        return x
"""


def test_each_reference_says_what_it_shows(tmp_path: Path) -> None:
    bad = "import lib; assert lib.pick(5) == 5"
    found = located(tmp_path, TWO, bad, ["import lib; assert lib.pick(2) == 2", "import lib; lib.pick(5)"])
    assert [(run.differing, run.alone) for run in found.runs] == [(None, None), (3, 3), (0, 0)]
    assert "reference-silent" in slugs(found)
    assert revealed(found.runs) == (
        "Functions that differ: beside reference-1 3 functions (3 there alone), "
        "beside reference-2 0 functions (0 there alone)."
    )
    assert revealed(found.runs[:2]) == ""


LOOP = """
    def run(numbers):
        for number in numbers:
            step(number)
        if numbers:
            last()

    def step(number):
        if number > 9:
            deep(number)

    def deep(number):
        return number

    def last():
        return None
"""


def test_a_caller_that_makes_such_calls_in_both_runs_is_told_by_their_number(tmp_path: Path) -> None:
    found = located(
        tmp_path, LOOP, "import lib; lib.run([1, 2, 3, 4]); exit(1)", "import lib; lib.run([1, 2]); lib.run([])"
    )
    assert kinds(found, "run")["parent-of-deleted"] == (
        "2 of its 4 calls of step have no counterpart in the reference run"
    )
    turned = located(tmp_path, LOOP, "import lib; lib.run([1, 2, 3]); exit(1)", "import lib; lib.run([1, 2, 3, 4])")
    assert kinds(turned, "run")["parent-of-inserted"] == (
        "1 of its 4 calls of step in the reference run has no counterpart here"
    )
    fresh = located(tmp_path, LOOP, "import lib; lib.run([1, 12]); exit(1)", "import lib; lib.run([1, 2])")
    assert kinds(fresh, "step")["parent-of-deleted"] == "calls deep, which it does not in the reference run"


def test_calls_in_another_order_are_told_as_such_and_only_by_an_exact_difference() -> None:
    here = CallTree.from_nested([["run", ["a", ["x"]], ["b"]]])
    there = CallTree.from_nested([["run", ["b"], ["a", ["y"]]]])
    exact = diff(here, there)
    run = Function("m.py", "run")
    found = difference_findings(exact)["parent-of-deleted"]
    assert found[run].detail == "calls a in another order than in the reference run"
    assert run not in difference_findings(replace(exact, exact=False))["parent-of-deleted"]


def test_a_call_that_is_refused_is_listed_though_it_never_began(tmp_path: Path) -> None:
    module = """
        class Printer:
            def show(self, kind, **options):
                return getattr(self, "show_" + kind)(**options)

            def show_sum(self):
                return "+"

            def show_power(self, exp=1):
                return "^"
    """
    found = located(
        tmp_path,
        module,
        "import lib; lib.Printer().show('sum', exp=2)",
        "import lib; lib.Printer().show('power', exp=2)",
    )
    refused = next(ranked for ranked in found.suspects if ranked.suspect.function.qualname == "Printer.show_sum")
    assert refused.suspect.executed
    assert refused.rank <= 2
    assert kinds(found, "Printer.show_sum")["traceback"] == (
        "was called with arguments that it does not take: got an unexpected keyword argument 'exp'"
    )


@pytest.mark.parametrize("message", ["f() is no call", "len() takes exactly one argument (2 given)"])
def test_a_type_error_of_no_function_of_the_project_lists_none(tmp_path: Path, message: str) -> None:
    bad = f"import lib; lib.pick(2); raise TypeError({message!r})"
    found = located(tmp_path, TWO, bad, "import lib; lib.pick(2)")
    assert all("traceback" not in kinds(found, name) for name in suspects(found))


def test_values_that_cannot_be_looked_into_are_not_called_the_same(tmp_path: Path) -> None:
    module = """
        import datetime, threading

        def late(due, guard):
            return due < datetime.date(2021, 1, 1)

        def locked(guard, sign):
            return sign()
    """
    bad = "import lib, datetime, threading; x = threading.Lock(); lib.late(datetime.date(2020, 1, 1), x)\n"
    good = bad.replace("2020", "2022") + "lib.locked(x, lambda: 2)"
    found = located(tmp_path, module, bad + "lib.locked(x, lambda: 1); exit(1)", good)
    assert "was given due=<date 2020-01-01>, but <date 2022-01-01>" in kinds(found, "late")["argument"]
    assert "origin" not in kinds(found, "late")
    assert "origin" not in kinds(found, "locked")
    assert kinds(found, "locked")["return"] == "returned 1, but 2 in the reference run"


def test_what_was_cut_is_the_same_only_as_far_as_it_was_seen(tmp_path: Path) -> None:
    module = """
        def at(rows, place):
            return rows[place]
    """
    script = "import lib; rows = [0] * 200; rows[150] = {}; lib.at(rows, 150)"
    found = located(tmp_path, module, script.format(1) + "; exit(1)", script.format(2))
    assert kinds(found, "at")["origin"] == (
        "called with the same arguments in both runs, as far as they were seen, returned 1, but 2 in the reference run"
    )


def test_generators_are_compared_by_what_they_gave(tmp_path: Path) -> None:
    module = """
        def double(rows):
            for row in rows:
                yield 2 * row

        def alike():
            yield "a"
            yield "b"

        def warm(row):
            return row
    """
    script = "import lib; {}; list(lib.double([2, {}])); list(lib.alike()); exit({})"
    found = located(tmp_path, module, script.format("lib.warm(9)", 3, 1), script.format("0", 4, 0))
    assert "absorber" not in kinds(found, "double")
    assert kinds(found, "double")["return"] == "yielded 4, 6, but yielded 4, 8 in the reference run"
    assert kinds(found, "alike") == {}


def test_chance_gives_no_evidence_of_lines_and_values(tmp_path: Path) -> None:
    module = """
        import os

        def coin():
            return os.urandom(8).hex()

        def pick(x):
            if coin() < "8":
                return low(x)
            return x

        def low(x):
            return -x
    """
    script = "import lib; [lib.pick(1) for _ in range(40)]"
    found = located(tmp_path, module, script, script)
    assert "runs-differ" in slugs(found)
    assert [e for ranked in found.suspects for e in ranked.suspect.evidence] == []


def test_the_writer_is_a_method_of_the_same_class_and_the_innermost(tmp_path: Path) -> None:
    module = """
        class Box:
            def outer(self, value):
                self.inner(value)

            def inner(self, value):
                self.value = value

            def read(self):
                return self.value + 1

        class Other:
            def put(self, value):
                self.value = value
    """
    script = "import lib; b, o = lib.Box(), lib.Other(); b.outer({0}); o.put({0}); b.read()"
    found = located(tmp_path, module, script.format(5) + "; exit(1)", script.format(7))
    assert kinds(found, "Box.inner")["writer"] == "last set self.value to 5, which differs when Box.read diverges"
    assert "writer" not in kinds(found, "Other.put")
    assert "writer" not in kinds(found, "Box.outer")


def test_a_function_whose_calls_are_unlike_in_two_looks_gives_no_values(tmp_path: Path) -> None:
    module = """
        import pathlib

        runs = pathlib.Path(__file__).with_name("runs")

        def step(run, n):
            if run == 5 and n == 3:
                n += 1
            return n

        def steady(n):
            return n
    """
    script = """
        import lib
        run = int(lib.runs.read_text()) if lib.runs.exists() else 0
        lib.runs.write_text(str(run + 1))
        for n in {}:
            lib.step(run, n), lib.steady(n)
    """
    found = located(tmp_path, module, script.format("3, 4"), script.format("5, 6"))
    assert "second-pass-differs" in slugs(found)
    assert kinds(found, "steady")["argument"] == "was given n=3, but 5 in the reference run"
    assert kinds(found, "step") == {}


def test_calls_of_other_threads_are_seen_closely(tmp_path: Path) -> None:
    module = """
        def half(x):
            if x % 2:
                return -1
            return x // 2

        def whole(x):
            return x
    """
    script = """
        import lib, threading
        from concurrent.futures import ThreadPoolExecutor
        lib.half(2)
        named = threading.Thread(target=lib.half, args=({},), name="worker")
        named.start(); named.join()
        for same in range(2):
            twin = threading.Thread(target=lib.whole, args=({},), name="twin")
            twin.start(); twin.join()
        with ThreadPoolExecutor(1) as pool:
            exit(0 if pool.submit(lib.half, 4).result() == 2 and {} == 6 else 1)
    """
    found = located(tmp_path, module, script.format(7, 7, 7), script.format(6, 6, 6))
    assert kinds(found, "half")["argument"] == "was given x=7, but 6 in the reference run (1 of 3 calls seen)"
    assert kinds(found, "half")["return"] == "returned -1, but 3 in the reference run (1 of 3 calls seen)"
    assert kinds(found, "half")["line"] == "took line 4 only in the buggy run"
    assert kinds(found, "whole") == {}  # two threads of one name are not told apart
    assert "second-pass-differs" not in slugs(found)


def test_an_order_that_follows_addresses_is_noise(tmp_path: Path) -> None:
    module = """
        class Node:
            def __init__(self, number):
                self.number = number

        def even(node):
            return node.number

        def odd(node):
            return node.number

        def walk(nodes):
            return [(odd if node.number % 2 else even)(node) for node in nodes]
    """
    script = "import lib; lib.walk({lib.Node(n) for n in range(200)})"
    found = located(tmp_path, module, script, script + "; n = 1")
    assert "runs-differ" in slugs(found)
    assert [run.repeats for run in found.runs] == [3, 3]
    assert [e for ranked in found.suspects for e in ranked.suspect.evidence] == []


def test_lines_are_not_compared_where_one_of_two_partners_was_lost(tmp_path: Path) -> None:
    module = """
        import pathlib

        runs = pathlib.Path(__file__).with_name("runs")

        def step(run, n):
            if (run, n) in ((5, 3), (8, 4)):
                n += 1
            if n == 3:
                n *= 2
            return n
    """
    script = """
        import lib
        run = int(lib.runs.read_text()) if lib.runs.exists() else 0
        lib.runs.write_text(str(run + 1))
        for n in range(6):
            lib.step(run, n)
    """
    found = located(tmp_path, module, script, script + "        n = 1")
    assert (tmp_path / "project" / "runs").read_text() == "10"
    assert {warning.text[:40] for warning in found.warnings if warning.slug == "second-pass-differs"} == {
        "buggy: 1 of 6 calls were not the same in",
        "reference-1: 1 of 6 calls were not the s",
    }
    assert [e for ranked in found.suspects for e in ranked.suspect.evidence] == []


def test_the_writer_wrote_to_the_very_object(tmp_path: Path) -> None:
    module = """
        class Box:
            def put(self, value):
                self.value = value

            def other_put(self, value):
                self.value = value

            def read(self):
                return self.value + 1
    """
    script = "import lib; b, c = lib.Box(), lib.Box(); b.put({0}); c.other_put({0}); b.read()"
    found = located(tmp_path, module, script.format(5) + "; exit(1)", script.format(7))
    assert kinds(found, "Box.put")["writer"] == "last set self.value to 5, which differs when Box.read diverges"
    assert "writer" not in kinds(found, "Box.other_put")


def test_an_absorber_returns_something_and_leaves_all_alike(tmp_path: Path) -> None:
    module = """
        class Box:
            def __init__(self):
                self.value = 0

            def put(self, value):
                self.value = value

            def kept(self, value):
                self.value = value
                return True

            def even(self, value):
                return value % 2 == 0
    """
    script = "import lib; b = lib.Box(); [f({}) for f in (b.even, b.put, lib.Box().kept)]"
    found = located(tmp_path, module, script.format(4) + "; exit(1)", script.format(6))
    assert kinds(found, "Box.even")["absorber"] == "was given another value of value, with the same outcome"
    for name in "Box.put", "Box.kept":
        assert "absorber" not in kinds(found, name)
        assert kinds(found, name)["exit-state"] == "left self.value as 4, but 6 in the reference run"


def test_what_one_of_several_references_shows_is_said_of_that_one(tmp_path: Path) -> None:
    module = """
        def check(x):
            if x > 1:
                raise ValueError(x)

        def start(x):
            check(x)
    """
    found = located(
        tmp_path,
        module,
        "import lib; lib.start(5)",
        ["import lib\ntry: lib.start(3)\nexcept ValueError: pass", "import lib; lib.start(1)", "import lib"],
    )
    said = kinds(found, "check")
    assert said["exception"] == "raises ValueError in the buggy run and not in reference-2"
    assert said["only-buggy"] == "runs once, in the buggy run and not in reference-3"
    assert not any("only in the buggy run" in clause for clause in said.values())


def test_lines_of_calls_that_were_not_all_seen_say_so(tmp_path: Path) -> None:
    module = """
        def often(x):
            if x == 3:
                return 0
            return x
    """
    loop = "import lib; [lib.often({} if i == 1 else 1) for i in range(1000)]"
    found = located(tmp_path, module, loop.format(3) + "; exit(1)", loop.format(2))
    assert kinds(found, "often")["line"] == (
        "took line 4 only in the buggy run, in the calls that were seen "
        "(150 of 1000 in the buggy run, 150 of 1000 in the reference run)"
    )


def test_an_argument_that_is_left_otherwise_is_told(tmp_path: Path) -> None:
    module = """
        def fill(out, x):
            out.append(x)
    """
    script = "import lib; lib.fill([], {})"
    found = located(tmp_path, module, script.format(5) + "; exit(1)", script.format(2))
    assert kinds(found, "fill")["exit-state"] == "left out as [5], but [2] in the reference run"


def test_reasons_name_their_reference_where_there_are_several(tmp_path: Path) -> None:
    bad = "import lib; assert lib.pick(5) == 5"
    found = located(tmp_path, TWO, bad, ["import lib; assert lib.pick(2) == 2", "import lib; lib.pick(1); lib.pick(1)"])
    assert kinds(found, "pick")["line"].endswith("in reference-1") or "reference-2" in kinds(found, "pick")["line"]
    details = [e.detail for ranked in found.suspects for e in ranked.suspect.evidence]
    assert not any("the reference run" in detail for detail in details)


def test_addresses_hashes_and_the_time_are_no_difference(tmp_path: Path) -> None:
    module = """
        import time

        class Thing:
            def __init__(self):
                self.key = id(self)
                self.cached = hash((self, 1))
                self.when = time.time()

            def stamp(self):
                return time.strftime("%Y-%m-%d %H:%M:%S")

            def number(self):
                return id(self)
    """
    script = "import lib; {}; thing = lib.Thing(); thing.stamp(); thing.number(); exit({})"
    padding = "pad = [bytearray(100 * n) for n in range(500)]; import json, decimal; time = __import__('time'); time.sleep(1.1)"
    found = located(tmp_path, module, script.format("pass", 1), script.format(padding, 0))
    assert [e for ranked in found.suspects for e in ranked.suspect.evidence] == []
