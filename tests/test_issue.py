"""Issues from files and the hub, what is refused, and that nothing which grades an answer is part of an issue."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import sys
import types
from datetime import UTC, datetime

import pytest
from xlocal.swe_pipeline.issue import ALIASES, GRADING_FIELDS, Dataset, Issue, load_dataset, read_instances
from xlocal.swe_pipeline.specs import Spec, spec_of
from xlocal.tracer.errors import UsageError

ROW = {
    "instance_id": "owner__name-1",
    "repo": "owner/name",
    "base_commit": "0123456789abcdef0123456789abcdef01234567",
    "problem_statement": "It fails.\n\nBadly.",
    "version": "1.2",
    "created_at": "2020-02-03T04:05:06Z",
    "patch": "the gold patch",
    "test_patch": "the gold tests",
    "FAIL_TO_PASS": '["test_a"]',
    "PASS_TO_PASS": ["test_b", "test_c"],
}


def load(tmp_path, *rows, name="rows.jsonl") -> Dataset:
    file = tmp_path / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_dataset(str(file))


def refusal(tmp_path, text, name="rows.jsonl") -> str:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_dataset(str(file))
    return str(caught.value).replace(str(file), "FILE")


def test_a_row_becomes_an_issue_and_apart_from_it_what_grades_it(tmp_path):
    data = load(tmp_path, ROW)
    assert data.issues == (
        Issue(
            id="owner__name-1",
            repository="owner/name",
            base_commit=ROW["base_commit"],
            statement="It fails.\n\nBadly.",
            version="1.2",
            created=datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC),
        ),
    )
    gold = data.gold["owner__name-1"]
    assert (gold.patch, gold.test_patch) == ("the gold patch", "the gold tests")
    assert (gold.fail_to_pass, gold.pass_to_pass) == (("test_a",), ("test_b", "test_c"))


def all_text(value) -> str:
    return json.dumps(dataclasses.asdict(value), default=str)


def test_no_grading_field_is_part_of_an_issue(tmp_path):
    row = {**ROW, **{name: f'["secret of {name}"]' for name in GRADING_FIELDS}}
    (issue,) = load(tmp_path, row).issues
    assert "secret" not in all_text(issue)
    assert {field.name for field in dataclasses.fields(Issue)}.isdisjoint(GRADING_FIELDS)


def test_no_grading_field_of_the_benchmark_is_part_of_an_issue(shared_data):
    file = shared_data / "data" / "swe_bench_lite.jsonl"
    rows = {row["instance_id"]: row for row in map(json.loads, file.read_text().splitlines())}
    data = load_dataset(str(file))
    assert len(data.issues) == len(data.gold) == 300
    for issue in data.issues:
        values = {value for value in dataclasses.asdict(issue).values() if isinstance(value, str)}
        assert values.isdisjoint({rows[issue.id][name] for name in GRADING_FIELDS})
        assert issue.setup == {}


def test_every_version_of_the_benchmark_has_its_facts(shared_data):
    for issue in load_dataset(str(shared_data / "data" / "swe_bench_lite.jsonl")).issues:
        spec = spec_of(issue)
        assert spec.distribution
        assert spec.until
        assert spec.test[0] == "python"
        if spec.install == "overlay":
            assert spec.releases(issue.created)


@pytest.mark.parametrize(("version", "extra"), [("2.13", "testutil"), ("2.14", "testutils"), ("2.15", "testutils")])
def test_pylints_extra_for_tests_has_the_name_of_its_version(version, extra):
    found = spec_of(Issue("a", "pylint-dev/pylint", "abcdef0", "text", version=version))
    assert (found.extras, found.python, bool(found.until)) == ((extra,), "3.9", True)


def test_one_hand_written_issue_needs_four_fields(tmp_path):
    file = tmp_path / "issue.json"
    wanted = ("instance_id", "repo", "base_commit", "problem_statement")
    file.write_text(json.dumps({name: ROW[name] for name in wanted}))
    data = load_dataset(str(file))
    assert [issue.id for issue in data.issues] == ["owner__name-1"]
    assert data.gold == {}


def test_its_setup_says_how_to_install_it(tmp_path):
    setup = {"python": "3.9", "requirements": ["six"], "env": {"A": "b"}, "install": "path"}
    (issue,) = load(tmp_path, {**ROW, "setup": setup}).issues
    spec = spec_of(issue)
    assert (spec.python, spec.requirements, spec.env, spec.install) == ("3.9", ("six",), (("A", "b"),), "path")
    # A month after the report.
    assert spec.until == "2020-03-04"


@pytest.mark.parametrize(
    ("setup", "complaint"),
    [
        ({"pyhton": "3.9"}, "unknown key 'pyhton'"),
        ({"python": 3.9}, "python has the wrong type: 3.9"),
        ({"requirements": "six"}, "requirements has the wrong type"),
        ({"env": {"A": 1}}, "env has the wrong type"),
        ({"install": "magic"}, "install is one of editable, develop, overlay, path, not 'magic'"),
        ({"until": "soon"}, "until is not a date"),
    ],
)
def test_a_bad_setup_is_refused(tmp_path, setup, complaint):
    said = refusal(tmp_path, json.dumps(ROW) + "\n" + json.dumps({**ROW, "instance_id": "b", "setup": setup}))
    assert said.startswith("--dataset FILE: line 2: setup: ")
    assert complaint in said
    (issue,) = load(tmp_path, ROW).issues
    with pytest.raises(UsageError, match="owner__name-1: setup: ") as caught:
        spec_of(dataclasses.replace(issue, setup=setup))
    assert complaint in str(caught.value)


def test_an_unknown_version_of_a_known_repository_is_refused():
    issue = Issue("a", "django/django", "abcdef0", "text", version="1.0")
    with pytest.raises(UsageError, match=r"version '1\.0' of django/django is unknown; known: 3\.0, 3\.1"):
        spec_of(issue)
    assert isinstance(spec_of(dataclasses.replace(issue, repository="owner/name")), Spec)


def without(key):
    return json.dumps({name: value for name, value in ROW.items() if name != key})


def with_(**changed):
    return json.dumps({**ROW, **changed})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no instance"),
        ("{", "line 1: is not JSON: "),
        (with_() + "\n\n[1", "line 3: is not JSON: "),
        ("7", "line 1: is not an object but int"),
        ("[" * 100_000, "is not JSON"),
        (without("repo"), "line 1: repo is missing"),
        (without("problem_statement"), "line 1: problem_statement is missing"),
        (with_(problem_statement="  "), "line 1: problem_statement is empty"),
        (with_(problem_statement=3), "line 1: problem_statement is not text"),
        (with_(base_commit="main"), "line 1: base_commit 'main' is not a commit's hexadecimal name"),
        (with_(base_commit="--upload-pack=x"), "is not a commit's hexadecimal name"),
        (with_(instance_id="../up"), "line 1: instance_id '../up' must consist of letters"),
        (with_(instance_id=".."), "line 1: instance_id '..' must consist of letters"),
        (with_(created_at="yesterday"), "line 1: created_at 'yesterday' is not a date"),
        (with_(FAIL_TO_PASS="["), "line 1: FAIL_TO_PASS: is not JSON"),
        (with_(PASS_TO_PASS='{"a": 1}'), "line 1: PASS_TO_PASS is not a list of test names"),
        (with_(PASS_TO_PASS=[1]), "line 1: PASS_TO_PASS is not a list of test names"),
        (with_(patch=None), "line 1: patch is missing"),
        (with_(setup=[1]), "line 1: setup is not an object"),
        (with_() + "\n" + with_(), "line 2: owner__name-1 is there twice"),
    ],
)
def test_each_fault_of_a_file_is_one_line(tmp_path, text, complaint):
    said = refusal(tmp_path, text)
    assert said.startswith("--dataset FILE: ")
    assert complaint in said
    assert "\n" not in said


def test_line_separators_within_a_text_end_no_row(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({**ROW, "problem_statement": "a\u2028b\x85c"}, ensure_ascii=False), "utf-8")
    assert load_dataset(str(file)).issues[0].statement == "a\u2028b\x85c"


def test_a_list_in_one_document_is_read_too(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([ROW, {**ROW, "instance_id": "b"}], indent=1))
    assert [issue.id for issue in load_dataset(str(tmp_path / "rows.json")).issues] == ["owner__name-1", "b"]
    assert "row 2: base_commit is missing" in refusal(tmp_path, json.dumps([ROW, {"instance_id": "c"}]), "bad.json")


def test_sources_that_are_not_there(tmp_path):
    for source in (str(tmp_path / "none.jsonl"), "nothing-like-it"):
        with pytest.raises(UsageError, match="no such file, and not the name of a dataset"):
            load_dataset(source)
    with pytest.raises(UsageError, match="is a folder"):
        load_dataset(str(tmp_path))


def fake_hub(monkeypatch, load) -> None:
    """Stands in for the package `datasets`: same call, no network."""
    module = types.ModuleType("datasets")
    module.load_dataset = load
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_the_hub_is_asked_by_name_or_alias(monkeypatch):
    asked = []
    fake_hub(monkeypatch, lambda name, split: asked.append((name, split)) or [ROW])
    for source in ("lite", "owner/other"):
        assert [issue.id for issue in load_dataset(source).issues] == ["owner__name-1"]
    assert asked == [(ALIASES["lite"], "test"), ("owner/other", "test")]


def test_a_hub_that_fails_is_one_line(monkeypatch):
    library = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(library, "handlers", [logging.StreamHandler(heard := io.StringIO())])
    monkeypatch.setattr(library, "level", logging.WARNING)
    attempts = logging.getLogger("huggingface_hub.utils")

    def fail(name, split):
        attempts.warning("thrown while requesting HEAD; retrying in 1s")
        raise ConnectionError("no route\nto host")

    fake_hub(monkeypatch, fail)
    with pytest.raises(UsageError, match="cannot be had from the hub: no route to host"):
        load_dataset("lite")
    assert heard.getvalue() == ""
    attempts.warning("told again")
    assert heard.getvalue() == "told again\n"
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match="needs the package datasets"):
        load_dataset("lite")


def test_instances_are_chosen_in_the_order_named(tmp_path):
    data = load(tmp_path, ROW, {**ROW, "instance_id": "b"}, {**ROW, "instance_id": "c"})
    assert [issue.id for issue in data.select(("c", "owner__name-1", "c"))] == ["c", "owner__name-1"]
    assert data.select(None) == data.issues
    with pytest.raises(UsageError, match=r"no instance owner__name-2 and 1 more .*did you mean owner__name-1\?"):
        data.select(("owner__name-2", "x"))


def test_instances_come_from_a_list_or_a_file(tmp_path):
    assert read_instances(None) is None
    assert read_instances("a,b") == ("a", "b")
    assert read_instances("alone") == ("alone",)
    file = tmp_path / "ids.txt"
    file.write_text("# chosen\na\nb, c\n")
    assert read_instances(str(file)) == ("a", "b", "c")
    file.write_text("# none\n")
    for empty in (str(file), ",", "", "  "):
        with pytest.raises(UsageError, match="names no instance"):
            read_instances(empty)
