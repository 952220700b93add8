"""The localization benchmark on a small repository of its own: recorded, ranked, summarized, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ablation
import localization
import numpy as np
import pytest
import rates
from environments import Case, UnavailableError, environment, find_interpreter, load_cases, place_of
from outcomes import Held, Outcome, spreads, summarize, summarize_kinds
from trials import Trial
from xlocal.ranking.evidence import Evidence, Suspect
from xlocal.tracer.calltree import Function

PACKAGE = {
    "prices.py": """
from rounding import rounded

def total(prices):
    return rounded(sum(prices))

def show(prices):
    return format_total(total(prices))

def format_total(amount):
    return f"{amount:.2f}"
""",
    "rounding.py": """
def rounded(amount):
    if amount < 0:
        return negative(amount)
    return int(amount * 100) / 100

def negative(amount):
    return int(amount * 10) / 10
""",
}


@pytest.fixture
def folder(tmp_path):
    """A folder of cases with one repository case, and its prepared checkout beside it."""
    case, repo = tmp_path / "cases" / "shop__shop-1", tmp_path / "checkouts" / "shop__shop-1" / "repo"
    case.mkdir(parents=True)
    repo.mkdir(parents=True)
    for name, source in PACKAGE.items():
        (repo / name).write_text(source)
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    (repo.parent / "python").write_text(sys.executable + "\n")
    (case / "buggy.py").write_text(script(-1.25))
    (case / "reference.py").write_text(script(1.25))
    row = {
        "id": "shop__shop-1",
        "kind": "swe-bench-lite",
        "instance_id": "shop__shop-1",
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "scope": ["prices.py", "rounding.py"],
        "env": {"PYTHONPATH": str(repo)},
        "cwd": "repo",
        "issue": None,
        "references": ["reference.py"],
        "true_functions": ["rounding.py::negative"],
    }
    (case / "case.json").write_text(json.dumps(row))
    (tmp_path / "data").mkdir()
    statement = {"instance_id": "shop__shop-1", "problem_statement": "The total of a refund has one digit too few."}
    (tmp_path / "data" / "swe_bench_lite.jsonl").write_text(json.dumps(statement) + "\n")
    return tmp_path


def script(price):
    want = f"{price:.2f}"
    return f"from prices import show\ngot = show([{price}])\nassert got == '{want}', got\nprint('ok')\n"


def run(folder, *arguments):
    return localization.main(["--cases", str(folder / "cases"), "--cache", str(folder / "cache"), *arguments])


def test_a_prepared_checkout_is_recorded_ranked_and_reported(folder, capsys):
    out = folder / "out.json"
    checkouts = ("--checkouts", str(folder / "checkouts"), "--rankers", "fused", "lexical", "--out", str(out))
    assert run(folder, *checkouts) == 0
    document = json.loads(out.read_text())
    assert document["rankers"]["fused"] | {"n": 1, "any@5": 1.0} == document["rankers"]["fused"]
    assert list(document["repositories"]["fused"]) == ["shop/shop"]
    assert document["kinds"]["only-buggy"]["holds"] == 1
    assert len(document["cases"][0]["rankings"]["fused"]) == document["cases"][0]["executed"] == 5
    assert "shop__shop-1" in capsys.readouterr().out

    made = (folder / "cache" / "sessions" / "shop__shop-1" / "session.json").stat().st_mtime_ns
    assert run(folder, *checkouts) == 0
    assert (folder / "cache" / "sessions" / "shop__shop-1" / "session.json").stat().st_mtime_ns == made
    (folder / "cases" / "shop__shop-1" / "buggy.py").write_text(script(-2.25))
    assert run(folder, *checkouts) == 0
    assert (folder / "cache" / "sessions" / "shop__shop-1" / "session.json").stat().st_mtime_ns != made


def test_a_script_against_itself(folder, capsys):
    out = folder / "out.json"
    assert run(folder, "--self", "--checkouts", str(folder / "checkouts"), "--out", str(out)) == 0
    assert [case["differences"] for case in json.loads(out.read_text())["cases"]] == [0]


def test_a_missing_checkout_is_counted_and_said(folder, capsys):
    assert run(folder, "--rankers", "fused") == 0
    assert "1 left out: needs a prepared checkout (--checkouts): shop__shop-1" in capsys.readouterr().out
    (folder / "checkouts" / "shop__shop-1" / "python").unlink()
    assert run(folder, "--checkouts", str(folder / "checkouts")) == 0
    assert "needs repo/ and a text file python" in " ".join(capsys.readouterr().out.split())


def test_wrong_input_is_refused_with_one_line(folder, capsys):
    assert run(folder, "--only", "nothing-1") == 2
    assert run(folder, "--rankers", "best") == 2
    assert localization.main(["--cases", str(folder / "data")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "no case nothing-1"
    assert lines[1].startswith("no ranker best; choose from fused")
    assert lines[2].startswith("no case in ")


def test_a_case_takes_its_issue_and_repository_from_the_row(folder):
    (case,) = load_cases(folder / "cases")
    assert (case.repository, case.issue) == ("shop/shop", "The total of a refund has one digit too few.")
    assert place_of(case, checkouts=folder / "checkouts", environments=folder).cwd is not None


def test_what_is_not_here_is_said(tmp_path):
    with pytest.raises(UnavailableError, match=r"no Python 2\.7 here"):
        find_interpreter("2.7")
    with pytest.raises(UnavailableError, match="no Python"):
        environment("2.7", (), folder=tmp_path)


def test_the_interpreters_are_one_per_version_and_start(interpreters):
    minors = [one.version[:2] for one in interpreters]
    assert minors == sorted(set(minors))
    assert minors[0] >= (3, 6)
    for one in interpreters:
        answer = subprocess.check_output([one.path, "-c", "import sys; print(sys.version_info[:2])"], text=True)
        assert answer.strip() == str(one.version[:2])


def outcome(rankings, *, kinds=None, executed=10, true=("m.py::f",)):
    return Outcome("a-1", "a", "pypi", true, executed, 0, True, (), kinds or {}, rankings, {})


def test_summaries_are_means_over_the_cases_that_were_ranked():
    outcomes = [
        outcome({"fused": ("m.py::f", "m.py::g")}),
        outcome({"fused": ("m.py::g", "m.py::f")}),
        outcome({"lexical": ("m.py::f",)}),
    ]
    fused = summarize(outcomes, "fused")
    assert (fused["n"], fused["any@1"], fused["any@5"], fused["mrr"]) == (2, 0.5, 1.0, 0.75)
    assert summarize(outcomes, "commits") == {"n": 0}


def test_kinds_count_the_cases_where_they_occur():
    outcomes = [
        outcome({}, kinds={"deleted": Held(1, True)}, executed=10),
        outcome({}, kinds={"deleted": Held(5, False), "moved": Held(2, False)}, executed=30),
    ]
    assert summarize_kinds(outcomes) == {
        "deleted": {"n": 2, "holds": 1, "flagged": 3, "executed": 20},
        "moved": {"n": 1, "holds": 0, "flagged": 2, "executed": 30},
    }


def test_a_released_package_is_named_by_its_first_requirement(tmp_path):
    case = Case("x-1", "pypi", tmp_path, "3.11", (), (), "", (), (), ("markupsafe==2.0.1", "six"), False)
    assert case.repository == "markupsafe"


@pytest.mark.parametrize("program", ["diff_speed", "trace_overhead", "rank_speed"])
def test_a_benchmark_without_its_packages_ends_in_one_line(program):
    file = Path(__file__).parents[1] / "benchmarks" / f"{program}.py"
    # Without the module site there are no packages but those of the standard library.
    result = subprocess.run([sys.executable, "-S", str(file), "--quick"], capture_output=True, text=True, check=False)
    [said] = result.stderr.splitlines()
    assert result.returncode == 2
    assert "needs the extra dev: make test makes the environment" in said
    assert "xlocal" in said.partition(" has no ")[2]


def an_outcome(repository, place):
    ranking = tuple(f"m.py::f{number}" for number in range(1, 31))
    return Outcome(
        id=f"{repository}-{place}",
        repository=repository,
        kind="pypi",
        true_functions=(f"m.py::f{place}",),
        executed=30,
        cost=1,
        exact=True,
        warnings=(),
        kinds={},
        rankings={"fused": ranking},
        unranked={},
    )


def test_the_spread_holds_the_mean_and_follows_the_repositories():
    # One repository is always right and one never: over cases that is 50 % give or take, over repositories anything.
    outcomes = [an_outcome("good", 1) for _ in range(20)] + [an_outcome("bad", 25) for _ in range(20)]
    found = spreads(outcomes, "fused")
    first = found["any@1"]
    assert first.mean == 0.5
    low, high = first.by_case
    assert 0.3 < low < 0.45
    assert 0.55 < high < 0.7
    assert first.by_repository == (0.0, 1.0)
    assert first.without_one == (0.0, 1.0)
    assert found["any@20"].mean == 0.5
    assert found["mrr"].mean == pytest.approx((1 + 1 / 25) / 2)
    assert spreads(outcomes, "fused") == found
    assert spreads(outcomes, "paper") == {}


def test_the_spread_of_one_repository_leaves_none_out():
    found = spreads([an_outcome("only", 1), an_outcome("only", 2)], "fused")
    assert found["any@1"].without_one == (0.5, 0.5)


def ablate(folder, *arguments):
    return ablation.main(["--cases", str(folder / "cases"), "--cache", str(folder / "cache"), *arguments])


def test_the_ablation_ranks_again_without_each_kind(folder, capsys):
    out = folder / "places.json"
    assert ablate(folder, "--checkouts", str(folder / "checkouts"), "--out", str(out)) == 0
    document = json.loads(out.read_text())
    assert document["cases"] == ["shop__shop-1"]
    places = {name: each[0] for name, each in document["places"].items()}
    assert places["paper's set, by the text"] == 1
    assert {"text alone", "evidence alone", "without the closer look", "without only-buggy"} <= places.keys()
    assert all(place is None or 1 <= place <= 5 for place in places.values())
    assert "1 cases" in capsys.readouterr().out


def test_the_ablation_says_what_it_leaves_out(folder, capsys):
    assert ablate(folder) == 0
    said = capsys.readouterr()
    assert "left out: needs a prepared checkout" in said.err
    assert "no case could be ranked" in said.out
    assert ablation.main(["--cases", str(folder / "data")]) == 2


def test_a_change_of_the_reciprocal_rank_has_an_interval():
    line = ablation.line_of("other", [1, 2, None, 4], [1, 1, 1, 4])
    assert (line.better, line.worse) == (0, 2)
    assert line.change == pytest.approx(-0.375)
    assert line.low < -0.375 < line.high <= 0
    assert line.any_at == {1: 0.25, 5: 0.75, 10: 0.75, 20: 0.75}


def a_trial(right, wrong):
    """A case with one right suspect and one wrong one, each with evidence of some kinds."""
    suspects = [
        Suspect(Function("m.py", name), 1, 2, evidence=tuple(Evidence(kind, 1.0, "") for kind in kinds))
        for name, kinds in (("right", right), ("wrong", wrong))
    ]
    return Trial("a-1", "a", ("m.py::right",), tuple(suspects), np.zeros(2), np.zeros(0))


def test_the_rates_of_kinds_are_counted_over_the_cases(folder, capsys):
    arguments = ["--cases", str(folder / "cases"), "--cache", str(folder / "cache")]
    assert rates.main([*arguments, "--checkouts", str(folder / "checkouts")]) == 0
    (line,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("│ only-buggy ")]
    assert [cell.strip() for cell in line.split("│")[2:5]] == ["1", "1", "0.40"]
    held, seen = rates.counts([a_trial(("line",), ("count",)), a_trial((), ("line",))])
    assert (held, seen) == ({"line": 1}, {"line": 2, "count": 1})
    found = rates.rates([a_trial(("line",), ("count",)), a_trial((), ("line",))])
    assert found == pytest.approx({"line": 2 / 6, "count": 1 / 5})
