"""What works on this machine: interpreters, backends, extras, model weights, devices, programs; and what to install."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from xlocal.ranking.encoder import DEFAULT_MODEL
from xlocal.tracer.errors import UsageError
from xlocal.tracer.launch import fixed_addresses, why_addresses_vary
from xlocal.tracer.native import build
from xlocal.tracer.record import Interpreter, check_interpreter

EXTRAS = {
    "": ("numba",),
    "unixcoder": ("torch", "transformers"),
    "agents": ("pydantic-ai-slim", "genai-prices"),
    "mcp": ("mcp",),
    "swe": ("swebench", "datasets"),
    "docker": ("docker",),
    "ray": ("ray",),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked for: whether it works, what was found, and what to type when it is missing."""

    area: str
    name: str
    works: bool
    detail: str
    install: str | None = None


def examine() -> tuple[Check, ...]:
    """Look for everything that xlocal can use; starts interpreters, builds their recorders, downloads nothing."""
    return (*_interpreters(), *_recording(), *_extras(), *_models(), *_programs())


def as_json(checks: tuple[Check, ...]) -> str:
    """`{"schema": 1, "checks": [...]}` with a final newline."""
    return json.dumps({"schema": 1, "checks": [asdict(check) for check in checks]}, indent=2) + "\n"


def interpreters() -> tuple[Interpreter, ...]:
    """Every CPython from 3.6 up that starts here, each once, oldest first: this one, PATH, pyenv's and uv's."""
    found: dict[tuple[str, str], Interpreter] = {}
    with ThreadPoolExecutor(max_workers=4) as pool:
        for item in pool.map(_started, dict.fromkeys(_candidates())):
            if item is not None and item.implementation == "cpython":
                found.setdefault((os.path.realpath(item.path), item.prefix), item)
    return tuple(sorted(found.values(), key=lambda item: item.version))


def _candidates() -> Iterator[str]:
    yield sys.executable
    for folder in os.get_exec_path():
        yield from (
            str(path) for path in _sorted_glob(Path(folder), "python3*") if path.name[6:].replace(".", "").isdigit()
        )
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, _sorted_glob(home, "versions/*/bin/python"))
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    managed = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    yield from map(str, _sorted_glob(managed, "cpython-*/bin/python3"))


def _sorted_glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(path for path in folder.glob(pattern) if os.access(path, os.X_OK))
    except OSError:
        return []


def _started(path: str) -> Interpreter | None:
    """The interpreter's own answer, because a shim on PATH may name a version that is not installed."""
    try:
        return check_interpreter(path)
    except UsageError:
        return None


def find_program(name: str) -> str | None:
    """A program on PATH, or beside this interpreter, where a virtual environment keeps its own."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def _interpreters() -> Iterator[Check]:
    found = interpreters()
    with ThreadPoolExecutor(max_workers=2) as pool:
        for item, how in zip(found, pool.map(_backend, found), strict=True):
            name = "Python " + ".".join(map(str, item.version))
            yield Check("interpreters", name, True, f"{item.path}, records {how}")


def _backend(item: Interpreter) -> str:
    """What `--backend auto` takes there; a native recorder that is not in the cache yet is built."""
    built = build(item.path)
    if built.path is not None:
        return "natively"
    pure = "sys.monitoring" if item.version >= (3, 12) else "sys.setprofile"
    return f"by {pure}: {built.warning.text}" if built.warning else f"by {pure}"


def _recording() -> Iterator[Check]:
    compiler = next(filter(None, map(find_program, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    yield Check("recording", "C compiler", compiler is not None, compiler or "not found", "a C compiler such as gcc")
    fixed = fixed_addresses()
    detail = fixed[0] if fixed else f"{why_addresses_vary()}; runs may differ by addresses"
    yield Check("recording", "fixed addresses", bool(fixed), detail, "setarch, of the package util-linux")


def _extras() -> Iterator[Check]:
    for extra, packages in EXTRAS.items():
        for package in packages:
            version = _version(package)
            install = f"pip install 'xlocal[{extra}]'" if extra else f"pip install {package}"
            yield Check("packages", package, version is not None, version or "not installed", install)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _models() -> Iterator[Check]:
    folder = _encoder_weights()
    detail = str(folder) if folder else f"the weights of {DEFAULT_MODEL} are not on this disk"
    yield Check("models", "UniXcoder", folder is not None, detail, f"huggingface-cli download {DEFAULT_MODEL}")
    yield _device()


def _encoder_weights() -> Path | None:
    """The encoder in the hub's cache, when its weights are there; looks only, where `find_model` would download."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    snapshots = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{DEFAULT_MODEL.replace('/', '--')}"
    files = (file for name in ("*.safetensors", "pytorch_model.bin") for file in snapshots.glob(f"snapshots/*/{name}"))
    return next((file.parent for file in files if file.exists()), None)


def _device() -> Check:
    """Asks torch in a process of its own: importing it takes seconds and may print."""
    if _version("torch") is not None:
        code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
        name = _output(sys.executable, "-c", code)
        if name:
            return Check("devices", "GPU", True, name)
        return Check("devices", "GPU", False, "torch sees none; the CPU encodes")
    nvidia = find_program("nvidia-smi")
    name = _output(nvidia, "--query-gpu=name", "--format=csv,noheader") if nvidia else ""
    if name:
        return Check("devices", "GPU", False, f"{name}, but torch is not installed", "pip install 'xlocal[unixcoder]'")
    return Check("devices", "GPU", False, "none found; only the rankers paper and embedding would use one")


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _programs() -> Iterator[Check]:
    uses = {
        "git": ("the ranker commits reads the history with it", "git"),
        "uv": ("installs the demo's environment faster than pip", "pip install uv"),
        "bwrap": ("agents run commands in it, locked in", "the package bubblewrap"),
    }
    for name, (use, install) in uses.items():
        path = find_program(name)
        yield Check("programs", name, path is not None, path or f"not found; {use}", install)
