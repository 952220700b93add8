"""SARIF and GitHub annotations: as their definitions have them, with paths that point into the repository.

The checks here follow SARIF 2.1.0 (OASIS). Where the variable XLOCAL_SARIF_SCHEMA names its JSON schema (see
CONTRIBUTING.md) and jsonschema is installed, the log is held to that as well.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from click.testing import CliRunner
from small import located
from test_html_report import HOSTILE, a_localization
from xlocal.ranking.closer import KINDS as CLOSER_KINDS
from xlocal.ranking.rank import KIND_RATES
from xlocal.tracer.errors import Warned
from xlocal.tracer.scope import Scope, ScopeRoot

from xlocal.annotations import as_annotations, command
from xlocal.cli import cli
from xlocal.sarif import KINDS, UNSEEN, as_sarif, base_of, differing_lines

HOW_IT_WORKS = Path(__file__).resolve().parent.parent / "docs" / "how_it_works.md"
SOURCE = Scope((ScopeRoot("/w/proj", "/w/proj", "proj", "/w/proj"),))
INSTALLED = Scope((ScopeRoot("/e/lib/python3.11/site-packages/f", "/e/lib/python3.11/site-packages", "f", "/x"),))

MODULE = """
    def top(odd):
        return second(odd)

    def second(odd):
        if odd:
            raise KeyError(odd)
        return 1
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sarif")
    located(folder, MODULE, "import lib; lib.top(True)", "import lib; lib.top(False)")
    return folder / "session"


def run(*arguments: str):
    return CliRunner().invoke(cli, list(arguments), prog_name="xlocal")


def checked_run(text: str) -> dict:
    """The only run of a log, after checks from the standard (the numbers are its sections)."""
    log = json.loads(text)
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"  # 3.13.2
    [run_] = log["runs"]
    driver = run_["tool"]["driver"]  # 3.18.2
    rules = driver["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)  # 3.19.23
    for rule in rules:
        assert re.fullmatch(r"[A-Za-z0-9-]+", rule["id"])
        assert rule["shortDescription"]["text"].endswith(".")
    for result in run_["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]  # 3.27.6
        assert result["level"] in ("none", "note", "warning", "error")  # 3.27.10
        assert 0 <= result.get("rank", 0) <= 100  # 3.27.25
        assert result["message"]["text"]  # 3.11.8
        places = [*result["locations"], *result.get("relatedLocations", ())]
        assert [place["id"] for place in result.get("relatedLocations", ())] == list(range(1, len(places)))  # 3.28.2
        for place in places:
            artifact = place["physicalLocation"]["artifactLocation"]
            assert not re.match(r"[a-zA-Z]+:|/|.*\.\.", artifact["uri"])  # 3.4.3: relative where there is a base
            assert re.fullmatch(r"[\w%./~-]+", artifact["uri"], re.ASCII)
            assert artifact["uriBaseId"] in run_["originalUriBaseIds"]  # 3.4.4
            region = place["physicalLocation"].get("region", {"startLine": 1, "endLine": 1})
            assert 1 <= region["startLine"] <= region["endLine"]  # 3.30.5
    for invocation in run_["invocations"]:
        assert isinstance(invocation["executionSuccessful"], bool)  # 3.20.14
        for notification in invocation["toolExecutionNotifications"]:
            descriptor = notification["descriptor"]
            assert driver["notifications"][descriptor["index"]]["id"] == descriptor["id"]  # 3.52.4
    return run_


def against_the_schema(text: str) -> list[str]:
    """What the standard's own schema finds wrong; skips where it is not there."""
    schema = os.environ.get("XLOCAL_SARIF_SCHEMA")
    if not schema or importlib.util.find_spec("jsonschema") is None:
        pytest.skip("XLOCAL_SARIF_SCHEMA names no schema (see CONTRIBUTING.md), or jsonschema is not installed")
    import jsonschema

    rules = json.loads(Path(schema).read_text("utf-8"))
    validator = jsonschema.validators.validator_for(rules)(rules)
    return [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(json.loads(text))]


def test_a_real_session_becomes_a_log(session):
    result = run("rank", "--session", str(session), "--format", "sarif")
    assert result.exit_code == 0
    found = checked_run(result.stdout)
    second = next(item for item in found["results"] if "second" in item["message"]["text"].split(":")[0])
    place = second["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "lib.py", "uriBaseId": "SRCROOT"}
    assert place["region"] == {"startLine": 5, "endLine": 8}
    related = [
        (item["physicalLocation"]["region"]["startLine"], item["message"]["text"])
        for item in second["relatedLocations"]
    ]
    assert (7, "ran once in the buggy run, 0 times in the reference run") in related
    top = next(item for item in found["results"] if ", top:" in item["message"]["text"])
    assert any("calls suspect" in item["message"]["text"] for item in top["relatedLocations"])


def test_a_real_log_fits_the_schema(session):
    assert against_the_schema(run("rank", "--session", str(session), "--format", "sarif").stdout) == []


def test_a_hostile_log_fits_the_schema():
    assert against_the_schema(as_sarif(a_localization(HOSTILE, text=HOSTILE), SOURCE, top=20)) == []


def test_top_bounds_the_results(session):
    assert (
        len(checked_run(run("rank", "--session", str(session), "--format", "sarif", "--top", "1").stdout)["results"])
        == 1
    )


def test_a_log_without_suspects_says_why():
    found = a_localization()
    empty = dataclasses.replace(found, suspects=(), warnings=(Warned("hook-lost", "text"),))
    run_ = checked_run(as_sarif(empty, SOURCE, top=20))
    assert run_["results"] == []
    [invocation] = run_["invocations"]
    slugs = [item["descriptor"]["id"] for item in invocation["toolExecutionNotifications"]]
    assert slugs == ["hook-lost", "nothing-found"]


def test_there_is_one_rule_for_each_kind_of_evidence():
    table = re.findall(r"^\| (`.*?) \|", HOW_IT_WORKS.read_text("utf-8"), re.MULTILINE)
    documented = {kind for row in table for kind in re.findall(r"`([a-z-]+)`", row)}
    assert documented <= KINDS.keys()
    assert set(KIND_RATES) | set(CLOSER_KINDS) <= KINDS.keys()
    assert UNSEEN in KINDS


def test_paths_are_encoded_and_come_back():
    found = a_localization("dir with space/ü#?", text="x")
    [result] = checked_run(as_sarif(found, SOURCE, top=1))["results"]
    assert unquote(result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]) == "dir with space/ü#?.py"


def test_an_installed_package_has_a_base_of_its_own():
    function = a_localization("f/g").suspects[0].suspect.function
    assert base_of(function, INSTALLED) == "PACKAGES"
    assert base_of(function, SOURCE) == "SRCROOT"


def test_fingerprints_stay_when_lines_move():
    found = a_localization()
    moved = dataclasses.replace(
        found,
        suspects=tuple(
            dataclasses.replace(ranked, suspect=dataclasses.replace(ranked.suspect, line=50, end_line=60))
            for ranked in found.suspects
        ),
    )
    prints = [
        checked_run(as_sarif(each, SOURCE, top=1))["results"][0]["partialFingerprints"] for each in (found, moved)
    ]
    assert prints[0] == prints[1]


def test_differing_lines_are_taken_together():
    view = a_localization().comparison.views[0]
    lines = (((1, 1), (2, 1), (3, 4), (9, 1)), ((3, 2), (9, 1)))
    spans = differing_lines(dataclasses.replace(view, lines=lines))
    assert [tuple(span) for span in spans] == [(1, 2, 1, 0), (3, 3, 4, 2)]


# --- annotations --------------------------------------------------------------------------------------------------------


def read_back(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as the runner reads it."""
    name, properties, text = re.fullmatch(r"::(\w+) (.*?)::(.*)", line).groups()

    def plain(value: str) -> str:
        return re.sub("%(0D|0A|3A|2C|25)", lambda found: chr(int(found[1], 16)), value)

    pairs = (pair.partition("=") for pair in properties.split(","))
    return name, {key: plain(value) for key, _, value in pairs}, plain(text)


def test_annotations_point_into_the_repository(session):
    result = run("rank", "--session", str(session), "--format", "github")
    assert result.exit_code == 0
    commands = [read_back(line) for line in result.stdout.splitlines()]
    name, properties, text = next(each for each in commands if "second" in each[1]["title"])
    assert name == "warning"
    assert (properties["file"], properties["line"], properties["endLine"]) == ("lib.py", "5", "8")
    assert text


def test_annotations_of_an_installed_package_name_the_place_in_their_text():
    [line] = as_annotations(a_localization("f/g"), INSTALLED, top=1).splitlines()
    _, properties, text = read_back(line)
    assert "file" not in properties
    assert text.startswith("f/g.py:1: ")


def test_hostile_names_make_no_further_command():
    text = as_annotations(a_localization("a\n::error::x,y:z%", text="b\r\n::stop-commands::t"), SOURCE, top=5)
    [line] = text.splitlines()
    assert line.count("::") == 2 + line.partition(" ")[2].count("::") - 1
    _, properties, _ = read_back(line)
    assert properties["file"] == "a\n::error::x,y:z%.py"


def test_a_command_comes_back_as_it_was():
    properties = {"file": "a,b:c%d.py", "title": "t\nu"}
    assert read_back(command("warning", properties, "x%0A\ny: z, ::")) == ("warning", properties, "x%0A\ny: z, ::")
