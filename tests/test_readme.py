"""README's session is what the commands print (FIX_README=1 writes it anew), and its commands exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCORE = re.compile(r"\b\d\.\d{3}\b")


def sessions() -> list[tuple[str, str]]:
    """Each `$ command` of the README's console blocks with the output shown below it."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part.strip()]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def stable(output: str) -> list[str]:
    """The lines without trailing space, scores blanked: those may change with the weights of the evidence."""
    return [SCORE.sub("#.###", line.rstrip()) for line in output.rstrip().splitlines()]


@pytest.mark.parametrize(("command", "shown"), sessions(), ids=lambda text: text[:20])
def test_the_session_in_the_readme_is_what_the_command_prints(command, shown, tmp_path):
    words = shlex.split(command)
    assert words[:2] == ["xlocal", "trace"]
    # As in a fresh clone, whose session folder nobody else uses.
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    run = [sys.executable, "-m", "xlocal", *words[1:]]
    env = {**os.environ, "COLUMNS": "120"}
    result = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    if os.environ.get("FIX_README") and stable(result.stdout) != stable(shown):
        fresh = "\n".join(line.rstrip() for line in result.stdout.rstrip().splitlines())
        (ROOT / "README.md").write_text(README.replace(shown.rstrip(), fresh), encoding="utf-8")
        pytest.skip("README.md was written anew")
    assert stable(result.stdout) == stable(shown)


def test_the_readme_has_a_session():
    assert [shown for _, shown in sessions() if len(shown.splitlines()) >= 8]


def test_the_readme_names_make_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"^    make (\w+)", README, re.MULTILINE)
    assert named == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)


def test_the_readme_names_commands_and_rankers_that_exist():
    shown = subprocess.run(
        [sys.executable, "-m", "xlocal", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for command in set(re.findall(r"xlocal (trace|rank|demo|doctor|report|fix|swe|mcp)\b", README)):
        assert re.search(rf"^  {command}\b", shown, re.MULTILINE), command
