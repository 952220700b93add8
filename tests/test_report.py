"""Reports: text for every width of terminal, JSON as the contract has it, markdown that shows names as they are."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from xlocal.ranking.comparison import Comparison, Localization, RunSummary
from xlocal.ranking.evidence import Evidence, RankedSuspect, Suspect
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import Warned

from xlocal.doctor import Check
from xlocal.report import as_json, as_markdown, make_console, outcome, print_checks, print_demo, print_text, reason

RUNS = (
    RunSummary("buggy", "buggy.py", 1, "NotFound", "404 Not Found:\nno \x1b[31mpage", 1234, 56, 0.2, 2, True),
    RunSummary("reference-1", "-m pkg.tool x", 0, None, None, 1, 1, 0.1, 2, True),
)
SUSPECTS = (
    Suspect(
        Function("pkg/routing/matcher.py", "StateMachineMatcher.match"),
        10,
        42,
        calls=(3, 1),
        evidence=(Evidence("count", 0.2, "runs 3 times, once there"), Evidence("line", 0.9, "line 12 runs only here")),
    ),
    Suspect(Function("pkg/__init__.py", "__call__"), 0, 0, executed=False),
    Suspect(Function("pkg/very_long_module_name_indeed.py", "Ünïcode." + "x" * 60), 7, 9, calls=(2, 2)),
)


def a_localization(suspects=SUSPECTS, *, warnings=(), **comparison) -> Localization:
    compared = Comparison(**{
        "runs": RUNS, "warnings": (), "suspects": suspects, "cost": 14, "lower": 14, "exact": True, "blindness": None,
    } | comparison)  # fmt: skip
    ranked = tuple(RankedSuspect(place, 1 / place, suspect) for place, suspect in enumerate(suspects, 1))
    return Localization("fused", "the issue", RUNS, tuple(warnings), ranked, compared)


def text_of(found: Localization, *, width: int = 100, top: int = 20, next_steps: tuple[str, ...] = ()) -> str:
    console = make_console(io.StringIO())
    console.width = width
    print_text(found, console, top=top, next_steps=next_steps)
    return console.file.getvalue()


# --- JSON ---------------------------------------------------------------------------------------------------------------


def test_json_has_exactly_the_keys_of_schema_1():
    document = json.loads(as_json(a_localization(warnings=[Warned("hook-lost", "text")]), top=20))
    assert list(document) == ["schema", "ranker", "issue", "runs", "warnings", "suspects"]
    assert (document["schema"], document["ranker"], document["issue"]) == (1, "fused", "the issue")
    assert document["warnings"] == [{"slug": "hook-lost", "text": "text"}]
    assert document["runs"] == [dataclasses.asdict(run) for run in RUNS]
    assert document["suspects"][0] == {
        "rank": 1,
        "score": 1.0,
        "function": {
            "path": "pkg/routing/matcher.py",
            "qualname": "StateMachineMatcher.match",
            "line": 10,
            "end_line": 42,
        },
        "evidence": [
            {"kind": "count", "weight": 0.2, "detail": "runs 3 times, once there"},
            {"kind": "line", "weight": 0.9, "detail": "line 12 runs only here"},
        ],
    }


def test_json_holds_the_first_suspects_only():
    assert [item["rank"] for item in json.loads(as_json(a_localization(), top=2))["suspects"]] == [1, 2]


def test_json_says_why_nothing_was_found():
    document = json.loads(as_json(a_localization((), blindness="both runs are equal", cost=0, lower=0), top=20))
    assert document["suspects"] == []
    assert [warning["slug"] for warning in document["warnings"]] == ["nothing-found"]
    assert "'buggy.py' (1,234 calls, 56 functions)" in document["warnings"][0]["text"]
    assert "Both runs are equal." in document["warnings"][0]["text"]


# --- text ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 87, 88, 100, 120, 200])
def test_text_fits_every_width_and_names_every_suspect(width):
    warnings = [Warned("hook-lost", "the program set its own profile function and some calls were not seen")]
    text = text_of(a_localization(warnings=warnings), width=width, next_steps=("xlocal rank --format json",))
    # Names and places are whole at any width, to be searched for and clicked.
    whole = (
        [run.command for run in RUNS] + [s.function.qualname for s in SUSPECTS] + [s.function.path for s in SUSPECTS]
    )
    assert all(any(name in line for line in text.splitlines()) for name in whole)
    assert all(len(line) <= width or any(name in line for name in whole) for line in text.splitlines())
    assert "pkg/routing/matcher.py:10" in text
    assert not any(line.endswith(" ") for line in text.splitlines() if width < 88)
    squeezed = "".join(text.split())
    for place in (
        "StateMachineMatcher",
        "Line12runsonlyhere",
        "hook-lost",
        "xlocalrank--formatjson",
        "differby14edits",
    ):
        if width < 88:
            assert place.replace(" ", "") in squeezed


def test_text_shows_runs_distance_suspects_and_what_to_type_next():
    text = text_of(a_localization(), width=160, next_steps=("xlocal rank",))
    lines = text.splitlines()
    assert lines[0].split("  ")[0] == "buggy"
    assert "exit 1, NotFound: 404 Not Found: no [31mpage" in lines[0]
    assert lines[0].endswith("1,234 calls, 56 functions")
    assert lines[1].endswith("1 call, 1 function")
    assert "The call trees differ by 14 edits (exact)." in lines
    first = next(line for line in lines if "StateMachineMatcher.match" in line)
    assert first.split()[:3] == ["1", "StateMachineMatcher.match", "pkg/routing/matcher.py:10"]
    assert "Line 12 runs only here." in first
    assert first.endswith("1.000")
    assert lines[-2:] == ["Next", "  xlocal rank"]


def test_no_control_characters_of_the_program_reach_the_terminal():
    for render in (text_of(a_localization()), as_markdown(a_localization(), top=9)):
        assert all(char.isprintable() or char == "\n" for char in render)


def test_a_bound_is_told_from_an_exact_distance():
    assert "differ by 3 to 14 edits (a bound, not exact)" in text_of(a_localization(exact=False, lower=3))
    assert "differ by 1 edit (exact)" in text_of(a_localization(cost=1, lower=1))
    assert "The call trees are equal." in text_of(a_localization(cost=0, lower=0))


def test_suspects_beyond_the_top_are_counted():
    assert "2 more functions not shown (--top 3)" in text_of(a_localization(), top=1)
    assert "more function" not in text_of(a_localization(), top=3)


def test_nothing_found_says_what_was_compared_and_why():
    text = " ".join(text_of(a_localization((), blindness="no function of the scope ran"), width=60).split())
    assert "No suspects. Compared 'buggy.py' (1,234 calls, 56 functions) with '-m pkg.tool x'" in text
    assert "No function of the scope ran." in text


@pytest.mark.parametrize(
    ("place", "issue", "expected"),
    [
        (0, None, "Line 12 runs only here."),
        (0, "text", "Line 12 runs only here."),
        (1, "text", "Did not run in the buggy run."),
        (2, None, "Runs twice in the buggy run; no evidence was seen."),
        (2, "text", "Listed for its likeness to the issue text; no evidence was seen."),
    ],
)
def test_the_reason_is_one_sentence_from_the_strongest_evidence(place, issue, expected):
    assert reason(a_localization().suspects[place], issue=issue) == expected


def test_the_rankers_that_read_no_text_say_what_placed_a_function():
    ranked = dataclasses.replace(a_localization().suspects[2], score=3.0)
    assert reason(ranked, issue="text", ranker="commits").startswith("Changed 3 times in the year before; ")
    assert reason(ranked, issue="text", ranker="proximity").startswith("Placed by nearness in the call tree")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "exit 0"),
        ({"exit_status": 3}, "exit 3"),
        ({"exit_status": None}, "no exit status"),
        ({"exit_status": -9}, "killed by SIGKILL"),
        ({"exit_status": -15}, "killed by SIGTERM"),
        ({"exit_status": -99}, "killed by signal 99"),
        ({"exit_status": 1, "exception": "KeyError"}, "exit 1, KeyError"),
        ({"exit_status": 1, "exception": "E", "message": "x" * 500}, "exit 1, E: " + "x" * 157 + "..."),
    ],
)
def test_outcomes(values, expected):
    assert outcome(dataclasses.replace(RUNS[1], **values)) == expected


def test_colour_only_where_it_is_wanted(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in text_of(a_localization())
    for wanted in (True, False):
        if not wanted:
            monkeypatch.setenv("NO_COLOR", "1")
        console = make_console(Terminal())
        print_text(a_localization(), console, top=20)
        assert ("\x1b[36m" in console.file.getvalue()) is wanted


def test_ascii_terminals_get_ascii_lines():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    console = make_console(file)
    print_text(a_localization(), console, top=20)
    file.flush()
    assert b"StateMachineMatcher" in file.buffer.getvalue()
    assert b"\\u25" not in file.buffer.getvalue()


# --- markdown -----------------------------------------------------------------------------------------------------------


def test_markdown_lists_all_evidence_strongest_first():
    text = as_markdown(a_localization(warnings=[Warned("hook-lost", "a `b` *c*")]), top=2)
    lines = text.splitlines()
    assert lines[0] == "# Suspects"
    assert "1. `StateMachineMatcher.match` in `pkg/routing/matcher.py:10`, 1.000" in lines
    place = lines.index("   - Line 12 runs only here.")
    assert lines[place + 1] == "   - Runs 3 times, once there."
    assert "2. `__call__` in `pkg/__init__.py`, 0.500" in lines
    assert "- `hook-lost`: a \\`b\\` \\*c\\*" in lines
    assert "Ünïcode" not in text


def test_a_pipe_in_a_message_does_not_break_the_table_of_runs():
    runs = (dataclasses.replace(RUNS[0], message="a | b", command="x.py '|' `y`"),)
    found = dataclasses.replace(a_localization(), runs=runs)
    row = next(line for line in as_markdown(found, top=1).splitlines() if line.startswith("| buggy"))
    assert row.replace("\\|", "").count("|") == 6


# --- demo and doctor ----------------------------------------------------------------------------------------------------


def printed(function, *arguments, **options) -> str:
    console = make_console(io.StringIO())
    function(*arguments, console, **options)
    return console.file.getvalue()


def test_the_demo_ends_with_its_explanation_and_the_next_steps():
    lines = printed(print_demo, a_localization(), explanation=("It fails.",), next_steps=("do this",)).splitlines()
    assert lines[-5:] == ["What this shows", "  It fails.", "", "Next", "  do this"]


def test_checks_are_grouped_and_say_what_to_install():
    checks = (
        Check("tools", "git", True, "/usr/bin/git", "git"),
        Check("tools", "uv", False, "not found", "pip install uv"),
    )
    assert printed(print_checks, checks).splitlines() == [
        "tools",
        "  yes git: /usr/bin/git",
        "  no  uv: not found",
        "      to get it: pip install uv",
    ]
