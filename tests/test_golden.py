"""Golden trees: the same programs, per Python version one tree, which every backend must give.

`XLOCAL_GOLDEN=write pytest tests/test_golden.py -m ""` makes them anew, from the backend that sees the most; look at the
difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from probed import Probe, on_each_probe, run_probed

GOLDEN = Path(__file__).resolve().parent / "golden"
PROGRAMS = sorted(path.stem for path in (GOLDEN / "programs").glob("*.py"))


@on_each_probe
@pytest.mark.parametrize("program", PROGRAMS)
def test_golden_tree(probe: Probe, program: str, tmp_path: Path) -> None:
    source = (GOLDEN / "programs" / f"{program}.py").read_text("utf-8")
    run = run_probed(probe, tmp_path, source)
    assert (run.status, run.stderr, run.slugs) == (0, "", [])
    file = GOLDEN / f"{probe.version[0]}.{probe.version[1]}" / f"{program}.txt"
    if os.environ.get("XLOCAL_GOLDEN") == "write" and probe.backend != "setprofile":
        file.parent.mkdir(exist_ok=True)
        file.write_text(run.tree + "\n", "utf-8")
    golden = file.read_text("utf-8").splitlines()
    assert run.tree.splitlines() == [_as_seen_by(probe, full, seen) for full, seen in _pairs(golden, run.tree)]


def _pairs(golden: list[str], seen: str) -> list[tuple[str, str]]:
    lines = seen.splitlines()
    return list(zip(golden, lines + [""] * (len(golden) - len(lines)), strict=False))


def _as_seen_by(probe: Probe, full: str, seen: str) -> str:
    """A Python profile function is not told of exceptions: it misses those thrown in at a yield, and the type of those
    that C code catches."""
    if probe.backend != "setprofile":
        return full
    call, _, kind = full.partition(" !")
    return seen if kind and seen in (call, f"{call} !?") else full
