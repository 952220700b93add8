"""The second pass: lines and values of chosen calls, on every interpreter, without touching the program."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from probed import Probe, on_each_probe, run_probed
from xlocal.tracer.closeup import CUT, UNKNOWN, CallKey, CallRecord, Closeup, Value, steady

EVERY_CALL = [[0, 1000]]


def seen(probe: Probe, folder: Path, source: str, names: Iterable[str], ranges: Any = None) -> Closeup:
    """Run `source` with a close look at the functions `names`, which are numbered in this order."""
    lines = textwrap.dedent(source).splitlines()
    functions = []
    for name in names:
        line = next(number for number, text in enumerate(lines, 1) if f"def {name}(" in text)
        functions.append([str(folder / "main.py"), line, name, ranges or EVERY_CALL])
    run = run_probed(probe, folder, source, focus={"functions": functions})
    assert run.status == 0, run.stderr
    return Closeup.load(run.folder / "main.xtrace")


def previews(values: Any) -> dict[str, str]:
    return {name: value.preview for name, value in values.items()}


@on_each_probe
def test_threads_are_told_apart_by_name(probe: Probe, tmp_path: Path) -> None:
    source = """
        import threading

        class Quiet(threading.Thread):
            def run(self):
                put(3)

        def put(x):
            return -x

        put(1)
        for thread in threading.Thread(target=put, args=(2,), name="worker"), Quiet(name="quiet"):
            thread.start()
            thread.join()
    """
    calls = seen(probe, tmp_path, source, ["put"]).calls
    given = {key.thread: record.before["x"].preview for key, record in calls.items()}
    assert given == {"": "1", "worker": "2", "thread 2": "3"}


@on_each_probe
def test_a_call_is_seen_from_arguments_to_result(probe: Probe, tmp_path: Path) -> None:
    source = """
        class Box:
            def put(self, x, *rest, **more):
                if x > 1:
                    self.held = x
                else:
                    self.held = None
                return len(rest)

        box = Box()
        box.put(1)
        box.put(2, 3, 4, key="v")
    """
    calls = seen(probe, tmp_path, source, ["put"]).calls
    first, second = calls[CallKey(0, "", 0)], calls[CallKey(0, "", 1)]
    assert previews(first.before) == {"self": "<Box>", "x": "1", "rest": "()", "more": "{}"}
    assert previews(first.after)["self.held"] == "None"
    assert first.out.preview == "0"
    assert first.lines == {4: 1, 7: 1, 8: 1}
    assert previews(second.before)["more"] == "{'key': 'v'}"
    assert previews(second.before)["self.held"] == "None"
    assert previews(second.after)["self.held"] == "2"
    assert second.out.preview == "2"


@on_each_probe
def test_exceptions_that_leave_and_those_that_do_not(probe: Probe, tmp_path: Path) -> None:
    source = """
        def fail(x):
            return {}[x]

        def catch(x):
            try:
                fail(x)
            except KeyError:
                pass

        def loop(items):
            for item in items:
                item
            return None

        catch(1)
        loop([1])
    """
    calls = seen(probe, tmp_path, source, ["fail", "catch", "loop"]).calls
    assert [calls[CallKey(number, "", 0)].error for number in range(3)] == ["KeyError", None, None]


@on_each_probe
def test_generators_are_one_call_each(probe: Probe, tmp_path: Path) -> None:
    source = """
        def count(n):
            for i in range(n):
                yield i

        list(count(2))
        list(count(2))
        list(count(3))
    """
    calls = seen(probe, tmp_path, source, ["count"]).calls
    records = [calls[CallKey(0, "", number)] for number in range(3)]
    assert len(calls) == 3
    assert records[0].out.digest == records[1].out.digest != records[2].out.digest
    assert [record.lines[4] for record in records] == [2, 2, 3]


@on_each_probe
def test_hostile_values_are_recorded_and_unharmed(probe: Probe, tmp_path: Path) -> None:
    source = """
        class Hostile:
            def __repr__(self): raise ValueError("repr")
            __str__ = __format__ = __repr__
            def __eq__(self, other): raise ValueError("eq")
            def __hash__(self): raise ValueError("hash")
            def __getattr__(self, name): raise ValueError("getattr")
            def __getattribute__(self, name): raise ValueError("getattribute")
            def __len__(self): raise ValueError("len")
            def __iter__(self):
                while True: pass
            def __bool__(self): raise ValueError("bool")

        class Meta(type):
            def __getattribute__(cls, name):
                while True: pass
            def __instancecheck__(cls, other): raise ValueError("instancecheck")

        class Slots:
            __slots__ = ("a", "b")
            def __init__(self): self.a = 1

        class Lazy:
            @property
            def value(self): raise ValueError("property")

        class ListOf(list):
            def __iter__(self): raise ValueError("iter")
            def __len__(self): raise ValueError("len")

        def take(x):
            return None

        class Unordered(type):
            def mro(cls):
                take(cls)  # has no bases yet
                return type.mro(cls)

        Unordered("U", (), {})
        loop = [1]
        loop.append(loop)
        ring = Slots()
        ring.b = ring
        deep = []
        for _ in range(100000):
            deep = [deep]
        for value in (Hostile(), Meta("M", (), {}), Slots(), ring, Lazy(), ListOf([1]), loop, deep,
                      b"x" * 100000000, "y" * 1000000, 10 ** 5000, {1: Hostile()}, [Hostile()] * 100000,
                      object(), take, Slots, len, ValueError("v"), float("nan"), {3, 1, 2}):
            take(value)
        while type(deep) is list and deep:
            deep = deep.pop()
        print("unharmed")
    """
    closeup = seen(probe, tmp_path, source, ["take"])
    given = [record.before["x"].preview for record in closeup.calls.values()]
    assert len(given) == 21
    assert given[0] == "class:U"
    assert given[1:8] == [
        "<Hostile>", "class:M", "<Slots a=1>", "<Slots a=1 b=^0>", "<Lazy>", "ListOf[1]", "[1, ^0]",
    ]  # fmt: skip
    assert given[-1] == "set{1, 2, 3}"


@on_each_probe
def test_metaclasses_of_the_program_are_not_asked(probe: Probe, tmp_path: Path) -> None:
    source = """
        class Meta(type):
            def __eq__(cls, other): raise ValueError("eq")
            def __hash__(cls): raise ValueError("hash")
            @property
            def __name__(cls): raise ValueError("name")
            @property
            def __module__(cls): raise ValueError("module")

        Odd = Meta("Odd", (), {"__slots__": ("part",)})
        Deep = Meta("Deep", (dict,), {})

        def take(x):
            return None

        for value in Odd(), Odd, Deep(a=1), Odd().__str__, [].append:
            take(value)
    """
    closeup = seen(probe, tmp_path, source, ["take"])
    assert [record.before["x"].preview for record in closeup.calls.values()][:3] == [
        "<Odd>",
        "class:Odd",
        "Deep{'a': 1}",
    ]
    assert (len(closeup.calls), closeup.warnings) == (5, ())


UNSEEN = {
    "a subclass of a type in C": "Queue([1])",
    "an object that holds one": "[Holder(Queue([1]))]",
    "a class made anew": "type('Made', (), {})",
    "a bound method in C": "[1].append",
    "a generator": "(n for n in [1])",
    "an address in a text": "'<Thing at 0x7f00deadbeef>'",
    "the time of day": "time.time() + 3600",
    "the date of today": "str(datetime.datetime.now())",
    "a file": "open(os.devnull)",
}
SEEN = {
    "a slice": "slice(1, 2)",
    "a deque": "collections.deque([1])",
    "a view": "{1: 2}.items()",
    "a range": "range(3)",
    "a pattern": "re.compile('a')",
    "a namespace": "types.SimpleNamespace(a=1)",
    "an array": "array.array('i', [1, 2])",
    "a class": "Holder",
    "a date": "datetime.date(2020, 1, 2)",
}
UNLIKE = {
    "attributes of a list": ("Rows([1], 1)", "Rows([1], 2)"),
    "attributes of an exception": ("Failed(1)", "Failed(2)"),
    "high bits": ("1 << 300", "3 << 299"),
    "defaults": ("made(1)", "made(2)"),
    "a line break": (r"'a\nb'", "'a b'"),
    "spaces": ("' a'", "'  a'"),
    "a namespace": ("types.SimpleNamespace(a=1)", "types.SimpleNamespace(a=2)"),
    "control characters": (r"'\x01'", r"'\x02'"),
    "a named number": ("Level.LOW", "Level.HIGH"),
    "late items of a view": ("{**many, 1: 2}.values()", "{**many, 1: 3}.values()"),
}
KINDS_OF_VALUES = """
    import array, collections, datetime, enum, os, re, time, types

    class Queue(collections.deque): pass
    class Holder:
        def __init__(self, part): self.part = part
    class Rows(list):
        def __init__(self, rows, mark):
            list.__init__(self, rows)
            self.mark = mark
    class Failed(Exception):
        def __init__(self, code): self.code = code
    Level = enum.IntEnum("Level", "LOW HIGH")
    many = {{1: 0}}
    def made(n):
        def inner(x=n): return x
        return inner
    def take(x): return None
    for value in [{}]: take(value)
"""


def digests(probe: Probe, folder: Path, values: Sequence[str]) -> list[Value]:
    """What a call that is given each of these expressions is seen with."""
    calls = seen(probe, folder, KINDS_OF_VALUES.format(", ".join(values)), ["take"]).calls
    return [record.before["x"] for record in calls.values()]


@on_each_probe
def test_what_cannot_be_looked_into_is_unknown(probe: Probe, tmp_path: Path) -> None:
    found = dict(zip(UNSEEN, digests(probe, tmp_path, list(UNSEEN.values())), strict=True))
    assert {what for what, value in found.items() if not value.digest.endswith(UNKNOWN)} == set()


@on_each_probe
def test_plain_values_of_types_in_c_are_known(probe: Probe, tmp_path: Path) -> None:
    found = dict(zip(SEEN, digests(probe, tmp_path, list(SEEN.values())), strict=True))
    assert {what for what, value in found.items() if value.digest.endswith((UNKNOWN, CUT))} == set()


@on_each_probe
def test_values_that_differ_have_other_digests_and_previews(probe: Probe, tmp_path: Path) -> None:
    found = digests(probe, tmp_path, [text for pair in UNLIKE.values() for text in pair])
    pairs = list(zip(UNLIKE, found[::2], found[1::2], strict=True))
    assert [what for what, one, other in pairs if one.digest == other.digest or one.preview == other.preview] == []


@on_each_probe
def test_a_coroutine_is_seen_by_what_it_returns(probe: Probe, tmp_path: Path) -> None:
    source = """
        class Later:
            def __await__(self):
                yield 1

        async def work(n):
            await Later()
            return n

        for n in 7, 8:
            running = work(n)
            try:
                while True:
                    running.send(None)
            except StopIteration:
                pass
    """
    calls = seen(probe, tmp_path, source, ["work"]).calls
    assert [record.out.preview for record in calls.values()] == ["7", "8"]


@on_each_probe
def test_free_variables_count_as_given(probe: Probe, tmp_path: Path) -> None:
    source = """
        def make(n):
            def inner(x):
                return x + n
            return inner

        make(1)(2)
        make(5)(2)
    """
    calls = seen(probe, tmp_path, source, ["inner"]).calls
    assert [previews(record.before) for record in calls.values()] == [{"x": "2", "n": "1"}, {"x": "2", "n": "5"}]


@on_each_probe
def test_digests_do_not_depend_on_addresses(probe: Probe, tmp_path: Path) -> None:
    source = """
        import os
        class Thing: pass
        def take(*things): pass
        keep = [Thing() for _ in range(os.getpid() % 100)]
        take(Thing(), repr(Thing()), Thing, take)
    """
    one = seen(probe, tmp_path, source, ["take"]).calls[CallKey(0, "", 0)]
    other = seen(probe, tmp_path, source, ["take"]).calls[CallKey(0, "", 0)]
    assert one.before["things"].digest == other.before["things"].digest


@on_each_probe
def test_only_the_asked_calls_are_seen(probe: Probe, tmp_path: Path) -> None:
    source = """
        def f(x): return x
        def g(x): return x
        for i in range(10):
            f(i)
            g(i)
    """
    calls = seen(probe, tmp_path, source, ["f"], ranges=[[2, 4], [9, 10]]).calls
    assert [previews(record.before)["x"] for record in calls.values()] == ["2", "3", "9"]


@on_each_probe
def test_a_program_that_sets_its_own_trace_function_is_told(probe: Probe, tmp_path: Path) -> None:
    source = """
        import sys
        def f(x): return x
        f(1)
        sys.settrace(None)
        f(2)
    """
    closeup = seen(probe, tmp_path, source, ["f"])
    assert len(closeup.calls) == 1
    assert [warning.slug for warning in closeup.warnings] == ["focus-lost"]


def record(**changes: Any) -> CallRecord:
    plain: dict[str, Any] = {"before": {}, "after": {}, "out": Value("1", "1"), "error": None, "lines": {1: 1}}
    return CallRecord(**{**plain, **changes})


@pytest.mark.parametrize(
    ("other", "kept"),
    [
        (record(), True),
        (record(lines={1: 2}), False),
        (record(error="ValueError"), False),
        (record(out=Value("2", "2")), True),
    ],
)
def test_what_repeats_do_not_agree_on_is_dropped(other: CallRecord, kept: bool) -> None:
    key = CallKey(0, "", 0)
    common = steady([Closeup({key: record()}, ()), Closeup({key: other}, ())])
    assert (key in common.calls) == kept
    if kept and other.out.digest == "2":
        assert common.calls[key].out.digest == UNKNOWN


def test_a_second_pass_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    import sys

    probe = Probe(sys.executable, sys.version_info[:2], "setprofile")
    source = "def f(x): return x\nfor i in range(1200): f(i)\n"
    whole = seen(probe, tmp_path, source, ["f"], ranges=[[0, 2000]])
    file = tmp_path / "out" / "main.xtrace"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 2 // 3])
    cut = Closeup.load(file)
    assert len(whole.calls) == 1200
    assert 0 < len(cut.calls) < 1200
