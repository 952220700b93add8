"""The prison for what a model wrote: commands of a checkout run without network, and write only inside the checkout."""

from __future__ import annotations

import ast
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from xlocal.swe_pipeline.checkout import Checkout, LocalCheckout, Run
from xlocal.swe_pipeline.issue import Issue
from xlocal.tracer.errors import UsageError

_GUARD = Path(__file__).with_name("guard.py")
_HOME = "/tmp/home"
# What programs need of /etc; the rest (keys, passwords, tokens of services) stays out.
_ETC = ("alternatives", "fonts", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime")
_MORE_ETC = ("mime.types", "nsswitch.conf", "passwd", "protocols", "services", "ssl", "ca-certificates", "timezone")
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64")
_ASK = """
import os, sys
print(repr([os.path.realpath(sys.executable), sys.prefix, sys.base_prefix, sys.exec_prefix] + sys.path))
"""
# Where a program's own Python or settings could be; binding one of them whole would show far too much.
_TOO_WIDE = frozenset(map(Path, ("/", "/home", "/root", "/etc", "/var", "/tmp", "/opt", "/proc", "/dev")))


@dataclass(frozen=True, slots=True)
class Resources:
    """What one command may use: bytes of memory in all, processes, and bytes of one file."""

    memory: int = 4 << 30
    processes: int = 256
    file_size: int = 512 << 20


class Sandboxed:
    """A local checkout whose commands run under bubblewrap.

    They see the system's programs, the interpreter with its packages and the work tree, and nothing else: no home, no
    other project, no network, no process but their own. Only the work tree is writable, without its `.git`, and what
    they leave elsewhere is gone with them. `mount` is where the work tree appears to them.
    """

    def __init__(
        self,
        inner: LocalCheckout,
        *,
        mount: Path | None = None,
        resources: Resources | None = None,
        readable: Sequence[Path] = (),
        import_paths: Sequence[str] = (),
    ) -> None:
        self.inner = inner
        self._mount = mount or inner.tree
        self._resources = resources or Resources()
        self._readable = tuple(readable)
        self._import_paths = tuple(import_paths)

    @property
    def issue(self) -> Issue:
        """The issue of the checkout."""
        return self.inner.issue

    @property
    def tree(self) -> Path:
        """The work tree, where the host sees it."""
        return self.inner.tree

    @property
    def repository(self) -> str:
        """The work tree, where commands see it."""
        return str(self._mount)

    @property
    def python(self) -> str:
        """The interpreter, where commands see it."""
        return self.inner.python

    def prepare(self) -> bool:
        """Make the checkout, outside the sandbox: nothing of a model is in it yet."""
        return self.inner.prepare()

    def run(
        self, command: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Run:
        """Run a command in the sandbox; it ends with everything it started, at the latest after `timeout` seconds."""
        limits = map(str, (self._resources.memory, self._resources.processes, self._resources.file_size))
        guard = [str(Path(sys.executable)), "-I", "-S", str(_GUARD), *limits, *command]
        words = [_bubblewrap(), *self._view(env or {}, cwd), "--", *guard]
        return self.inner.run(words, timeout=timeout)

    def _view(self, env: Mapping[str, str], cwd: str | None) -> Iterator[str]:
        yield from ("--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL")
        for name in _SYSTEM:
            path = Path("/", name)
            if path.is_symlink():
                yield from ("--symlink", os.readlink(path), str(path))
            elif path.is_dir():
                yield from ("--ro-bind", str(path), str(path))
        for name in (*_ETC, *_MORE_ETC):
            yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
        yield from ("--proc", "/proc", "--dev", "/dev")
        yield from ("--size", str(self._resources.file_size), "--tmpfs", "/tmp", "--dir", _HOME)
        outside, inside = self._partition()
        for path in outside:
            yield from ("--ro-bind", str(path), str(path))
        yield from ("--bind", str(self.tree), self.repository)
        # Git reads its settings there, and some of them name programs that the host's own git would start.
        yield from ("--ro-bind", str(self.tree / ".git"), f"{self.repository}/.git")
        for path in inside:
            yield from ("--ro-bind", str(path), str(path))
        yield from ("--remount-ro", "/")
        for name, value in self._variables(env).items():
            yield from ("--setenv", name, value)
        yield from ("--chdir", cwd or self.repository)

    def _partition(self) -> tuple[list[Path], list[Path]]:
        """Readable folders outside the work tree's place, and those inside, such as an environment kept in it."""
        wanted = {*python_paths(self.python), *python_paths(sys.executable), *own_folders(), *self._readable}
        system = tuple(Path("/", name) for name in _SYSTEM)
        kept: list[Path] = []
        for path in sorted(wanted, key=lambda path: (len(path.parts), path)):
            covered = any(path.is_relative_to(above) for above in (*system, *kept))
            if path.exists() and not covered and path not in (*_TOO_WIDE, Path.home(), self._mount):
                kept.append(path)
        outside = [path for path in kept if not path.is_relative_to(self._mount)]
        inside = [path for path in kept if path.is_relative_to(self._mount) and self._is_environment(path)]
        return outside, inside

    def _is_environment(self, path: Path) -> bool:
        """The environment itself, but not a package folder of the work tree, which the copy replaces."""
        within = (above for above in (path, *path.parents) if above.is_relative_to(self._mount))
        return any((above / "pyvenv.cfg").is_file() for above in within)

    def _variables(self, env: Mapping[str, str]) -> dict[str, str]:
        found = {
            "HOME": _HOME,
            "TMPDIR": "/tmp",
            "PATH": os.pathsep.join((str(Path(self.python).parent), "/usr/local/bin", "/usr/bin", "/bin")),
            "GIT_OPTIONAL_LOCKS": "0",
        }
        if self._import_paths:
            found["PYTHONPATH"] = os.pathsep.join(
                os.path.join(self.repository, p).rstrip("/") for p in self._import_paths
            )
        return {**found, **env}

    def apply(self, patch: str) -> None:
        """Apply a diff to the work tree."""
        self.disarm()
        self.inner.apply(patch)

    def diff(self) -> str:
        """What the work tree changed since the base commit."""
        self.disarm()
        return self.inner.diff()

    def reset(self) -> None:
        """Put the work tree back to the base commit."""
        self.disarm()
        self.inner.reset()

    def close(self) -> None:
        """Nothing runs between commands."""

    def disarm(self) -> None:
        """Delete repositories made inside the work tree: their settings could make the host's git start programs."""
        disarm(self.tree)


def disarm(tree: Path) -> None:
    """Delete every `.git` below the work tree's own folder; links are not followed."""
    for folder, names, files in os.walk(tree):
        if folder == str(tree):
            names[:] = [name for name in names if name != ".git"]
            continue
        for name in [name for name in (*names, *files) if name.lower() == ".git"]:
            found = Path(folder, name)
            if found.is_dir() and not found.is_symlink():
                shutil.rmtree(found)
                names.remove(name)
            else:
                found.unlink()


def sandbox_problem() -> str | None:
    """Why commands cannot be locked in on this machine; None when they can. Proven once by a real process."""
    return _problem()


def require_sandbox() -> None:
    """Raise UsageError where commands cannot be locked in."""
    problem = sandbox_problem()
    if problem is not None:
        raise UsageError(
            f"what a model writes must run in a sandbox, and {problem}. Mend that, or allow everything that your user "
            "may do with --unsafe-local"
        )


@cache
def _problem() -> str | None:
    if platform.system() != "Linux":
        return "bubblewrap exists for Linux only"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (package bubblewrap)"
    true = shutil.which("true") or "/bin/true"
    words = ["bwrap", "--unshare-all", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--proc", "/proc", "--", true]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot be started: {error}"
    if done.returncode:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        return f"bubblewrap is refused here: {said}"
    return None


def _bubblewrap() -> str:
    found = shutil.which("bwrap")
    if found is None:
        raise UsageError("commands of an agent run under bubblewrap, which is not here any more; install it")
    return found


def confine(
    checkout: Checkout,
    *,
    unsafe_local: bool = False,
    mount: Path | None = None,
    resources: Resources | None = None,
    readable: Sequence[Path] = (),
    import_paths: Sequence[str] = (),
) -> Checkout:
    """The checkout as agents get it: locked in by bubblewrap, or as it is when it runs in a container of its own.

    Raises UsageError where bubblewrap does not work, unless `unsafe_local` allows commands to run as the user.
    """
    if not isinstance(checkout, LocalCheckout):
        return checkout
    if unsafe_local:
        return checkout
    require_sandbox()
    return Sandboxed(checkout, mount=mount, resources=resources, readable=readable, import_paths=import_paths)


@cache
def own_folders() -> tuple[Path, ...]:
    """Where xlocal's own code lies: scripts are traced inside the sandbox."""
    # By their specifications: this floor imports nothing of the command line.
    specs = [find_spec(name) for name in ("xlocal", "xlocal.tracer", "xlocal.ranking")]
    origins = [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    return (_GUARD.parent, *(Path(origin).resolve().parent for origin in origins))


@cache
def python_paths(python: str) -> tuple[Path, ...]:
    """Folders that an interpreter needs: its own, its environment's, and those on its path. Empty when it is silent."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        found = [Path(text) for text in ast.literal_eval(done.stdout.strip().splitlines()[-1])]
    except (OSError, subprocess.TimeoutExpired, ValueError, SyntaxError, IndexError):
        return ()
    executable, *folders = found
    # The link that marks an environment lies in its folder; the file it points to in that of the base installation.
    return tuple(dict.fromkeys((*folders, executable.parent.parent, Path(python).parent.parent)))
