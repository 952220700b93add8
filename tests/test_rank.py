"""Rankers: what each puts first, what it needs, and that no result depends on the order of the input."""

from __future__ import annotations

import math
import subprocess
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from encoders import WordEncoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xlocal.ranking import lexical
from xlocal.ranking.evidence import Evidence, RankedSuspect, Suspect
from xlocal.ranking.history import Hunk, changes
from xlocal.ranking.history import _before as before
from xlocal.ranking.rank import DIFFERS, FADE, KIND_RATES, Context, evidence_scores, fuse, get_ranker, ranker_names
from xlocal.ranking.source import SourceIndex
from xlocal.ranking.text import read_issue
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import UsageError, Warned, XlocalError

SHOP = """\
class Basket:
    def __init__(self, items):
        self.items = items

    def total_price(self, currency):
        # rounding per currency
        return sum(item.price for item in self.items)

    def render(self):
        return str(self.items)


def parse_discount(text):
    return float(text.strip("%")) / 100


def log(message):
    print(message)
"""


class Folder:
    """The two methods of a scope over one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def relative(self, filename: str) -> str | None:
        path = Path(filename)
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else None

    def files(self) -> Iterator[str]:
        yield from (str(path) for path in self.root.rglob("*.py"))


@pytest.fixture
def shop(tmp_path: Path) -> SourceIndex:
    (tmp_path / "shop.py").write_text(SHOP)
    return SourceIndex(Folder(tmp_path))


def suspect(name: str, *evidence: tuple[str, float], path: str = "shop.py", **more: object) -> Suspect:
    made = Suspect(
        Function(path, name), 1, 2, evidence=tuple(Evidence(kind, weight, "seen") for kind, weight in evidence)
    )
    return replace(made, **more)  # type: ignore[arg-type]


def names(ranked: Sequence[RankedSuspect]) -> list[str]:
    assert [r.rank for r in ranked] == list(range(1, len(ranked) + 1))
    return [r.suspect.function.qualname for r in ranked]


ALL = [suspect(name) for name in ("Basket.__init__", "Basket.total_price", "Basket.render", "parse_discount", "log")]
ISSUE = "The total price ignores the currency\n\nRounding the basket's total is wrong."


def test_unknown_ranker_lists_the_names() -> None:
    with pytest.raises(UsageError, match="no ranker 'best'; choose one of fused, lexical, evidence, paper"):
        get_ranker("best")
    assert all(get_ranker(name).name == name for name in ranker_names())
    assert get_ranker().name == "fused"


def test_lexical_reads_names_comments_and_bodies(shop: SourceIndex) -> None:
    context = Context(sources=shop, issue=read_issue(ISSUE))
    assert names(get_ranker("lexical").rank(ALL, context))[0] == "Basket.total_price"
    discount = Context(sources=shop, issue=read_issue("ParseDiscount"))
    assert names(get_ranker("lexical").rank(ALL, discount))[0] == "parse_discount"


@pytest.mark.parametrize("name", ["lexical", "paper", "embedding"])
@pytest.mark.parametrize("text", [None, " \n"])
def test_rankers_of_text_ask_for_an_issue(shop: SourceIndex, name: str, text: str | None) -> None:
    context = Context(sources=shop, issue=None if text is None else read_issue(text), encoder=WordEncoder())
    with pytest.raises(UsageError, match=r"needs the text of an issue; give one with --issue FILE"):
        get_ranker(name).rank([suspect("log", ("deleted", 1.0))], context)


def test_terms_keep_the_whole_and_the_parts() -> None:
    assert lexical.terms("getHTTPResponse_code2 __init__ the") == [
        *("http", "response", "gethttpresponse_code2"),
        "init",
    ]
    assert lexical.query(read_issue("price price\n\nprice")) == pytest.approx({"price": 2 * 1.0986 + 0.6931}, abs=1e-3)


def test_lexical_without_any_shared_word_orders_by_priors(shop: SourceIndex) -> None:
    context = Context(sources=shop, issue=read_issue("zebra"))
    assert names(get_ranker("lexical").rank(ALL, context))[-1] == "Basket.__init__"


def test_evidence_sums_kinds_and_takes_the_strongest_of_each(shop: SourceIndex) -> None:
    suspects = [
        suspect("log", ("line", 0.5), ("line", 0.4)),
        suspect("parse_discount", ("line", 0.5), ("count", 0.1)),
        suspect("Basket.render", ("absorber", 1.0)),
        suspect("Basket.total_price"),
    ]
    ranked = get_ranker("evidence").rank(suspects, Context(sources=shop))
    assert names(ranked) == ["parse_discount", "log", "Basket.render", "Basket.total_price"]
    # Of four functions executed, two hold the first kind and one the second, which is the stronger here.
    line, count = math.log1p(KIND_RATES["line"] * 5 / 2), math.log1p(KIND_RATES["count"] * 5)
    assert ranked[0].score == pytest.approx(DIFFERS + max(line, count) + FADE * min(line, count), abs=1e-6)
    assert ranked[-1].score == 0


def test_a_kind_counts_by_its_rarity_and_its_weaker_findings_less() -> None:
    many = [suspect(f"f{number}", ("line", 1.0)) for number in range(8)]
    rare = [suspect("sharp", ("only-buggy", 1.0)), suspect("half", ("count", 0.5)), suspect("whole", ("count", 1.0))]
    scores = dict(zip([s.function.qualname for s in many + rare], evidence_scores(many + rare), strict=True))
    assert scores["sharp"] - DIFFERS > 3 * (scores["f0"] - DIFFERS)
    assert 0 < scores["half"] < scores["whole"]


def test_frames_of_a_traceback_count_by_distance_alone() -> None:
    deep = [suspect(f"f{number}", ("traceback", 1 / (1 + number))) for number in range(9)]
    short = [suspect("f0", ("traceback", 1.0)), *(suspect(f"f{number}") for number in range(1, 9))]
    assert evidence_scores(deep)[0] == evidence_scores(short)[0]


def test_rates_may_be_others() -> None:
    suspects = [suspect("a", ("line", 1.0)), suspect("b", ("count", 1.0))]
    turned = {"line": 0.1, "count": 0.9}
    assert evidence_scores(suspects)[0] > evidence_scores(suspects)[1]
    assert evidence_scores(suspects, rates=turned)[0] < evidence_scores(suspects, rates=turned)[1]
    assert fuse(suspects, np.array([0.0, 0.1]), rates=turned).argmax() == 1


def test_unexecuted_functions_come_last(shop: SourceIndex) -> None:
    suspects = [suspect("log"), suspect("parse_discount", ("named-in-issue", 1.0), executed=False)]
    for name in ("evidence", "fused", "proximity"):
        assert names(get_ranker(name).rank(suspects, Context(sources=shop))) == ["log", "parse_discount"]


def test_fused_adds_evidence_to_text(shop: SourceIndex) -> None:
    context = Context(sources=shop, issue=read_issue(ISSUE))
    assert names(get_ranker().rank(ALL, context))[0] == "Basket.total_price"
    seen = [*ALL[:2], suspect("Basket.render", ("line", 1.0)), *ALL[3:]]
    assert set(names(get_ranker().rank(seen, context))[:2]) == {"Basket.total_price", "Basket.render"}
    both = [replace(one, evidence=(Evidence("line", 1.0, ""),)) for one in ALL]
    assert names(get_ranker().rank(both, context))[0] == "Basket.total_price"
    blind = Context(sources=shop)
    assert names(get_ranker().rank(seen, blind))[0] == "Basket.render"


def test_what_the_issue_names_counts_once_beside_its_text(shop: SourceIndex) -> None:
    context = Context(sources=shop, issue=read_issue(ISSUE))
    named = [replace(one, evidence=(Evidence("named-in-issue", 1.0, ""),)) for one in ALL]
    plain = [replace(one, evidence=()) for one in ALL]
    scores = [[ranked.score for ranked in get_ranker().rank(suspects, context)] for suspects in (named, plain)]
    assert scores[0] == scores[1]


def test_fused_without_an_issue_breaks_ties_by_nearness_rarity_and_depth(shop: SourceIndex) -> None:
    suspects = [
        suspect("often", calls=(9, 9), depth=5),
        suspect("once", calls=(1, 1), depth=2),
        suspect("deep", calls=(1, 1), depth=3),
    ]
    assert names(get_ranker().rank(suspects, Context(sources=shop))) == ["deep", "once", "often"]
    near = [suspect("far", ("traceback", 0.2)), suspect("near", ("traceback", 1.0))]
    assert names(get_ranker().rank(near, Context(sources=shop))) == ["near", "far"]


def test_paper_keeps_to_deleted_and_named_and_to_the_top(shop: SourceIndex) -> None:
    suspects = [
        suspect("Basket.total_price", ("deleted", 0.1)),
        suspect("Basket.render", ("line", 1.0), ("parent-of-deleted", 1.0)),
        suspect("parse_discount"),
        suspect("log", ("named-in-issue", 0.1)),
    ]
    issue = read_issue("Parse discount\n\n`parse_discount` reads it.")
    encoder = WordEncoder()
    context = Context(sources=shop, issue=issue, encoder=encoder)
    assert names(get_ranker("paper").rank(suspects, context)) == ["parse_discount", "Basket.total_price", "log"]
    assert names(get_ranker("paper").rank(suspects, replace(context, top=1))) == ["parse_discount"]
    assert len(get_ranker("embedding").rank(suspects, replace(context, top=1))) == len(suspects)
    body = shop.source(Function("shop.py", "log"))
    assert body is not None
    assert {issue.text, body.text, "log"} <= set(encoder.encoded)
    assert get_ranker("paper").rank([suspect("log")], context) == ()


def test_proximity_adds_file_descent_and_root(shop: SourceIndex) -> None:
    suspects = [
        suspect("Basket.total_price", depth=1, callees=(Function("shop.py", "log"),)),
        suspect("log", depth=2, callees=(Function("b.py", "low"),)),
        suspect("parse_discount", depth=9),
        suspect("low", path="b.py", depth=3),
        suspect("main", path="a.py", depth=0),
    ]
    context = Context(sources=shop, issue=read_issue("t\n`Basket.total_price` fails"))
    ranked = get_ranker("proximity").rank(suspects, context)
    assert names(ranked) == ["Basket.total_price", "log", "low", "parse_discount", "main"]
    assert [r.score for r in ranked] == pytest.approx([2.5, 2 + 1 / 3, 1.25, 1.1, 1.0])
    assert names(get_ranker("proximity").rank(suspects, Context(sources=shop)))[0] == "main"


def test_source_that_is_gone_still_ranks_by_name(shop: SourceIndex) -> None:
    suspects = [suspect("Total.price", path="gone.py"), suspect("other", path="gone.py")]
    context = Context(sources=shop, issue=read_issue("total price"))
    assert names(get_ranker("fused").rank(suspects, context)) == ["Total.price", "other"]
    assert get_ranker("fused").rank([], context) == ()


SUSPECTS = st.lists(
    st.builds(
        suspect,
        st.sampled_from([s.function.qualname for s in ALL]),
        st.tuples(st.sampled_from(sorted(KIND_RATES)), st.sampled_from([0.1, 0.5, 1.0])),
        st.tuples(st.sampled_from(sorted(KIND_RATES)), st.sampled_from([0.1, 0.3, 1.0])),
        executed=st.booleans(),
        depth=st.integers(0, 3),
        calls=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    ),
    unique_by=lambda s: s.function,
    max_size=5,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SUSPECTS, st.randoms(use_true_random=False), st.sampled_from([None, ISSUE, "log\n\n`parse_discount()`"]))
def test_the_ranking_does_not_depend_on_the_order_of_its_input(
    shop: SourceIndex, suspects: list[Suspect], random: object, text: str | None
) -> None:
    context = Context(sources=shop, issue=read_issue(text) if text else None, encoder=WordEncoder())
    shuffled = list(suspects)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for name in ("fused", "evidence", "proximity", *(("lexical", "paper", "embedding") if text else ())):
        ranked = get_ranker(name).rank(suspects, context)
        assert ranked == get_ranker(name).rank(shuffled, context)
        executed = [r.suspect.executed for r in ranked]
        assert executed == sorted(executed, reverse=True)
        if name != "paper":
            assert sorted(r.suspect.function for r in ranked) == sorted(s.function for s in suspects)


def git(folder: Path, *command: str, date: str = "2020-06-01T00:00:00+00:00") -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *command],
        cwd=folder,
        check=True,
        capture_output=True,
        env={
            "PATH": "/usr/bin:/bin:/usr/local/bin",
            "HOME": str(folder),
            "GIT_COMMITTER_DATE": date,
            "GIT_AUTHOR_DATE": date,
        },
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / "pkg").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    return folder


def commit(folder: Path, text: str, date: str) -> None:
    (folder / "pkg" / "m.py").write_text(textwrap.dedent(text))
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "change", date=date)


def history(folder: Path) -> None:
    commit(folder, "def f():\n    return 1\n\n\ndef g():\n    return 1\n", "2018-01-01T00:00:00+00:00")
    commit(folder, "def f():\n    return 1\n\n\ndef g():\n    return 2\n", "2018-06-01T00:00:00+00:00")  # too old
    commit(folder, "import os\n\n\ndef f():\n    return 1\n\n\ndef g():\n    return 2\n", "2020-01-01T00:00:00+00:00")
    commit(folder, "import os\n\n\ndef f():\n    return 2\n\n\ndef g():\n    return 2\n", "2020-02-01T00:00:00+00:00")
    commit(folder, "def f():\n    return 3\n\n\ndef g():\n    return 2\n", "2020-03-01T00:00:00+00:00")
    commit(folder, "def f():\n    return 3\n\n\ndef g():\n    x = 1\n    return 2\n", "2020-04-01T00:00:00+00:00")


def test_commits_counts_a_year_of_changes_to_the_lines(repository: Path) -> None:
    history(repository)
    suspects = [suspect("f", path="pkg/m.py"), suspect("g", path="pkg/m.py")]
    # An edit that is not committed moves lines and counts for nothing.
    (repository / "pkg" / "m.py").write_text(
        "# one\n# two\n\n\ndef f():\n    return 3\n\n\ndef g():\n    x = 1\n    return 2\n"
    )
    index = SourceIndex(Folder(repository))
    ranked = get_ranker("commits").rank(suspects, Context(sources=index, repository=repository))
    assert [(r.suspect.function.qualname, r.score) for r in ranked] == [("f", 2.0), ("g", 1.0)]
    inner = SourceIndex(Folder(repository / "pkg"))
    sources = list(inner.functions())
    assert [str(s.function) for s in sources] == ["m.py::f", "m.py::g"]
    assert list(changes(sources, repository / "pkg").values()) == [2, 1]


def test_commits_without_history_says_what_to_do(repository: Path, tmp_path: Path, shop: SourceIndex) -> None:
    rank = get_ranker("commits").rank
    with pytest.raises(UsageError, match="needs the project's git work tree"):
        rank(ALL, Context(sources=shop))
    outside = tmp_path / "elsewhere"
    with pytest.raises(UsageError, match="not in a git work tree"):
        rank(ALL, Context(sources=shop, repository=outside))
    with pytest.raises(XlocalError, match="git log failed in"):  # no commit yet
        rank(ALL, Context(sources=shop, repository=repository))


def test_commits_in_a_shallow_clone_warns(repository: Path, tmp_path: Path) -> None:
    history(repository)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "shallow")
    heard: list[Warned] = []
    index = SourceIndex(Folder(tmp_path / "shallow"))
    changes(list(index.functions()), tmp_path / "shallow", warn=heard.append)
    assert [warned.slug for warned in heard] == ["history-shallow"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_lines_are_followed_back_through_hunks(data: st.DataObject) -> None:
    """A line that a change kept is found where it was, for every edit script."""
    kept = data.draw(st.lists(st.sampled_from("=+-"), min_size=1, max_size=30))
    hunks: list[Hunk] = []
    old = new = 0
    places: dict[int, int] = {}
    run: list[str] = []
    for step in [*kept, "="]:
        if step == "=":
            if run:
                added, removed = run.count("+"), run.count("-")
                hunks.append(Hunk(old - removed + (removed > 0), removed, new - added + (added > 0), added))
                run = []
            old, new = old + 1, new + 1
            places[new] = old
        else:
            run.append(step)
            old, new = old + (step == "-"), new + (step == "+")
    for line, was in places.items():
        assert before((line, line), hunks) == (was, was)
