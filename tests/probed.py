"""The small language of the recorder's tests: run a source under the probe, in a process, and read its tree.

`assert tree_of(source) == "main\\n  f !ValueError"` is a whole test; `on_each_probe` repeats one for every backend of
the host's interpreter, and (marked slow) of every other interpreter found.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from environments import found_interpreters
from xlocal.tracer.decode import RawTree, decode
from xlocal.tracer.native import build
from xlocal.tracer.trace import Trace, load_all

ROOT = Path(__file__).resolve().parent.parent
PROBE_FILE = ROOT / "tracer" / "probe.py"


class Probe(NamedTuple):
    """One way to record: an interpreter and a backend."""

    python: str
    version: tuple[int, int]
    backend: str

    def __str__(self) -> str:
        return f"{self.version[0]}.{self.version[1]}-{self.backend}"

    @property
    def uses_setprofile(self) -> bool:
        """Whether the program's own `sys.setprofile` takes the hook away."""
        return self.backend == "setprofile" or self.version < (3, 12)


def _backends(version: tuple[int, int]) -> Sequence[str]:
    return ("setprofile", "monitoring", "native") if version >= (3, 12) else ("setprofile", "native")


@cache
def native_recorder(python: str) -> str:
    """The compiled recorder of an interpreter, in a cache of the tests' own; skips where it cannot be built."""
    with tempfile.TemporaryDirectory(prefix="xlocal-tests-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLOCAL_CACHE", folder)
        built = build(python)
        if built.path is None:
            pytest.skip(f"no native recorder: {built.warning}")
        kept = Path(_NATIVE.name) / hashlib.sha256(python.encode()).hexdigest()[:8] / built.path.name
        kept.parent.mkdir()
        shutil.copy(built.path, kept)
    return str(kept)


_NATIVE = tempfile.TemporaryDirectory(prefix="xlocal-native-")


@cache
def probes() -> tuple[Probe, ...]:
    """The host's own first, then those of the other interpreters."""
    host = (sys.version_info[0], sys.version_info[1])
    pythons = {host: sys.executable}
    for found in found_interpreters():
        pythons.setdefault((found.version[0], found.version[1]), str(found.path))
    return tuple(
        Probe(python, version, backend) for version, python in pythons.items() for backend in _backends(version)
    )


def _parameters(chosen: Sequence[Probe]) -> list[Any]:
    return [pytest.param(p, id=str(p), marks=() if p.python == sys.executable else pytest.mark.slow) for p in chosen]


on_each_probe = pytest.mark.parametrize("probe", _parameters(probes()))


@dataclass(frozen=True)
class Run:
    """A recorded program that has ended."""

    folder: Path
    status: int
    stdout: str
    stderr: str

    @property
    def traces(self) -> tuple[Trace, ...]:
        return load_all(self.folder)

    @property
    def main(self) -> Trace:
        return Trace.load(self.folder / "main.xtrace")

    @property
    def tree(self) -> str:
        return outline(decode(self.traces))

    @property
    def slugs(self) -> list[str]:
        return [warning.slug for warning in self.main.warnings]


def run_probed(
    probe: Probe,
    folder: Path,
    source: str,
    *,
    argv: Sequence[str] = (),
    env: dict[str, str] | None = None,
    mode: str = "script",
    target: str | None = None,
    signal_after: tuple[str, int] | None = None,
    **changes: Any,
) -> Run:
    """Run `source` (saved as main.py in `folder`, which is its scope) under the probe.

    `signal_after` is (a line that the program prints, the signal to send it then).
    """
    script = folder / "main.py"
    script.write_text(textwrap.dedent(source), "utf-8")
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    target = target or str(script)
    config = {
        "version": 1,
        "mode": mode,
        "target": target,
        "argv": ["pytest", *argv, target] if mode == "pytest" else [target, *argv],
        "scope": [f"{folder}{os.sep}"],
        "out": str(out),
        "hook": str(out),
        "seed": 0,
        "backend": probe.backend,
        "native": native_recorder(probe.python) if probe.backend == "native" else None,
        **changes,
    }
    (out / "config.json").write_text(json.dumps(config, ensure_ascii=False), "utf-8")
    words = [probe.python, str(PROBE_FILE), str(out / "config.json")]
    process = subprocess.Popen(
        words, cwd=folder, env=_environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )
    before = ""
    if signal_after is not None:
        assert process.stdout is not None
        while not before.endswith(signal_after[0] + "\n"):
            line = process.stdout.readline()
            assert line, "the program ended before it could be sent a signal"
            before += line
        process.send_signal(signal_after[1])
    stdout, stderr = process.communicate(timeout=120)
    return Run(out, process.returncode, before + stdout, stderr)


def run_plain(probe: Probe, folder: Path, words: Sequence[str], *, env: dict[str, str] | None = None) -> Run:
    """The same interpreter without the probe."""
    done = subprocess.run(
        [probe.python, *words], cwd=folder, env=_environment(env), capture_output=True, encoding="utf-8", check=False
    )
    return Run(folder, done.returncode, done.stdout, done.stderr)


def _environment(extra: dict[str, str] | None) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "XLOCAL_PARENT"))}
    return {**ours, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", **(extra or {})}


def outline(raw: RawTree, *, imports: bool = False) -> str:
    """One call a line, indented under its caller: `f`, `f !ValueError` when that left it, `class C`, `import m`.

    The work of imports is left out with all below it, unless `imports`.
    """
    depth = [-1] * len(raw.code)
    hidden = [False] * len(raw.code)
    lines = []
    for node in range(1, len(raw.code)):
        code, above = raw.codes[raw.code[node]], raw.parent[node]
        depth[node] = depth[above] + 1
        hidden[node] = hidden[above] or (code.kind == "import" and not imports)
        if not hidden[node]:
            name = {"import": f"import {Path(code.filename).stem}", "class": f"class {code.name}"}.get(
                code.kind, code.name
            )
            raised = f" !{raw.exceptions[raw.raised[node]]}" if raw.raised[node] >= 0 else ""
            lines.append("  " * depth[node] + name + raised)
    return "\n".join(lines)


def tree(text: str) -> str:
    """A tree written in a test, indented as the test is."""
    return textwrap.dedent(text).strip("\n").rstrip()
