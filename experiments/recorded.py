"""The recordings of the cases: each recorded and compared once per version of the code that does so, then kept."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from environments import Case, place_of

import xlocal
from xlocal.question import Question, investigate
from xlocal.session import COMPARISON

# Change what follows a comparison only; a stored one stays good when they do.
RANKING_ONLY = {"rank.py", "lexical.py", "text.py", "encoder.py", "history.py"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """Where sessions and environments are kept, and the prepared checkouts of repositories."""

    cache: Path
    checkouts: Path | None

    def session(self, case: Case, *, itself: bool = False) -> Path:
        """The session folder of a case, recorded now unless the same code recorded the same scripts before.

        `itself` compares the buggy script with itself. Raises UnavailableError, or XlocalError when a script does not
        behave.
        """
        place = place_of(case, checkouts=self.checkouts, environments=self.cache / "environments")
        scripts = (case.buggy, case.buggy) if itself else (case.buggy, *case.references)
        session = self.cache / "sessions" / (f"{case.id}-self" if itself else case.id)
        made_by = session.with_suffix(".made-by")
        fingerprint = _fingerprint(case, scripts, str(place))
        if made_by.is_file() and made_by.read_text() == fingerprint and (session / COMPARISON).is_file():
            return session
        made_by.unlink(missing_ok=True)
        here = place.cwd or self.cache / "empty" / case.id
        if place.cwd is None:
            shutil.rmtree(here, ignore_errors=True)
            here.mkdir(parents=True)
        question = Question(
            buggy=str(scripts[0]),
            references=tuple(map(str, scripts[1:])),
            scope=case.scope,
            python=str(place.python),
            cwd=here,
            env=dict(case.env),
            issue=case.issue,
        )
        investigate(question, session=session)
        made_by.write_text(fingerprint)
        return session


@cache
def _code_fingerprint() -> str:
    """Of all that decides what is recorded and how it is compared."""
    folders = {name: Path(sys.modules[f"xlocal.{name}"].__path__[0]) for name in ("tracer", "ranking")}
    files = [file for folder in folders.values() for file in sorted(folder.glob("*.[pc]*")) if file.is_file()]
    digest = hashlib.sha256(xlocal.__name__.encode())
    for file in files:
        if file.name not in RANKING_ONLY:
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _fingerprint(case: Case, scripts: Iterable[Path], place: str) -> str:
    digest = hashlib.sha256(_code_fingerprint().encode())
    for script in scripts:
        digest.update(script.read_bytes())
    digest.update(repr((case.scope, case.env, case.python, case.requirements, place)).encode())
    return digest.hexdigest()
