"""The session folder: what `xlocal trace` found, kept whole on disk for `xlocal rank` and the next commands."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from xlocal.tracer.errors import ScriptError, SessionError
from xlocal.tracer.scope import Scope

FORMAT = "xlocal-session"
VERSION = 1
FILE = "session.json"
COMPARISON = "comparison.json"
RECORDINGS = "recordings"
_DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@dataclass(frozen=True, slots=True)
class Session:
    """How a comparison was made. The comparison and the recordings lie beside it in the session folder.

    `commands` are the texts as typed, the buggy one first. `env` holds names alone, because values may be secrets.
    `sources` maps the file of each suspect, as `Function.path` names it, to a digest of its bytes when recorded.
    """

    commands: tuple[str, ...]
    python: str
    cwd: str
    env: tuple[str, ...] = ()
    issue: str | None = None
    scope: Scope = field(default_factory=lambda: Scope(()))
    sources: Mapping[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write session.json into `folder`."""
        document = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self), "scope": self.scope.to_json()}
        (folder / FILE).write_text(json.dumps(document, indent=1) + "\n", "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Session:
        """Read session.json; raises SessionError when it is missing, damaged, or written by a newer xlocal."""
        document = read_json(folder / FILE, folder)
        if document.get("format") != FORMAT:
            raise SessionError(f"{folder}: is not an xlocal session")
        version = document.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise SessionError(
                f"{folder}: session version {version} was written by a newer xlocal (this one reads up to {VERSION}); "
                "upgrade xlocal, or record again with xlocal trace"
            )
        try:
            return cls(
                commands=tuple(document["commands"]),
                python=document["python"],
                cwd=document["cwd"],
                env=tuple(document["env"]),
                issue=document["issue"],
                scope=Scope.from_json(document["scope"]),
                sources=dict(document["sources"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(folder / FILE, error) from None

    def changed_sources(self) -> tuple[str, ...]:
        """The files that are not what they were when the session was recorded, or are gone; sorted."""
        now = digests(self.scope, self.sources)
        return tuple(path for path in sorted(self.sources) if now.get(path) != self.sources[path])


def named_after(nodeid: str) -> str:
    """The folder name of the session of a test: short, and the same for the same node id."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", nodeid)[-48:].strip("-")
    # Parameters such as 13 and -13 make the same words.
    return f"test-{words}-{hashlib.sha256(nodeid.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"


def digests(scope: Scope, paths: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each file of `paths` (as `Function.path` names them); files that cannot be read are left out."""
    bases = dict.fromkeys(Path(root.base) for root in scope.roots)
    found = {}
    for path in sorted(set(paths)):
        for file in (base / path for base in bases):
            if path not in found and file.is_file():
                with contextlib.suppress(OSError):
                    found[path] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def read_json(file: Path, folder: Path) -> dict[str, Any]:
    """One JSON object of a session; raises SessionError that tells a missing session from a damaged file."""
    try:
        document = json.loads(file.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_dir() and any(folder.iterdir()):
            raise SessionError(f"{folder}: is not an xlocal session (it has no {file.name})") from None
        raise SessionError(f"{folder}: no session here; record one with: xlocal trace BUGGY REFERENCE") from None
    except OSError as error:
        raise SessionError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise _damaged(file, error) from None
    if not isinstance(document, dict):
        raise _damaged(file, "not an object")
    return document


def _damaged(file: Path, reason: object) -> SessionError:
    return SessionError(f"{file}: is damaged ({reason}); record again with xlocal trace")


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Lock `folder`, give an empty folder beside it to fill, and put that in its place when the block succeeds.

    When the block fails, is interrupted or cannot write, the former session stays as it was. After a ScriptError the
    new folder stays beside it until the next run, because the message names what the script wrote. Raises SessionError
    when another xlocal holds the lock, `folder` holds something that is no session, or the disk refuses.
    """
    folder = Path(os.path.abspath(folder))
    with writing_to(folder):
        _prepare_parent(folder)
    with _locked(folder):
        _refuse_foreign(folder)
        with writing_to(folder):
            # Always the same name, because the observed program's temporary folder is named after it.
            fresh = _beside(folder, "new")
            fresh.mkdir()
        keep = False
        try:
            yield fresh
            with writing_to(folder):
                _move_into_place(fresh, folder)
        except OSError as error:
            if error.errno not in _DISK_REFUSES:
                raise
            raise _refused(folder, error) from error
        except ScriptError:
            keep = True
            raise
        finally:
            if not keep:
                shutil.rmtree(fresh, ignore_errors=True)


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn the disk's refusal into one line: a full disk, a read-only folder, a limit on file sizes."""
    try:
        yield
    except OSError as error:
        raise _refused(folder, error) from error


def _refused(folder: Path, error: OSError) -> SessionError:
    former = folder.exists() or _beside(folder, "old").exists()
    kept = "; the former session is as it was" if former else ""
    return SessionError(f"{folder}: cannot write the session: {error.strerror or error}{kept}")


@contextlib.contextmanager
def settled(folder: Path) -> Iterator[None]:
    """Read a session that another xlocal may replace meanwhile: puts back what a killed one left half moved.

    Raises SessionError when the session was replaced while the block read it.
    """
    folder = Path(os.path.abspath(folder))
    if not folder.exists() and _beside(folder, "old").exists():
        with contextlib.suppress(SessionError), _locked(folder):
            pass
    before = _identity(folder)
    yield
    if _identity(folder) != before:
        raise SessionError(f"{folder}: another xlocal replaced this session just now; run the command again")


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _prepare_parent(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.parent.name == ".xlocal" and not (ignore := folder.parent / ".gitignore").exists():
        ignore.write_text("*\n", "utf-8")


def _refuse_foreign(folder: Path) -> None:
    """Replacing deletes the former folder, so anything that is not a session is left alone."""
    if not (folder.exists() or folder.is_symlink()) or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        ours = read_json(folder / FILE, folder).get("format") == FORMAT
    except SessionError:
        ours = False
    if not ours:
        raise SessionError(f"{folder}: is not an xlocal session; choose another folder with --session")


def _beside(folder: Path, kind: str) -> Path:
    return folder.parent / f".{folder.name}.{kind}"


def _move_into_place(fresh: Path, folder: Path) -> None:
    """Two renames; `_recover` mends what a kill between them leaves."""
    old = _beside(folder, "old")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _recover(folder: Path) -> None:
    """Put back or clear away what a killed xlocal left; the caller holds the lock, so nobody else uses it."""
    old = _beside(folder, "old")
    if old.exists() and not folder.exists():
        old.rename(folder)
    for leftover in (old, _beside(folder, "new")):
        shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock file beside `folder`. The system drops the lock of a dead process, so none goes stale."""
    path = _beside(folder, "lock")
    with _open_lock(path, folder) as lock:
        try:
            with writing_to(folder):
                lock.truncate(0)
                # Unbuffered: what a full disk refused would be written, and refused, again when the file is closed.
                os.write(lock.fileno(), f"{os.getpid()} {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
                _recover(folder)
            yield
        finally:
            # Unlinked while still locked: whoever waits on the old file sees that it is gone and opens a new one.
            path.unlink(missing_ok=True)


def _open_lock(path: Path, folder: Path) -> IO[str]:
    while True:
        with writing_to(folder):
            lock = path.open("a+", encoding="utf-8")
        try:
            _take(lock)
        except OSError:
            lock.seek(0)
            holder = lock.read().split()
            lock.close()
            by = f" (process {holder[0]}, since {' '.join(holder[1:])})" if holder else ""
            raise SessionError(
                f"{folder}: another xlocal is using this session{by}; wait for it, or choose another with --session"
            ) from None
        with contextlib.suppress(FileNotFoundError):  # its last holder, or one after that, unlinked it meanwhile
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        lock.close()


if sys.platform == "win32":
    import msvcrt

    def _take(lock: IO[str]) -> None:
        # Locks a byte far behind the text, so that others can still read who holds it.
        lock.seek(1 << 20)
        msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
        lock.seek(0)

else:
    import fcntl

    def _take(lock: IO[str]) -> None:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
