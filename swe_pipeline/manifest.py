"""The manifest of a run, `run.json`: what ran, with which versions, seeds and arguments, and what it cost."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from xlocal.swe_pipeline.grade import write_text
from xlocal.tracer.errors import UsageError

FORMAT = 1
MANIFEST = "run.json"
_VERSIONS = ("xlocal", "swebench", "ray", "numpy", "numba", "pydantic-ai-slim", "docker")


def open_manifest(
    folder: Path, *, steps: Mapping[str, Mapping[str, Any]], seed: int, told: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the manifest of a run that starts or is resumed, and return it; `told` is kept with it.

    Raises UsageError when the folder holds a run of other steps, other arguments of them, or another seed.
    """
    fixed = json.loads(json.dumps(steps))
    former = read_manifest(folder)
    if former is not None:
        if difference := _difference(former["steps"], fixed):
            raise UsageError(f"{folder}: holds a run with {difference}; use another folder")
        if former["seed"] != seed:
            raise UsageError(f"{folder}: holds a run with seed {former['seed']}, not {seed}; use another folder")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = {
        "format": FORMAT,
        "started": former["started"] if former else now,
        "resumed": [*former["resumed"], now] if former else [],
        "state": "running",
        "versions": {"python": platform.python_version(), **_versions()},
        "platform": platform.platform(),
        "seed": seed,
        "steps": fixed,
        **told,
    }
    write_manifest(folder, manifest)
    return manifest


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write it whole or not at all."""
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1, default=str) + "\n")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a run's folder, None when there is none. Raises UsageError when it is damaged."""
    file = folder / MANIFEST
    try:
        document = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read ({error}); use another folder") from None
    keys = ("steps", "seed", "started", "resumed")
    if not isinstance(document, dict) or document.get("format") != FORMAT or any(key not in document for key in keys):
        raise UsageError(f"{file}: is not the manifest of a run of this xlocal; use another folder")
    return document


def _difference(former: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first way in which two runs' steps differ, in words; empty when they do not."""
    if list(former) != list(now):
        return f"the steps {', '.join(former) or '(none)'}"
    for step, arguments in now.items():
        for key in {**former[step], **arguments}:
            if former[step].get(key) != arguments.get(key):
                return f"{step}: {key} = {former[step].get(key)!r}, not {arguments.get(key)!r}"
    return ""


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONS:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
