"""Builds the native recorder (probe.c) for the interpreter under study, once; without it the pure backends record."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from xlocal.tracer.errors import Warned

SOURCE = Path(__file__).with_name("probe.c")
MODULE = "_xlocal_native"
FLAGS = ("-O3", "-fPIC", "-fno-strict-aliasing", "-DNDEBUG")
ASK_SECONDS = 60
COMPILE_SECONDS = 120

_ASK = """
import sys, sysconfig
paths = sysconfig.get_paths()
print("")
print(repr((sys.version_info[:3], getattr(sys, "implementation", None) and sys.implementation.name,
            sysconfig.get_config_var("EXT_SUFFIX"), paths["include"], paths["platinclude"],
            bool(sysconfig.get_config_var("Py_GIL_DISABLED")), sys.version)))
"""
_TRY = """
import importlib.machinery as m, sys, _imp
name, path = "_xlocal_native", sys.argv[1]
module = _imp.create_dynamic(m.ModuleSpec(name, m.ExtensionFileLoader(name, path), origin=path))
_imp.exec_dynamic(module)
module.setup, module.Sink
"""


class Built(NamedTuple):
    """The compiled recorder, or why there is none."""

    path: Path | None
    warning: Warned | None


class _Target(NamedTuple):
    version: tuple[int, int, int]
    implementation: str
    suffix: str
    include: str
    platinclude: str
    free_threaded: bool
    build: str


class _Unavailable(Exception):  # noqa: N818 - not an error: the pure backends do the work
    def __init__(self, slug: str, reason: str) -> None:
        super().__init__(reason)
        self.slug = slug


def build(python: str | Path) -> Built:
    """The native recorder for an interpreter: from the cache, or compiled now with its headers and a C compiler.

    The compiler is `$CC`, else cc, gcc or clang. Never raises: what is in the way comes back as a warning whose slug
    is native-no-compiler, native-no-headers, native-build-failed, native-cache or native-unsupported.
    """
    try:
        return Built(_build(str(python)), None)
    except _Unavailable as problem:
        text = f"{problem}; the slower recorder in Python is used"
        return Built(None, Warned(problem.slug, text))


def cache_folder() -> Path:
    """Where builds are kept: `$XLOCAL_CACHE`, else `xlocal` in `$XDG_CACHE_HOME` or `~/.cache`."""
    ours = os.environ.get("XLOCAL_CACHE")
    if ours:
        return Path(ours).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "xlocal"


def _build(python: str) -> Path:
    target = _ask(python)
    if target.implementation != "cpython" or target.free_threaded:
        kind = "a free-threaded build" if target.free_threaded else target.implementation
        raise _Unavailable("native-unsupported", f"the native recorder is for ordinary CPython, and {python} is {kind}")
    built = cache_folder() / "native" / _key(target) / f"{MODULE}{target.suffix}"
    if _is_whole(built):
        return built
    _require_headers(python, target)
    compiler = _compiler()
    with _folder_beside(built) as folder:
        made = folder / built.name
        _compile(compiler, target, made)
        _try(python, made)
        _checksum_file(made).write_text(_checksum(made), "ascii")
        _publish(made, built)
    return built


@cache
def _ask(python: str) -> _Target:
    try:
        done = subprocess.run(
            [python, "-I", "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=False,
        )
        target = _Target(*ast.literal_eval(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.TimeoutExpired, ValueError, SyntaxError, IndexError, TypeError) as error:
        raise _Unavailable("native-unsupported", f"{python} does not tell how it was built ({error})") from error
    if not target.suffix:
        raise _Unavailable("native-unsupported", f"{python} loads no extension modules")
    return target


def _key(target: _Target) -> str:
    """One folder for all that can make a build differ."""
    parts = [repr(target), " ".join(FLAGS), os.environ.get("CC", ""), sysconfig.get_platform()]
    content = "\0".join(parts).encode() + SOURCE.read_bytes()
    version = ".".join(map(str, target.version))
    return f"{version}-{hashlib.sha256(content).hexdigest()[:16]}"


def _checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _checksum_file(built: Path) -> Path:
    return built.with_name(f"{built.name}.sha256")


def _is_whole(built: Path) -> bool:
    """Whether the cache holds this build as it was tried: loading a damaged one could crash the target."""
    try:
        return _checksum_file(built).read_text("ascii") == _checksum(built)
    except (OSError, ValueError):
        return False


def _require_headers(python: str, target: _Target) -> None:
    if not any((Path(folder) / "Python.h").is_file() for folder in (target.include, target.platinclude)):
        raise _Unavailable(
            "native-no-headers",
            f"the native recorder cannot be built: {python} has no C headers (no Python.h in {target.include})",
        )


def _compiler() -> list[str]:
    wanted = shlex.split(os.environ.get("CC", ""))
    for words in [wanted] if wanted else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(words[0]):
            return words
    name = f"CC is {wanted[0]}, which" if wanted else "cc, gcc or clang"
    raise _Unavailable("native-no-compiler", f"the native recorder cannot be built: {name} is not on PATH")


@contextlib.contextmanager
def _folder_beside(built: Path) -> Iterator[Path]:
    """A folder to build in, on the same disk as the place in the cache, removed in the end."""
    try:
        built.parent.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".building-", dir=built.parent.parent))
    except OSError as error:
        raise _unwritable(built, error) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unwritable(built: Path, error: OSError) -> _Unavailable:
    reason = f"the native recorder cannot be kept: {built.parent.parent}: {error.strerror or error}"
    return _Unavailable("native-cache", reason)


def _compile(compiler: list[str], target: _Target, made: Path) -> None:
    shared = ["-bundle", "-undefined", "dynamic_lookup"] if "macosx" in sysconfig.get_platform() else ["-shared"]
    includes = [f"-I{folder}" for folder in dict.fromkeys((target.include, target.platinclude))]
    words = [*compiler, *FLAGS, *shared, *includes, str(SOURCE), "-o", str(made)]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unavailable(
            "native-build-failed", f"{compiler[0]} did not compile the native recorder: {error}"
        ) from error
    if done.returncode or not made.is_file():
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["no output"]
        raise _Unavailable(
            "native-build-failed", f"{compiler[0]} did not compile the native recorder ({lines[0].strip()})"
        )


def _try(python: str, made: Path) -> None:
    """Load it once in the target, so that what cannot be loaded never reaches a program."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", _TRY, str(made)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_SECONDS,
            check=False,
        )
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        failed = done.returncode != 0
    except (OSError, subprocess.TimeoutExpired) as error:
        failed, reason = True, str(error)
    if failed:
        raise _Unavailable(
            "native-build-failed", f"the native recorder was compiled but {python} cannot load it ({reason})"
        )


def _publish(made: Path, built: Path) -> None:
    """Move the build to its place in one step for each file, the checksum last: only with it the build counts."""
    try:
        built.parent.mkdir(exist_ok=True)
        for file in (made, _checksum_file(made)):
            os.replace(file, built.parent / file.name)
    except OSError as error:
        raise _unwritable(built, error) from error


def native_for(backend: str, python: str | Path) -> Built:
    """The native recorder where a backend may use it: `auto` and `native`; nothing, without a warning, for others."""
    return build(python) if backend in ("auto", "native") else Built(None, None)
