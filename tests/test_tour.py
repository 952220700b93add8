"""The tour's commands print what docs/tour.md shows (FIX_TOUR=1 writes it anew)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tour.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
# What differs from run to run and from release to release: scores, times, addresses, folders.
VOLATILE = ((r"\b\d\.\d{3}\b", "#.###"), (r"in [\d.]+s( \([\d:]+\))?", "in #s"), (r"0x[0-9a-f]+", "0x#"))


def commands(block: str) -> list[tuple[str, str]]:
    """Each `$ command` of a block with the output shown below it."""
    parts = [part for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part.strip()]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def stable(output: str) -> list[str]:
    for pattern, stand_in in VOLATILE:
        output = re.sub(pattern, stand_in, output)
    return [line.rstrip() for line in output.strip().splitlines()]


def environment(folder: Path) -> dict[str, str]:
    person = {f"GIT_{role}_{what}": "a@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # pytest prints longer summaries where CI or BUILD_NUMBER is set; the page shows a terminal's.
    unlike = ("PYTEST", "VIRTUAL_ENV", "COV_", "CI", "BUILD_NUMBER", "GITHUB_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unlike)}
    return {
        **kept,
        **person,
        "PATH": path,
        "COLUMNS": "100",
        "HOME": str(folder.parent),
        "GIT_CONFIG_GLOBAL": os.devnull,
    }


@pytest.mark.slow
def test_the_tour_is_true(tmp_path):
    folder = tmp_path / "timesheet"
    shutil.copytree(ROOT / "examples" / "timesheet", folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    page, told = PAGE.read_text("utf-8"), []
    for block in BLOCK.findall(page):
        fresh = ""
        for command, shown in commands(block):
            run = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=environment(folder),
                capture_output=True,
                text=True,
                check=False,
            )
            assert run.returncode in (0, 1), f"{command}: {run.stderr}"
            told.append((command, stable(shown), stable(run.stdout), run.stderr))
            fresh += f"$ {command}\n" + "".join(f"{line.rstrip()}\n" for line in run.stdout.strip("\n").splitlines())
        page = page.replace(block, fresh)
    if os.environ.get("FIX_TOUR"):
        PAGE.write_text(page, "utf-8")
        pytest.skip("docs/tour.md was written anew")
    for command, shown, printed, said in told:
        assert printed == shown, f"{command}\n{said}"


def test_the_tour_shows_something_for_nearly_every_command():
    shown = [output for block in BLOCK.findall(PAGE.read_text("utf-8")) for _, output in commands(block)]
    assert len(shown) >= 7
    assert sum(bool(output.strip()) for output in shown) >= len(shown) - 2
