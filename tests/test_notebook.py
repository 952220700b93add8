"""The cell magics, in a real IPython shell of a process of its own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from xlocal.tracer.errors import UsageError

from xlocal.notebook import Cells

ROOT = Path(__file__).resolve().parent.parent
BUGGY = 'from timesheet import Sheet\nassert Sheet().add("review", "1d 2h") == 600\n'
REFERENCE = 'from timesheet import Sheet\nassert Sheet().add("review", "8h 2h") == 600\n'
SHELL = """
import contextlib, io, json, sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

settings = Config()
settings.HistoryManager.enabled = False
shell = InteractiveShell(config=settings)
shell.run_line_magic("load_ext", "xlocal")
shown = []
for cell in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        result = shell.run_cell(cell)
    error = result.error_in_exec or result.error_before_exec
    data = {} if result.result is None else shell.display_formatter.format(result.result)[0]
    shown.append({"error": None if error is None else f"{type(error).__name__}: {error}", "data": data,
                  "printed": out.getvalue() + err.getvalue()})
print("RESULT", json.dumps(shown))
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    shutil.copytree(ROOT / "examples" / "timesheet" / "timesheet", tmp_path / "timesheet")
    return tmp_path


def run_cells(folder: Path, *cells: str) -> list[dict]:
    pytest.importorskip("IPython")
    program = [sys.executable, "-c", SHELL]
    done = subprocess.run(program, cwd=folder, input=json.dumps(cells), capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    assert line, done.stdout + done.stderr
    return json.loads(line.removeprefix("RESULT "))


def test_two_cells_are_compared_and_shown_as_tables(folder):
    first, second, wrong = run_cells(
        folder,
        "%%xlocal buggy --repeat 1 --top 3\n" + BUGGY,
        '%%xlocal reference --repeat 1 --top 3 --issue "A day is too long"\n' + REFERENCE,
        "%%xlocal other\npass",
    )
    assert "kept as" in first["data"]["text/plain"]
    assert "%%xlocal reference" in first["data"]["text/plain"]
    assert second["error"] is None
    assert "from_days" in second["data"]["text/html"]
    assert second["data"]["text/html"].count("<table>") == 2
    assert wrong["error"].startswith("UsageError: %%xlocal: argument role: invalid choice: 'other'")
    shown = second["data"]["text/plain"].splitlines()
    assert shown[0].split() == ["rank", "function", "where", "why"]
    assert "from_days" in second["data"]["text/plain"]
    assert re.fullmatch(r"\.\.\. and \d+ more", shown[-1])
    assert len(shown) == 1 + 3 + 1
    assert (folder / ".xlocal" / "notebook" / "buggy.py").read_text().strip() == BUGGY.strip()


def test_mistakes_are_answered_in_one_line_without_a_traceback(folder):
    cells = [
        "%%xlocal\npass",
        "%%xlocal bugy\npass",
        "%%xlocal buggy --colour\npass",
        "%%xlocal buggy --repeat 0\npass",
        '%%xlocal buggy --issue "no end\npass',
        "%%xlocal buggy\nx = 1\ndef f(:\n    pass",
        "%%xlocal buggy --scope nowhere\npass",
        "%%xlocal reference\npass",
    ]
    told = run_cells(folder, *cells)
    wrong = [one["error"] for one in told if one["error"]]
    assert len(wrong) == len(cells) - 1  # the last but one only says that a reference is wanted
    assert all(error.startswith("UsageError: ") and "\n" not in error for error in wrong)
    assert "arguments are required: role; usage: %%xlocal buggy|reference" in wrong[0]
    assert "'0' is no whole number above 0" in wrong[3]
    assert "No closing quotation" in wrong[4]
    assert wrong[5].startswith("UsageError: %%xlocal buggy, line 2 below it: SyntaxError: ")
    assert "--scope nowhere" in wrong[6]
    assert not any("Traceback" in one["printed"] for one in told)


def test_the_extension_can_be_unloaded_and_loaded_again(folder):
    loaded, unload, gone, load, again = run_cells(
        folder,
        "%%xlocal buggy --repeat 1\n" + BUGGY,
        "%unload_ext xlocal",
        "%%xlocal buggy\npass",
        "%load_ext xlocal",
        "%%xlocal buggy --repeat 1\n" + BUGGY,
    )
    assert [one["error"] for one in (loaded, unload, load, again)] == [None] * 4
    assert "not found" in gone["printed"] + str(gone["error"])
    assert "kept as" in again["data"]["text/plain"]


def test_several_references_are_told_apart_and_a_cell_may_run_again(folder, monkeypatch):
    monkeypatch.chdir(folder)
    cells = Cells()
    assert "%%xlocal buggy" in str(cells.run("reference simple --repeat 1", REFERENCE))
    cells.run("reference other --repeat 1", REFERENCE.replace("8h 2h", "10h"))
    found = cells.run("buggy --repeat 1", BUGGY)
    assert [run.role for run in found.localization.runs] == ["buggy", "reference-1", "reference-2"]
    again = cells.run("buggy --repeat 1", BUGGY.replace("review", "call"))
    assert [run.command for run in again.localization.runs] == [run.command for run in found.localization.runs]
    assert "from_days" in again.names()[:3]


@pytest.mark.parametrize("line", ["reference ../x", "", "buggy --unknown", "buggy --repeat many"])
def test_wrong_words_are_refused(folder, monkeypatch, line):
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match="%%xlocal"):
        Cells().run(line, "pass")
    assert not (folder / ".xlocal").exists()
