"""The paper's tables and figures, made from small predictions, reports and run folders with known answers."""

from __future__ import annotations

import json
import subprocess
from xml.dom import minidom

import figure4
import figure5
import figure6
import phases
import plots
import pytest
import table1
import table2
import table3
import table4
from hypothesis import given
from hypothesis import strategies as st
from xlocal.ranking.comparison import Comparison
from xlocal.ranking.evidence import Evidence, Suspect
from xlocal.tracer.calltree import Function

CODE = "def total(prices):\n    return sum(prices)\n\n\ndef label(price):\n    return str(price)\n"


def git(folder, *arguments):
    return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def shop(tmp_path):
    """A mirror of a shop, four issues of it (two in each function), and two methods: one right, one half so."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "prices.py").write_text(CODE)
    git(tree, "init", "--quiet")
    git(tree, "add", "--all")
    git(tree, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "first")
    git(tmp_path, "clone", "--quiet", "--bare", str(tree), str(tmp_path / "mirrors" / "shop__shop.git"))
    commit = git(tree, "rev-parse", "HEAD").strip()

    def diff(old, new):
        (tree / "prices.py").write_text(CODE.replace(old, new))
        text = git(tree, "diff")
        git(tree, "checkout", "--quiet", ".")
        return text

    sums, labels = diff("sum(prices)", "sum(prices) or None"), diff("str(price)", "f'{price}'")
    remarked = diff("    return sum(prices)\n", "    # none of nothing\n\n    return sum(prices) or None  # so\n")
    gold = {"shop__shop-1": sums, "shop__shop-2": sums, "shop__shop-3": labels, "shop__shop-4": labels}
    rows = [
        {
            "instance_id": name,
            "repo": "shop/shop",
            "base_commit": commit,
            "problem_statement": "text",
            "patch": patch,
            "test_patch": "--- /dev/null\n+++ b/t.py\n@@ -0,0 +1 @@\n+1\n",
            "FAIL_TO_PASS": "[]",
            "PASS_TO_PASS": "[]",
        }
        for name, patch in gold.items()
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    wide = diff(
        "sum(prices)\n\n\ndef label(price):\n    return str", "sum(prices) or 0\n\n\ndef label(price):\n    return repr"
    )
    half = {"shop__shop-1": remarked, "shop__shop-2": wide, "shop__shop-3": sums, "shop__shop-4": ""}
    for name, patches, resolved in (("right", gold, list(gold)), ("half", half, ["shop__shop-1"])):
        lines = [
            {"instance_id": one, "model_name_or_path": name, "model_patch": patch} for one, patch in patches.items()
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
        report = {"resolved_ids": resolved, "submitted_ids": list(gold), "total_instances": 4}
        (tmp_path / f"{name}.run.json").write_text(json.dumps(report))
    return tmp_path


def arguments(shop, *more):
    options = ["--dataset", shop / "data.jsonl", "--mirrors", shop / "mirrors", "--out", shop / "out"]
    for name in ("right", "half"):
        options += ["--report", f"{name}={shop / f'{name}.run.json'}"]
    return [str(word) for word in (f"right={shop / 'right.jsonl'}", f"half={shop / 'half.jsonl'}", *options, *more)]


def cells(text):
    """The rows of the printed tables, without their heads."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if not set(row[0]) <= {"-", ":"}]


def test_table_1(shop, capsys):
    assert table1.main(arguments(shop)) == 0
    out = capsys.readouterr().out
    _, right, half = cells(out)
    assert right == ["right", "100.0 (4)", "-", "-", *["100.0"] * 6]
    # By function: one right alone, one right of two, one wrong, none: P 1, 1/2, 0, 0; R 1, 1, 0, 0; F1 1, 2/3, 0, 0.
    assert half == ["half", "25.0 (1)", "-", "-", "75.0", "75.0", "75.0", "37.5", "50.0", "41.7"]
    assert "(0 touch no such function)" in out
    minidom.parse(str(shop / "out" / "table1.svg"))
    assert (shop / "out" / "table1.md").read_text().startswith("| Method |")


def test_table_1_by_another_convention(shop, capsys):
    assert table1.main(arguments(shop, "--convention", "orcaloca", "--functions", "enclosing")) == 0
    assert "convention orcaloca, functions enclosing" in capsys.readouterr().out


def test_table_2(shop, capsys):
    assert table2.main(arguments(shop)) == 0
    assert cells(capsys.readouterr().out)[1:] == [
        ["right", "100.0", "100.0"],
        ["half", "25.0 (↓ 75.0)", "41.7 (↓ 58.3)"],
    ]


def test_table_3(tmp_path, capsys):
    cases = [
        {
            "true_functions": ["a.py::f"],
            "rankings": {"fused": ["a.py::f"], "commits": [f"a.py::g{n}" for n in range(15)] + ["a.py::f"]},
        },
        {"true_functions": ["a.py::f"], "rankings": {"fused": ["a.py::g"], "commits": []}},
    ]
    (tmp_path / "l.json").write_text(json.dumps({"cases": cases}))
    assert table3.main([str(tmp_path / "l.json"), "--out", str(tmp_path)]) == 0
    assert cells(capsys.readouterr().out)[1:] == [["fused", "50.0", "50.0", "2"], ["commits", "0.0", "50.0", "2"]]
    (tmp_path / "l.json").write_text("[]")
    assert table3.main([str(tmp_path / "l.json")]) == 2
    assert "is not what experiments/localization.py --out wrote" in capsys.readouterr().err
    (tmp_path / "l.json").write_text(json.dumps({"ranker": "fused", "instances": [{"id": "a", "suspects": []}]}))
    assert table3.main([str(tmp_path / "l.json")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "l.json: is what xlocal swe localize wrote: the first suspects of one ranker" in said
    assert said.endswith("python experiments/localization.py --cases DIR --checkouts ROOT --out FILE")


def suspect(name, *, executed=True, calls=(1, 1), deleted=False):
    evidence = (Evidence("deleted", 1.0, "runs once only in the buggy run"),) if deleted else ()
    return Suspect(Function("prices.py", name), 1, 2, executed=executed, calls=calls, evidence=evidence)


def test_table_4(tmp_path, capsys):
    suspects = [
        suspect("total", calls=(1, 0), deleted=True),
        suspect("label"),
        suspect("other", executed=False, calls=(0, 0)),
    ]
    comparison = Comparison((), (), tuple(suspects), cost=1, lower=1, exact=True, blindness=None)
    for name in ("shop__shop-1", "shop__shop-2"):
        for folder in ("session", "repo"):
            (tmp_path / name / folder).mkdir(parents=True)
        (tmp_path / name / "repo" / "prices.py").write_text(CODE + "\n\nclass A:\n    def f(self):\n        return 1\n")
        comparison.save(tmp_path / name / "session" / table4.COMPARISON)
    assert table4.main(["--root", str(tmp_path)]) == 0
    rows = cells(capsys.readouterr().out)
    assert rows[1:3] == [["the whole repository", "3", "3", "3", "3"], ["buggy run", "2", "2", "2", "2"]]
    assert rows[3][1:] == ["1 (↓50 %)", "1", "1 (↓50 %)", "1 (↓50 %)"]
    assert table4.main(["--root", str(tmp_path / "none")]) == 2
    (tmp_path / "shop__shop-2" / "session" / table4.COMPARISON).unlink()
    capsys.readouterr()
    assert table4.main(["--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("\n\n1 issue.\n")


def test_figure_4(shop, capsys):
    assert figure4.main(arguments(shop)) == 0
    resolved, localized = capsys.readouterr().out.split("###")[1:]
    assert cells(resolved)[1:] == [["all of right", "4"], ["all of half", "1"], ["right", "3"], ["right ∩ half", "1"]]
    assert cells(localized)[1:] == [["all of right", "4"], ["all of half", "1"], ["right", "3"], ["right ∩ half", "1"]]
    minidom.parse(str(shop / "out" / "figure4a.svg"))


def test_figure_4_without_reports_tells_what_it_leaves_out(shop, capsys):
    given = [word for word in arguments(shop) if "run.json" not in word and word != "--report"]
    assert figure4.main(given) == 0
    output = capsys.readouterr()
    assert "(a) is left out" in output.err
    assert "Perfectly" in output.out


def test_figure_5(shop, capsys):
    assert figure5.main(arguments(shop)) == 0
    rows = {row[0]: row[1:] for row in cells(capsys.readouterr().out)[1:]}
    assert rows["1 hunk"] == ["4", "100.0", "25.0"]
    assert rows["1 function"] == ["4", "100.0", "25.0"]
    assert rows["2 hunks"] == ["0", "-", "-"]
    assert sum(int(row[0]) for row in rows.values()) == 12


def test_figure_6_ignores_comments_and_empty_lines_alone(shop, capsys):
    assert figure6.main(arguments(shop)) == 0
    assert cells(capsys.readouterr().out)[1:] == [["right", "100.0", "100.0"], ["half", "25.0", "25.0"]]


def test_code_without_comments():
    assert figure6.code("a.py", b"x = 1  # one\n\n# two\ny = '#'\n") == figure6.code("a.py", b"x = 1\ny = '#'\n")
    assert figure6.code("a.py", b"x = 1\n") != figure6.code("a.py", b"x = 2\n")
    assert figure6.code("a.py", b"def f(:\n\n") == figure6.code("a.py", b"# a\ndef f(:\n")
    assert figure6.code("a.py", None) is None


def test_phases(tmp_path, capsys):
    for number, seconds in enumerate((10.0, 30.0)):
        folder = tmp_path / f"i-{number}" / "agent"
        folder.mkdir(parents=True)
        rows = [
            {"kind": "model", "phase": "reproduce", "seconds": seconds},
            {"kind": "locate", "phase": "reproduce", "seconds": 5.0},
            {"kind": "model", "phase": "repair", "seconds": 2 * seconds},
        ]
        lines = [{"step": n + 1, "request": {}, "result": None, **row} for n, row in enumerate(rows)]
        head = {"format": "xlocal-trajectory", "version": 1}
        (folder / "trajectory.jsonl").write_text("\n".join(map(json.dumps, [head, *lines])) + "\n")
    assert phases.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    rows = cells(capsys.readouterr().out)[1:]
    assert rows == [
        ["reproduce", "20.0", "20.0", "30.8"],
        ["localize", "5.0", "5.0", "7.7"],
        ["repair", "40.0", "40.0", "61.5"],
    ]
    assert phases.main([str(tmp_path / "none")]) == 2
    capsys.readouterr()
    assert phases.main([str(tmp_path / "i-0")]) == 0
    assert "\n1 issue, 35.0 s.\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({1: "half=nowhere.jsonl"}, "nowhere.jsonl: does not exist"),
        ({0: "--report", 1: "x=y"}, "does not exist"),
        ({0: "wrong={folder}"}, "holds no run"),
    ],
)
def test_wrong_input_ends_in_one_line(shop, capsys, change, why):
    given = arguments(shop)
    for place, word in change.items():
        given[place] = word.format(folder=shop)
    if "--report" in given[:1]:
        given.append(str(shop / "right.jsonl"))
    assert table1.main(given) == 2
    err = capsys.readouterr().err
    assert why in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("program", [table1, table2, figure4, figure5, figure6])
def test_a_name_stands_for_one_method(shop, capsys, program):
    given = arguments(shop)
    given[1] = given[1].replace("half=", "right=")
    assert program.main(given) == 2
    assert capsys.readouterr() == ("", "right: two methods have this name; give each its own, as in NAME=PATH\n")
    (shop / "other").mkdir()
    (shop / "other" / "right.jsonl").write_text((shop / "half.jsonl").read_text())
    given[:2] = [str(shop / "right.jsonl"), str(shop / "other" / "right.jsonl")]  # named after their files
    assert program.main(given) == 2
    assert capsys.readouterr().err.startswith("right: two methods have this name")
    assert program.main([*arguments(shop), "--report", f"half={shop / 'right.run.json'}"]) == 2
    assert capsys.readouterr() == ("", "--report half: names two reports of one method\n")
    assert not (shop / "out").exists()


def test_what_was_resolved_must_be_known(shop, capsys):
    given = arguments(shop)
    place = next(place for place, word in enumerate(given) if "half.run.json" in word)
    del given[place - 1 : place + 1]
    assert table2.main(given) == 2
    assert "half: what it resolved is not known; give --report half=FILE" in capsys.readouterr().err


@given(st.dictionaries(st.sampled_from("abcd"), st.frozensets(st.integers(0, 9).map(str)), min_size=1))
def test_exclusive_parts_make_up_the_whole(sets):
    parts = plots.exclusive(sets)
    assert len(parts) == 2 ** len(sets) - 1
    assert sum(map(len, parts.values())) == len(frozenset().union(*sets.values()))
    for name, members in sets.items():
        assert frozenset().union(*(part for names, part in parts.items() if name in names)) == members


@given(st.dictionaries(st.text(max_size=4), st.lists(st.floats(0, 100), min_size=2, max_size=2), max_size=4))
def test_plots_are_well_formed(series):
    minidom.parseString(plots.bars("<title>", ["a", "b&"], series))
    minidom.parseString(plots.overlap("<title>", {name: frozenset("ab") for name in series} or {"x": frozenset()}))
