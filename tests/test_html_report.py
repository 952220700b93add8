"""The HTML report as a file: complete, inert whatever the programs are called, and of bounded size; and its flame frames
and trace events."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import shutil
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from small import located
from trees import NESTED, compared, raising
from xlocal.ranking.comparison import Comparison, Localization, RunSummary
from xlocal.ranking.evidence import CallView, Evidence, FunctionView, RankedSuspect, Suspect
from xlocal.ranking.source import SourceIndex
from xlocal.tracer.calltree import CallTree, Function
from xlocal.tracer.scope import Scope

from xlocal.aligned import align
from xlocal.cli import cli
from xlocal.flame import flame
from xlocal.html_report import document, page
from xlocal.perfetto import as_trace_events, chosen

NO_SOURCE = SourceIndex(Scope(()))
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&\u2028\x00\ud800'\"$data"


def a_localization(name: str = "f", *, count: int = 1, text: str = "runs once, only in the buggy run") -> Localization:
    """`count` suspects, the first with a view; every text that comes from programs is `text`."""
    functions = [Function(f"{name}.py", f"{name}{number or ''}") for number in range(count)]
    suspects = tuple(
        Suspect(function, 1, 2, calls=(1, 1), evidence=(Evidence("only-buggy", 0.5, text),)) for function in functions
    )
    call = CallView(1, ((text, text),), ((text, text),), text, None, ((1, 1),))
    view = FunctionView(functions[0], "reference-1", (((1, 1),), ((1, 2),)), ((call, call),))
    runs = (
        RunSummary("buggy", text, 1, text, text, 3, 2, 0.1, 2, True),
        RunSummary("reference-1", text, 0, None, None, 3, 2, 0.1, 2, True),
    )
    comparison = Comparison(runs, (), suspects, 1, 1, True, None, (view,))
    ranked = tuple(RankedSuspect(place, 1 / place, suspect) for place, suspect in enumerate(suspects, 1))
    return Localization("fused", text, runs, (), ranked, comparison)


def written(found: Localization, *pairs) -> tuple[str, dict]:
    """The page, and the data in it as a browser would read them."""
    text = page(document(found, NO_SOURCE, pairs))
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return text, json.loads(data)


def test_the_page_carries_everything_and_loads_nothing():
    text, data = written(a_localization(), compared([["f", ["g"]]], [["f"]]))
    assert data["suspects"][0]["reason"] == "Runs once, only in the buggy run."
    assert data["trees"][0]["heading"].startswith("buggy against reference-1: 1 call only in the buggy run")
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|data:)", text)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|https?://", text)


def test_the_policy_lets_only_the_page_s_own_script_and_style_run():
    text, _ = written(a_localization())
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        [inside] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_hostile_names_and_values_stay_text():
    pair = compared([[HOSTILE, ["g"]]], [[HOSTILE]])
    text, data = written(a_localization(HOSTILE, text=HOSTILE), pair)
    assert text.count("<script") == 2
    assert "<img" not in text
    text.encode("utf-8")
    assert data["functions"][0] == [f"{HOSTILE}.py", HOSTILE]
    assert "alert(1)" in data["suspects"][0]["evidence"][0][2]
    [title] = re.findall("<title>(.*?)</title>", text)
    assert "<" not in title


def test_the_script_never_makes_markup_from_text():
    text, _ = written(a_localization())
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)


def test_many_suspects_are_cut_and_that_is_said():
    text, data = written(a_localization(count=2100))
    assert len(data["suspects"]) == 2000
    assert data["limits"][0].startswith("100 suspects of low rank are left out")
    assert any("first 150 suspects" in limit for limit in data["limits"])
    assert len(text) < 1_500_000


def random_tree(calls: int, *, seed: int, changed: float = 0.0) -> CallTree:
    """A tree of calls at random; a share of its calls is of functions of its own."""
    draw, edit = random.Random(seed), random.Random(seed + 1)
    labels, parents, way = [-1], [-1], [0]
    for node in range(1, calls):
        labels.append(draw.randrange(100) + (100 if edit.random() < changed else 0))
        del way[draw.randrange(1, min(len(way), 14) + 1) :]
        parents.append(way[-1])
        way.append(node)
    functions = tuple(Function(f"m{label % 7}.py", f"f{label}") for label in range(200))
    return CallTree.from_columns(functions=functions, exceptions=(), label=labels, parent=parents)


@pytest.mark.parametrize(("changed", "whole"), [(0.0005, True), (0.4, False)])
def test_a_large_tree_stays_within_megabytes_and_says_what_is_missing(changed, whole):
    pair = compared(random_tree(60_000, seed=1, changed=changed), random_tree(60_000, seed=1), budget=0)
    text, data = written(a_localization(), pair)
    [tree] = data["trees"]
    assert len(tree["what"]) <= 40_001
    assert len(text) < 4_000_000
    assert tree["whole"] is False
    assert any("only counted" in limit for limit in data["limits"])
    assert any("did not fit" in limit for limit in data["limits"]) is not whole
    assert any("is a bound" in limit for limit in data["limits"]) is not pair.difference.exact


def test_a_small_tree_is_there_as_a_whole():
    pair = compared([["a", ["b"], ["c"]]], [["a", ["b"]]])
    _, data = written(a_localization(), pair)
    tree = data["trees"][0]
    names = [data["functions"][number][1] for number in tree["function"] if number >= 0]
    assert tree["whole"]
    assert sorted(names) == ["a", "b", "c"]


def test_columns_of_a_tree_are_of_one_length():
    _, data = written(a_localization(), compared(raising([["a", ["b"]]], "b"), CallTree.from_nested([["a", ["b"]]])))
    tree = data["trees"][0]
    columns = ("what", "depth", "kind", "function", "times", "buggy", "reference_calls", "edits", "told", "told_there")
    assert len({len(tree[column]) for column in columns}) == 1
    told = [
        (tree["texts"][here], tree["texts"][there])
        for here, there in zip(tree["told"], tree["told_there"], strict=True)
    ]
    assert ("raised Odd", "returned") in told


# --- the command --------------------------------------------------------------------------------------------------------

MODULE = """
    def top(odd):
        return second() if odd else 0

    def second():
        return 1
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    located(folder, MODULE, "import lib; lib.top(True)", "import lib; lib.top(False)")
    return folder / "session"


def run(*arguments: str):
    return CliRunner().invoke(cli, list(arguments), prog_name="xlocal")


def test_report_writes_one_file_and_prints_its_name(session, tmp_path):
    result = run("report", "--session", str(session), "-o", str(tmp_path / "r.html"))
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'r.html'}\n")
    text = (tmp_path / "r.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "return second() if odd else 0" in text


def test_report_without_output_lies_in_the_session(session):
    result = run("report", "--session", str(session))
    assert result.stdout == f"{session / 'report.html'}\n"
    assert (session / "report.html").exists()


def test_rank_prints_the_same_page(session):
    assert (
        run("rank", "--session", str(session), "--format", "html").stdout
        == run("report", "--session", str(session), "-o", "-").stdout
    )


def test_a_report_without_recordings_says_so(session, tmp_path):
    shutil.copytree(session, tmp_path / "s", ignore=shutil.ignore_patterns("recordings"))
    result = run("report", "--session", str(tmp_path / "s"), "-o", "-")
    assert result.exit_code == 0
    assert '"trees":[]' in result.stdout
    assert "second" in result.stdout
    [line] = result.stderr.splitlines()
    assert line.startswith("warning: recordings-unread: the report shows no trees: ")
    assert str(tmp_path / "s" / "recordings" / "buggy") in line
    assert '["recordings-unread","the report shows no trees: ' in result.stdout


def test_report_in_markdown_goes_to_stdout(session):
    assert run("report", "--session", str(session), "--format", "markdown").stdout.startswith("# Suspects")


@pytest.mark.parametrize("options", [("--open", "-o", "-"), ("--open", "--format", "markdown")])
def test_report_refuses_what_cannot_be(session, options):
    result = run("report", "--session", str(session), *options)
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("form", ["html", "markdown", "perfetto"])
def test_an_output_that_cannot_be_written_is_one_line(session, tmp_path, form):
    file = tmp_path / "none" / "r.html"
    result = run("report", "--session", str(session), "--format", form, "-o", str(file))
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == f"xlocal: {file}: cannot write the output: No such file or directory\n"


@pytest.mark.parametrize("command", [("report", "-o", "-"), ("diff",), ("diff", "--json"), ("explain", "second")])
def test_quiet_prints_the_same(session, command):
    loud, quiet = (run(*command, "--session", str(session), *options) for options in ((), ("-q",)))
    assert loud.exit_code == quiet.exit_code == 0
    assert loud.stdout == quiet.stdout


def test_a_function_of_one_run_is_shown_by_its_calls(session):
    data = json.loads(
        re.findall(r'id="data">(.*?)</script>', run("report", "--session", str(session), "-o", "-").stdout)[0]
    )
    [second] = [one for one in data["suspects"] if data["functions"][one["function"]][1] == "second"]
    assert second["views"] == []
    assert "only the buggy run calls it" in second["unseen"]
    assert second["around"] == [["Once called in the buggy run, by top.", "Every call returned."]]
    [top] = [one for one in data["suspects"] if data["functions"][one["function"]][1] == "top"]
    assert top["views"][0]["title"].endswith("all 1 in the buggy run, all 1 in reference-1")
    assert "around" not in top


# --- flame --------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(NESTED, NESTED)
def test_flame_frames_sum_up_the_calls_of_each_path(bad, good):
    pair = compared(bad, good)
    frames = flame(pair.difference, align(pair.difference))
    assert frames.buggy.sum() == len(pair.buggy.tree)
    assert frames.reference.sum() == len(pair.reference.tree)
    assert frames.edits[0] == pair.difference.cost
    assert (frames.parent[1:] < np.arange(1, len(frames.parent))).all()
    inside = Counter()
    for frame in range(1, len(frames.parent)):
        inside[frames.parent[frame]] += int(frames.width[frame])
    assert all(frames.width[above] > total for above, total in inside.items())


def paths(tree: CallTree) -> Counter[tuple[str, ...]]:
    """How often each path of names is called."""
    way: list[tuple[str, ...]] = [()]
    for node in range(1, len(tree)):
        way.append((*way[tree.parent[node]], tree.functions[tree.label[node]].qualname))
    return Counter(way)


@settings(deadline=None)
@given(NESTED, NESTED)
def test_a_stack_never_mixes_the_runs(bad, good):
    pair = compared(bad, good, budget=0)
    rows = align(pair.difference)
    frames = flame(pair.difference, rows)
    shown: list[tuple[str, ...]] = []
    for above, label in zip(frames.parent.tolist(), frames.label.tolist(), strict=True):
        shown.append((*shown[above], rows.functions[label].qualname) if above >= 0 else ())
    for counts, tree in ((frames.buggy, pair.buggy.tree), (frames.reference, pair.reference.tree)):
        assert Counter(dict(zip(shown, counts.tolist(), strict=True))) == paths(tree)


def test_few_frames_keep_the_widest_and_those_that_differ():
    bad = [["top", *[[f"f{n}"] for n in range(50)], ["wide", *[["x"]] * 40], ["odd", ["new"]]]]
    good = [["top", *[[f"f{n}"] for n in range(50)], ["wide", *[["x"]] * 40], ["odd"]]]
    difference = compared(bad, good).difference
    rows = align(difference)
    frames = flame(difference, rows, most=10)
    names = [rows.functions[label].qualname for label in frames.label[1:]]
    assert {"top", "wide", "x", "odd", "new"} <= set(names)
    assert len(frames.parent) <= 10
    assert frames.left_out == 56 - len(frames.parent)


# --- trace events -------------------------------------------------------------------------------------------------------


def checked_events(text: str) -> list[dict]:
    """The complete events of a trace, after checks from the trace event format: known phases, the fields each needs,
    whole numbers, and on each thread events that lie within one another or apart."""
    document = json.loads(text)
    assert set(document) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    tracks: dict[tuple[int, int], list[dict]] = {}
    for event in document["traceEvents"]:
        assert event["ph"] in "XM"
        assert {"name", "ph", "ts", "pid", "tid", "args"} <= set(event)
        assert all(isinstance(event[key], int) and event[key] >= 0 for key in ("ts", "pid", "tid"))
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index")
        else:
            assert event["dur"] > 0
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in tracks.values():
        ends: list[int] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1]
            ends.append(event["ts"] + event["dur"])
    return [event for events in tracks.values() for event in events]


@settings(deadline=None)
@given(NESTED, NESTED)
def test_trace_events_are_nested_and_matched_calls_stand_at_the_same_tick(bad, good):
    pair = compared(bad, good)
    text, left_out = as_trace_events([pair])
    events = checked_events(text)
    assert left_out == 0
    assert len(events) == len(pair.buggy.tree) + len(pair.reference.tree) - 2
    here, there = ({(e["ts"], e["dur"], e["name"]) for e in events if e["pid"] == process} for process in (1, 2))
    assert len(here & there) == int((pair.difference.match[1:] >= 0).sum())


def test_trace_events_tell_the_differences():
    events = checked_events(as_trace_events([compared(raising([["f", ["g"], ["h"]]], "f"), [["f", ["g"]]])])[0])
    by_name = {(event["name"], event["pid"]): event for event in events}
    assert by_name["h", 1]["cat"] == "only in the buggy run"
    assert by_name["f", 1]["args"]["ended"] == "raised Odd"
    assert by_name["f", 2]["args"]["ended"] == "returned"


def test_too_many_events_keep_the_differences_and_the_largest_calls():
    rows = align(compared(random_tree(3000, seed=2, changed=0.01), random_tree(3000, seed=2)).difference)
    kept = chosen(rows, most=2000)
    assert len(kept) <= 2000
    assert set(np.flatnonzero(rows.differs)) <= set(kept.tolist())


def test_perfetto_is_a_format_of_the_command(session, tmp_path):
    result = run("report", "--session", str(session), "--format", "perfetto", "-o", str(tmp_path / "t.json"))
    assert result.exit_code == 0
    assert {event["name"] for event in checked_events((tmp_path / "t.json").read_text())} == {"top", "second"}
