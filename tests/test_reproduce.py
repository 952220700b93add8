"""Scripts from an issue: what is handed in is run, judged and measured; what cannot be reproduced is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("pydantic_ai", reason="needs the extra agents")

from agents import BUGGY, ISSUE, JUDGE, REFERENCE, REPRODUCE, Shop, call, needs_sandbox
from xlocal.ranking.evidence import Evidence
from xlocal.swe_pipeline.leads import NAMED, Lead, Leads, is_test, nearest_by_text, with_highlighted
from xlocal.swe_pipeline.reproduce import ScriptPair, similarity
from xlocal.swe_pipeline.trajectory import FILE, read_trajectory
from xlocal.swe_pipeline.workspace import Workspace

ONLY = {"variant": "localizer", "stop_after": "reproduce"}


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path)


rejections: list[str] = []


@pytest.fixture(autouse=True)
def _log_rejections(monkeypatch):
    """Every reason that goes back to the model."""
    from xlocal.swe_pipeline import repair, reproduce

    rejections.clear()

    class Logged(reproduce.Rejected):
        def __init__(self, text):
            rejections.append(text)
            super().__init__(text)

    monkeypatch.setattr(reproduce, "Rejected", Logged)
    monkeypatch.setattr(repair, "Rejected", Logged)


def write(buggy: str = BUGGY, *references: str) -> list[dict[str, object]]:
    """Turns that write and hand in scripts."""
    texts = references or (REFERENCE,)
    names = [f".xlocal/reference{number}.py" for number in range(len(texts))]
    created = [call("create", path=name, text=text) for name, text in zip(names, texts, strict=True)]
    submit = call("submit_scripts", buggy=".xlocal/buggy.py", references=names, reported="r")
    return [call("create", path=".xlocal/buggy.py", text=buggy), *created, submit]


def told(shop) -> str:
    """All that was recorded."""
    return (shop.run / FILE).read_text()


@needs_sandbox
def test_a_pair_is_run_compared_and_ranked(shop):
    solution = shop.solve(**ONLY)
    found = solution.reproduction
    assert solution.ended == "reproduced"
    assert found.why_not is None
    assert (found.pair.buggy, found.pair.references) == (BUGGY, (REFERENCE,))
    assert {lead.qualname for lead in found.leads.leads[:2]} == {"parse", "total"}
    assert all(lead.reasons for lead in found.leads.leads)
    assert (shop.run / "scripts" / "buggy.py").read_text() == BUGGY


@needs_sandbox
@pytest.mark.parametrize(
    ("buggy", "reference", "reason"),
    [
        (BUGGY.replace("assert", "# assert"), REFERENCE, "buggy.py exits with 0"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (BUGGY, REFERENCE.replace("== 3", "== 4"), "reference_1.py fails"),
                (BUGGY, "import nothing_like_this\n" + REFERENCE, "reference_1.py does not run (ModuleNotFoundError)"),
                (BUGGY + "else:\n", REFERENCE, "buggy.py is not valid Python (SyntaxError)"),
                (
                    BUGGY,
                    REFERENCE
                    + "assert {'a', 'b', 'c', 'd', 'e', 'f'}.pop() == {*'abcdef'}.pop() and hash('x') % 2 == 0\n",
                    "sometimes",
                ),
                (
                    BUGGY,
                    "import json\nfor key, value in json.loads('{}').items():\n    print(key, value)\n",
                    "too different",
                ),
                (BUGGY, BUGGY, "same text"),
            )
        ),
    ],
)
def test_a_pair_that_does_not_behave_is_sent_back_with_its_output(shop, buggy, reference, reason):
    solution = shop.solve(shop.model(reproduce=[*write(buggy, reference), *REPRODUCE]), **ONLY)
    assert solution.reproduction.pair.buggy == BUGGY
    assert any(reason in text for text in rejections)


@needs_sandbox
def test_the_judge_sends_back_what_does_not_show_the_reported_bug(shop):
    no = call("submit_judgement", buggy_shows_reported=False, reference_is_correct=True, reason="it divides by zero")
    other = "from shop.core import total\n\nprint(1 / total([]))\n"
    turns = [*write(other, other.replace("[]", "['1']")), *REPRODUCE]
    solution = shop.solve(shop.model(reproduce=turns, judge_1=[no], judge=JUDGE), **ONLY)
    assert solution.reproduction.pair.buggy == BUGGY
    assert any("it divides by zero" in text and "ZeroDivisionError" in text for text in rejections)


@needs_sandbox
@pytest.mark.slow
def test_when_the_first_reference_reveals_nothing_a_second_is_asked_for(tmp_path, monkeypatch):
    from xlocal.swe_pipeline import reproduce

    shop = Shop(tmp_path)
    seen = []
    real = reproduce.compare_runs

    def compare(assistant, *, buggy, references, **how):
        seen.append(len(references))
        found = real(assistant, buggy=buggy, references=references, **how)
        return (
            Leads(found.how, found.leads, found.warnings, found.noise, "both runs made the same calls")
            if len(seen) == 1
            else found
        )

    monkeypatch.setattr(reproduce, "compare_runs", compare)
    second = "from shop.core import total\n\nprint(total([]))\n"
    solution = shop.solve(shop.model(reproduce=[*REPRODUCE, *write(BUGGY, REFERENCE, second)]), **ONLY)
    assert seen == [1, 2]
    assert len(solution.reproduction.pair.references) == 2
    assert any("Write a second reference in which the feature is absent" in text for text in rejections)


@needs_sandbox
def test_without_a_pair_the_model_chooses_and_it_is_said(shop):
    refusal = [{"text": "I cannot do that."}] * 8
    chosen = call("submit_functions", functions=["shop/core.py::parse", "no/such.py::f"])
    solution = shop.solve(shop.model(reproduce=refusal, localize=[chosen]), **ONLY)
    found = solution.reproduction
    assert (found.pair, solution.ended) == (None, "not reproduced")
    assert found.why_not.startswith("no pair of scripts: reproduce: the model gave no usable answer")
    assert found.leads.how.startswith("the model's choice from the issue's text")
    assert [lead.name for lead in found.leads.leads] == ["shop/core.py::parse", "shop/core.py::total"]
    assert found.leads.leads[0].reasons == ("chosen by the model from the issue's text",)


@needs_sandbox
@pytest.mark.slow
def test_what_the_agent_changed_in_the_repository_does_not_count(shop):
    cheat = call("bash", command="echo 'def total(items): raise KeyError' > shop/core.py")
    refused = call("edit", path="shop/core.py", old="total", new="totl")
    solution = shop.solve(shop.model(reproduce=[cheat, refused, *REPRODUCE]), **ONLY)
    assert solution.reproduction.pair is not None
    assert shop.copy.diff() == ""
    assert "the repository stays as it is" in told(shop)


@needs_sandbox
def test_a_given_pair_is_taken_as_it_is(shop):
    pair = ScriptPair(BUGGY, (REFERENCE,))
    solution = shop.solve(shop.model(reproduce=[]), pair=pair, **ONLY)
    assert solution.reproduction.pair is pair
    assert solution.spent.calls == 0
    broken = ScriptPair("x = (\n", (REFERENCE,))
    shop.run = shop.folder / "second"
    chosen = [call("submit_functions", functions=["shop/core.py::parse"])]
    solution = shop.solve(shop.model(localize=chosen), pair=broken, **ONLY)
    assert "SyntaxError" in solution.reproduction.why_not


@needs_sandbox
def test_highlighted_functions_come_in_after_the_first_few(shop):
    space = Workspace(shop.copy, index=shop.folder / "index")
    known = tuple(Lead("m.py", f"f{number}", 1, 2, ()) for number in range(8))
    named = ["shop.core.parse", "shop/core.py::total", "nothing.at_all", "m.py::f3"]
    found = with_highlighted(Leads("x", known), named, space).leads
    assert [lead.qualname for lead in found[4:8]] == ["f4", "parse", "total", "f5"]
    assert len(found) == 10


def ranked_lead(name, score, *kinds):
    evidence = tuple(Evidence(kind, 1.0, kind) for kind in kinds)
    return Lead("m.py", name, 1, 2, kinds, score, evidence)


def test_what_the_agent_named_counts_among_what_was_seen(shop):
    space = Workspace(shop.copy, index=shop.folder / "index")
    known = (ranked_lead("a", 5.0, "return"), ranked_lead("b", 4.99, "count"), ranked_lead("c", 1.0, "count"))
    found = with_highlighted(Leads("x", known), ["m.py::b", "m.py::c"], space).leads
    # A little evidence: it decides between near ones, and lifts no far one over what the runs showed.
    assert [lead.qualname for lead in found] == ["b", "a", "c"]
    assert [NAMED.detail in lead.reasons for lead in found] == [True, False, True]
    assert found[0].score > 5.0
    assert found[1] == known[0]
    other = tuple(replace(lead, score=None) for lead in known)
    kept = with_highlighted(Leads("x", other), ["m.py::b"], space).leads
    assert [lead.qualname for lead in kept] == ["a", "b", "c"]
    assert NAMED.detail in kept[1].reasons


def test_functions_near_to_the_issue_come_first_and_tests_not_at_all(shop):
    space = Workspace(shop.copy, index=shop.folder / "index")
    found = nearest_by_text(space, ISSUE)
    assert found[0].qualname == "total"
    assert not any(lead.path.startswith("tests/") for lead in found)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tests/test_a.py", True),
        ("pkg/tests/util.py", True),
        ("test_a.py", True),
        ("pkg/a_test.py", True),
        ("conftest.py", True),
        ("pkg/testing_tools.py", False),
        ("pkg/latest.py", False),
        ("contest/mod.py", False),
    ],
)
def test_tests_are_known_by_name_or_folder(name, expected):
    assert is_test(name) is expected


def test_similarity_looks_at_tokens_alone():
    assert similarity("a = 1  # one\n", "a  =  1\n\n") == 1.0
    assert similarity(BUGGY, REFERENCE) > 0.9
    assert similarity(BUGGY, "import os\nos.getcwd()\n") < 0.5
    assert similarity("x = (", "x = [") < 1.0


@needs_sandbox
@pytest.mark.parametrize(
    "ranker",
    ["lexical", *(pytest.param(name, marks=pytest.mark.slow) for name in ("evidence", "proximity", "commits"))],
)
def test_every_ranker_can_order_the_suspects(shop, ranker):
    solution = shop.solve(shop.model(reproduce=[]), pair=ScriptPair(BUGGY, (REFERENCE,)), ranker=ranker, **ONLY)
    assert {lead.qualname for lead in solution.reproduction.leads.leads} == {"parse", "total"}
    assert read_trajectory(shop.run / FILE).header["ranker"] == ranker
