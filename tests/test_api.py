"""The Python API: the documented examples run, and what comes back shows itself everywhere."""

from __future__ import annotations

import doctest
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import xlocal
from xlocal.api import Found

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("api") / "timesheet"
    shutil.copytree(ROOT / "examples" / "timesheet", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".git").mkdir()
    return folder


@pytest.fixture(autouse=True)
def _in_the_project(project, monkeypatch) -> None:
    monkeypatch.chdir(project)


@pytest.fixture(scope="module")
def found(project) -> Found:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(project)
        issue = project / "issue.txt"
        return xlocal.localize(Path("buggy.py"), "reference.py", issue=issue, repeat=1, session=project / "s", top=3)


def test_the_documented_examples_are_true():
    failed, tried = doctest.testfile(str(ROOT / "docs" / "api.md"), module_relative=False)
    assert tried > 15
    assert failed == 0


def test_every_public_name_is_there():
    for name in xlocal.__all__:
        assert getattr(xlocal, name) is not None
    assert {"localize", "trace", "load_ipython_extension"} <= set(dir(xlocal))


def test_found_is_a_sequence_of_suspects(found):
    assert len(found) == len(found.suspects) > 3
    assert [ranked.rank for ranked in found] == list(range(1, len(found) + 1))
    assert found[0].suspect.function.qualname == "from_days"
    assert str(found).splitlines()[0] == "1. from_days (timesheet/entry.py:31)"
    assert len(str(found).splitlines()) == 3
    assert found.localization.issue.startswith("Days are counted too long")


def test_the_repr_is_a_short_table(found):
    lines = repr(found).splitlines()
    assert lines[0].split() == ["rank", "function", "where", "why"]
    assert lines[1].split()[:3] == ["1", "from_days", "timesheet/entry.py:31"]
    assert lines[-1] == f"... and {len(found) - 3} more"
    assert max(map(len, lines)) < 140
    starts = {line.index(str(one.suspect.function.qualname)) for line, one in zip(lines[1:-1], found, strict=False)}
    assert starts == {lines[0].index("function")}


def test_rich_shows_what_the_command_prints(found):
    plain, coloured = StringIO(), StringIO()
    Console(file=plain, width=120).print(found)
    Console(file=coloured, width=120, force_terminal=True, color_system="standard").print(found)
    for text in ("buggy.py", "The call trees differ by 1 edit (exact).", "from_days", "timesheet/entry.py:31"):
        assert text in plain.getvalue()
    assert "\x1b[" not in plain.getvalue()
    assert "\x1b[" in coloured.getvalue()
    assert max(map(len, plain.getvalue().splitlines())) <= 120


class Nesting(HTMLParser):
    """Fails for a tag that is closed out of turn, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(html: str) -> str:
    reader = Nesting()
    reader.feed(html)
    assert reader.open == []
    return " ".join(reader.text)


def test_notebooks_get_well_formed_tables(found):
    text = parsed(found._repr_html_())
    assert "from_days" in text
    assert "timesheet/entry.py:31" in text
    assert found._repr_html_().count("<tr>") == 1 + 2 + 1 + 3  # heads and rows of both tables


def test_what_the_program_says_is_text_not_markup(project):
    (project / "odd.py").write_text(
        "from timesheet import Sheet\nSheet().add('a', '1d')\nraise ValueError('<b>&amp;')\n"
    )
    answer = xlocal.localize("odd.py", "reference.py", repeat=1, values=False, session=project / "odd")
    html = answer._repr_html_()
    assert "<b>" not in html
    assert "ValueError: <b>&amp;" in parsed(html)
    shown = StringIO()
    Console(file=shown, width=100).print(answer)
    assert "<b>&amp;" in shown.getvalue()


def test_nothing_found_says_why(project):
    same = xlocal.localize("reference.py", "reference.py", repeat=1, session=project / "same")
    assert len(same) == 0
    assert str(same) == "no suspects"
    assert repr(same).startswith("No suspects. Compared ")
    assert same.warnings[-1].slug == "nothing-found"
    assert "No suspects." in parsed(same._repr_html_())


def test_traced_shows_the_calls(project):
    (project / "raises.py").write_text("from timesheet import Sheet\nprint('hello')\nSheet().add('a', 'nothing')\n")
    traced = xlocal.trace("raises.py", scope="timesheet")
    assert (traced.exit_status, traced.exception) == (1, "ValueError")
    assert traced.stdout == "hello\n"
    assert str(traced).startswith("raises.py: ValueError: no time in 'nothing'; 3 calls of 3 functions")
    assert "parse_entry" in parsed(traced._repr_html_())
    shown = StringIO()
    Console(file=shown, width=100).print(traced)
    assert "Sheet.add" in shown.getvalue()


def test_importing_the_package_loads_none_of_it():
    code = "import sys, xlocal; print(sorted(n for n in sys.modules if n.startswith(('xlocal.', 'numpy', 'rich'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
