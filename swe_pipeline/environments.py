"""Environments of checkouts: one of dependencies, shared by all that resolve alike, and a thin one for each checkout.

The thin environment holds the project itself, installed from the work tree, and a .pth file that adds the shared one.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from xlocal.swe_pipeline.specs import Spec, revision
from xlocal.tracer.errors import CheckoutError, MissingError, UsageError
from xlocal.tracer.launch import Interpreter, check_interpreter

# Builds need setuptools of 64 or newer, for PEP 660 and for versions as `4.0.dev-20210120`, at whatever date.
BUILD_UNTIL = "2023-10-01"
_BUILD_SECONDS = 1800
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OVERLAYS_TRIED = 4
_COMPILED = (".so", ".pyd", ".dylib")
# Sorted after the work tree's own .pth files: a top-level `tests` of a dependency must not hide the project's.
_LINK = "zz_xlocal_dependencies.pth"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one checkout is installed: its work tree, its thin environment, and the cache that all checkouts share."""

    tree: Path
    home: Path
    cache: Path

    @property
    def python(self) -> Path:
        """The interpreter that imports the project from the work tree."""
        return self.home / "bin" / "python"

    @property
    def httpbin(self) -> Path:
        """A text file that names the interpreter of the environment with an httpbin, where the facts ask for one."""
        return self.home / "httpbin"


def install(spec: Spec, place: Place, *, moment: datetime) -> None:
    """Make the environment of a checkout; `moment` is the time of its commit.

    Raises CheckoutError when uv, the interpreter, a release or the disk is missing, or a build fails.
    """
    python = find_interpreter(spec.python)
    with _disk(place.cache):
        dependencies = _shared(python, _resolve(python, spec, place.tree), place.cache)
        # Apart, for it brings packages that the project's own tests would find, and perhaps the project itself.
        apart = Spec(until=spec.until, requirements=spec.httpbin, project=False)
        httpbin = _shared(python, _resolve(python, apart, place.tree), place.cache) if spec.httpbin else None
    with _disk(place.home):
        _thin(python, site_packages(dependencies), place.home)
        if httpbin is not None:
            place.httpbin.write_text(f"{httpbin / 'bin' / 'python'}\n", "utf-8")
        if spec.install == "overlay":
            _overlay(python, spec, place, moment)
        elif spec.install == "develop":
            _develop(place)
        elif spec.install == "path":
            _on_path(spec, place)
        else:
            _editable(spec, place)


@cache
def find_interpreter(minor: str) -> Interpreter:
    """An interpreter of this machine of that minor version (`3.9`): uv's or one on PATH, else pyenv's.

    Raises CheckoutError when there is none.
    """
    for candidate in _candidates(minor):
        with contextlib.suppress(UsageError):
            found = check_interpreter(candidate)
            if "{}.{}".format(*found.version) == minor and found.implementation == "cpython":
                return found
    raise MissingError(f"no Python {minor} here; install one, for example with: uv python install {minor}")


def _candidates(minor: str) -> Iterator[str]:
    found = subprocess.run(
        [*uv_command(), "python", "find", "--system", "--no-python-downloads", f"cpython@{minor}"],
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
    )
    if not found.returncode:
        yield found.stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(map(str, pyenv.glob(f"versions/{minor}.*/bin/python")), reverse=True)
    if on_path := shutil.which(f"python{minor}"):
        yield on_path


@cache
def uv_command() -> tuple[str, ...]:
    """How uv is started: as a module of this interpreter, else from PATH. Raises CheckoutError without it."""
    if importlib.util.find_spec("uv") is not None:
        return (sys.executable, "-m", "uv")
    if found := shutil.which("uv"):
        return (found,)
    raise MissingError("environments are made by uv, which is not here; install it with: pip install uv")


def _environment() -> dict[str, str]:
    """Ours, less what would make uv prefer the environment that xlocal itself runs in."""
    left_out = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def _run(arguments: Sequence[str], what: str, *, cwd: Path | None = None) -> str:
    """What a program of ours prints. Raises CheckoutError that quotes the end of what it said."""
    try:
        done = subprocess.run(
            arguments,
            cwd=cwd,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckoutError(f"{what}: not ready after {_BUILD_SECONDS} seconds") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
        # Of Python's own traceback, the last line names what is wrong.
        said = " ".join(" ".join(lines[-1:] if lines[0].startswith("Traceback") else lines).split())
        raise CheckoutError(f"{what}: {said if len(said) <= 500 else said[:200] + ' ... ' + said[-300:]}")
    return done.stdout


def _uv(*arguments: str, what: str, cwd: Path | None = None) -> str:
    return _run([*uv_command(), *arguments], what, cwd=cwd)


def _resolve(python: Interpreter, spec: Spec, tree: Path) -> tuple[str, ...]:
    """Exact versions of all dependencies, `name==version`, sorted; the project itself is not among them."""
    wanted = [*spec.requirements]
    for name in spec.requirement_files:
        wanted += _listed(tree / name, frozenset(map(normalized, spec.without)))
    metadata = _metadata_file(tree) if spec.project else None
    if not wanted and metadata is None:
        return ()
    arguments = ["--python", python.path, "--no-header", "--no-annotate", "--quiet", *_dated(spec)]
    arguments += [word for extra in spec.extras for word in ("--extra", extra)]
    if spec.distribution:
        arguments += ["--no-emit-package", spec.distribution]
    # uv reads the settings of the folder it stands in, and a project's own may forbid what the table asks for.
    arguments.append("--no-config")
    with _scratch_file("\n".join(wanted) + "\n", ".in") as file:
        sources = [str(file)] + ([str(metadata)] if metadata else [])
        listed = _uv("pip", "compile", *arguments, *sources, what="dependencies cannot be resolved", cwd=file.parent)
    lines = (line.partition(";")[0].strip() for line in listed.splitlines())
    return tuple(sorted(line for line in lines if line and not line.startswith(("#", "-e")) and "file://" not in line))


def _dated(spec: Spec) -> list[str]:
    builders = f"setuptools={max(spec.until, BUILD_UNTIL)}"
    return ["--exclude-newer", spec.until, "--exclude-newer-package", builders]


@contextlib.contextmanager
def _scratch_file(text: str, suffix: str) -> Iterator[Path]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="xlocal-") as folder:
        file = Path(folder) / f"requirements{suffix}"
        file.write_text(text, "utf-8")
        yield file


def normalized(name: str) -> str:
    """A distribution's name as PEP 503 compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _listed(file: Path, without: frozenset[str]) -> list[str]:
    """The requirements of a file and of those it includes, without the project itself and the names of `without`."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise CheckoutError(f"{file}: cannot be read: {error.strerror}") from None
    wanted = []
    for raw in lines:
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        if line.startswith(("-r ", "--requirement ")):
            wanted += _listed(file.parent / line.split(None, 1)[1], without)
        elif (name := _NAME.match(line)) and normalized(name[0]) not in without:
            wanted.append(line)
    return wanted


def _metadata_file(tree: Path) -> Path | None:
    """Where the project declares its dependencies: a pyproject.toml that is more than a tool's settings comes first."""
    pyproject = tree / "pyproject.toml"
    if pyproject.is_file() and re.search(r"^\[project\]", pyproject.read_text("utf-8"), re.MULTILINE):
        return pyproject
    return next((file for name in ("setup.py", "setup.cfg") if (file := tree / name).is_file()), None)


def _shared(python: Interpreter, requirements: Sequence[str], cache_folder: Path) -> Path:
    """The folder of an environment that holds exactly these releases; made once, whoever needs it first."""
    key = hashlib.sha256("\n".join([str(revision()), python.path, *map(str, python.version), *requirements]).encode())
    minor = "{}.{}".format(*python.version)
    home = cache_folder / "environments" / f"py{minor}-{key.hexdigest()[:16]}"
    with locked(home.parent / f"{home.name}.lock"):
        complete = home / "complete"
        if not complete.is_file():
            shutil.rmtree(home, ignore_errors=True)
            _make(python, home)
            if requirements:
                _install_releases(requirements, home)
            complete.write_text("\n".join(requirements) + "\n", "utf-8")
    return home


def _install_releases(requirements: Sequence[str], home: Path) -> None:
    python = str(home / "bin" / "python")
    with _scratch_file("\n".join(requirements) + "\n", ".txt") as file:
        _uv("pip", "install", "--quiet", "--no-config", "--python", python, "--no-deps", "--requirements", str(file),
            what="dependencies cannot be installed", cwd=file.parent)  # fmt: skip
    # Compiled at once: an old package's invalid escapes would warn in the first test that imports it. Files that no
    # interpreter of this version can compile (tests of syntax, templates) make the exit status useless.
    subprocess.run(
        [python, "-W", "ignore", "-m", "compileall", "-q", str(site_packages(home))],
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )


def _make(python: Interpreter, home: Path) -> None:
    _uv("venv", "--quiet", "--no-config", "--no-project", "--python", python.path, str(home),
        what=f"{home}: cannot be made")  # fmt: skip


def site_packages(home: Path) -> Path:
    """Where an environment keeps its packages."""
    return next(home.glob("lib/python*/site-packages"))


def _thin(python: Interpreter, dependencies: Path, home: Path) -> None:
    """An environment of its own that also sees the packages (and the .pth files) of `dependencies`."""
    shutil.rmtree(home, ignore_errors=True)
    _make(python, home)
    (site_packages(home) / _LINK).write_text(f"import site; site.addsitedir({str(dependencies)!r})\n", "utf-8")


def _develop(place: Place) -> None:
    """For projects whose setup.py looks around, and interpreters older than PEP 660's tools."""
    _run([str(place.python), "setup.py", "--quiet", "develop", "--no-deps"], "setup.py develop", cwd=place.tree)


def _editable(spec: Spec, place: Place) -> None:
    until = max(spec.until, BUILD_UNTIL)
    # Not the finder hook of newer setuptools, which hides where packages are from whoever looks along sys.path.
    settings = ["--config-setting", "editable_mode=compat", *([] if spec.isolated else ["--no-build-isolation"])]
    _uv("pip", "install", "--quiet", "--no-config", "--python", str(place.python), "--no-deps", "--exclude-newer",
        until, *settings, "--editable", str(place.tree), what="the project cannot be installed",
        cwd=place.home)  # fmt: skip


def _overlay(python: Interpreter, spec: Spec, place: Place, moment: datetime) -> None:
    """Put a released wheel's compiled and generated files between the sources, and its metadata into the environment.

    Only what the work tree's Python code needs of the compiled code must be alike in both: the first release for which
    the modules of `check` can be imported is taken.
    """
    releases = spec.releases(moment)[:_OVERLAYS_TRIED]
    if not releases:
        raise MissingError(f"{spec.distribution}: an overlay needs the release whose compiled files fit (wheels)")
    _on_path(spec, place)
    refusal: CheckoutError | None = None
    for release in releases:
        laid = _lay(_unpacked(python, f"{spec.distribution}=={release}", place.cache), spec, place)
        try:
            _check(spec, place, release)
            return
        except CheckoutError as error:
            refusal = refusal or error
            for path in laid:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    # Another attempt would find the same releases.
    raise MissingError(str(refusal))


def _lay(wheel: Path, spec: Spec, place: Place) -> list[Path]:
    """Copy what an overlay takes of an unpacked wheel; returns the files and folders that it made."""
    made = []
    for file in _installed_files(wheel):
        if _is_compiled(file) or file in spec.generated:
            target = place.tree / spec.source / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(wheel / file, target)
            made.append(target)
    for information in wheel.glob("*.dist-info"):
        kept = shutil.ignore_patterns("RECORD", "direct_url.json", "REQUESTED")
        made.append(site_packages(place.home) / information.name)
        shutil.copytree(information, made[-1], ignore=kept, dirs_exist_ok=True)
    return made


def _check(spec: Spec, place: Place, release: str) -> None:
    for module in spec.check:
        what = f"the compiled files of {spec.distribution} {release} do not fit this commit"
        # The folder is not the work tree, from which anything could be imported.
        _run([str(place.python), "-W", "ignore", "-c", f"import {module}"], what, cwd=place.home)


def _on_path(spec: Spec, place: Place) -> None:
    source = (place.tree / spec.source).resolve()
    (site_packages(place.home) / "xlocal_work_tree.pth").write_text(f"{source}\n", "utf-8")


def _is_compiled(file: str) -> bool:
    """An extension module, or a library that one brings along (`libs/libgomp-1234.so.1.0.0`)."""
    name = file.rpartition("/")[2]
    return name.endswith(_COMPILED) or ".so." in name


def _installed_files(wheel: Path) -> list[str]:
    record = next(wheel.glob("*.dist-info/RECORD"))
    with record.open(encoding="utf-8", newline="") as lines:
        return [row[0] for row in csv.reader(lines) if row and not row[0].startswith(("..", "/"))]


def _unpacked(python: Interpreter, requirement: str, cache_folder: Path) -> Path:
    minor = "{}.{}".format(*python.version)
    folder = cache_folder / "wheels" / f"{requirement.replace('==', '-')}-py{minor}"
    with locked(folder.parent / f"{folder.name}.lock"):
        if not (folder / "complete").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            _uv("pip", "install", "--quiet", "--no-config", "--python", python.path, "--no-deps", "--no-build",
                "--target", str(folder), requirement,
                what=f"{requirement} has no wheel for Python {minor}")  # fmt: skip
            (folder / "complete").touch()
    return folder


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock file; waits for whoever holds it. The system drops the lock of a dead process."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """One line for a disk that refuses: full, read-only, no permission."""
    try:
        yield
    except OSError as error:
        raise CheckoutError(f"{error.filename or folder}: cannot be written: {error.strerror or error}") from error
