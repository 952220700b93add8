"""The step `localize` of a batch: a pair of scripts traced inside a prepared checkout, and the functions ranked."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlocal.question import Question, investigate
from xlocal.session import COMPARISON
from xlocal.swe_pipeline.batch import Outcome
from xlocal.swe_pipeline.checkout import MARKER, LocalCheckout, Workplace
from xlocal.swe_pipeline.grade import alone, write_text
from xlocal.swe_pipeline.issue import Issue
from xlocal.swe_pipeline.steps import FAULTS, facts_of
from xlocal.tracer.errors import UsageError

TABLE = "localization.json"
SESSION = "session"
_LISTED = 10


@dataclass(frozen=True, slots=True)
class Pair:
    """The scripts of an instance: one that shows the bug, and one or more that do not."""

    buggy: Path
    references: tuple[Path, ...]


def find_pair(pairs: Path, name: str) -> Pair:
    """The pair in `pairs/NAME`: `buggy*.py`, and every `reference*.py` in the order of names.

    Raises UsageError when a script is missing or it is unclear which one is buggy.
    """
    folder = pairs / name
    if not folder.is_dir():
        raise UsageError(f"--pairs: {folder} does not exist")
    buggy = sorted(folder.glob("buggy*.py"))
    # `reference.py` comes before `reference_alt.py`, as the plain name sorts.
    references = sorted(folder.glob("reference*.py"), key=lambda file: file.stem)
    if len(buggy) != 1:
        raise UsageError(f"--pairs: {folder} needs one buggy*.py and has {len(buggy)}")
    if not references:
        raise UsageError(f"--pairs: {folder} has no reference*.py")
    return Pair(buggy[0].absolute(), tuple(file.absolute() for file in references))


@dataclass(frozen=True, slots=True)
class LocalizeStep:
    """Traces the pair of each instance in its checkout under `workplace`, and ranks with the issue's text.

    The session stays beside the checkout, in ROOT/INSTANCE/session. `timeout` is in seconds, of one run of a script.
    """

    pairs: Path
    workplace: Workplace
    ranker: str = "fused"
    timeout: float = 300.0
    repeat: int = 2
    name: str = "localize"
    faults: tuple[type[BaseException], ...] = FAULTS

    @property
    def arguments(self) -> Mapping[str, Any]:
        """None that a resumed run must share: with another ranker, each instance is localized anew."""
        return {}

    def job(self, issue: Issue) -> LocalizeJob:
        """The work on one issue."""
        return LocalizeJob(self, issue)


@dataclass(frozen=True, slots=True)
class LocalizeJob:
    """Localizes one issue."""

    step: LocalizeStep
    issue: Issue

    @property
    def facts(self) -> Mapping[str, Any]:
        """The scripts, the checkout as it was made, the issue's text and the options; and whether the session is there.

        So a result stands until one of these changes, or the session or the checkout is gone.
        """
        step, folder = self.step, self.step.workplace.root / self.issue.id
        return {
            **facts_of(self.issue),
            "statement": self.issue.statement,
            "scripts": _digests(step.pairs / self.issue.id),
            "made": _digest(folder / MARKER) if (folder / "repo").is_dir() else "",
            "session": (folder / SESSION / COMPARISON).is_file(),
            "options": [step.ranker, step.timeout, step.repeat],
        }

    def __call__(self, folder: Path, former: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """`suspects`: the first ten as `path::qualname`, and `total`: how many there are."""
        step = self.step
        pair = find_pair(step.pairs, self.issue.id)
        checkout = LocalCheckout(self.issue, step.workplace)
        checkout.prepare()
        with alone(checkout.folder):
            # A grading that was killed leaves its patch behind.
            checkout.reset()
            question = _question(checkout, pair, timeout=step.timeout, repeat=step.repeat)
            found = investigate(question, session=checkout.folder / SESSION, ranker=step.ranker)
        names = [f"{item.suspect.function.path}::{item.suspect.function.qualname}" for item in found.suspects]
        return {"suspects": names[:_LISTED], "total": len(names)}


def _digests(folder: Path) -> dict[str, str]:
    """Names and contents of the scripts in a folder; none where there is none, which the job tells."""
    files = sorted([*folder.glob("buggy*.py"), *folder.glob("reference*.py")])
    return {file.name: _digest(file) for file in files}


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def _question(checkout: LocalCheckout, pair: Pair, *, timeout: float, repeat: int) -> Question:
    # The scripts run in an empty folder, so that the checkout is imported as installed and nothing is written there.
    empty = checkout.folder / "cwd"
    shutil.rmtree(empty, ignore_errors=True)
    empty.mkdir()
    return Question(
        buggy=shlex.quote(str(pair.buggy)),
        references=tuple(shlex.quote(str(file)) for file in pair.references),
        scope=checkout.packages(),
        python=checkout.python,
        cwd=empty,
        env=dict(checkout.spec.env),
        timeout=timeout,
        repeat=repeat,
        issue=checkout.issue.statement,
    )


def row_of(outcome: Outcome, error: str | None) -> dict[str, Any]:
    """What came of one instance: its first suspects, how many there are, or the error why there are none."""
    result = outcome.result or {"suspects": [], "total": 0}
    return {"id": outcome.instance, **result, "seconds": outcome.seconds, "error": error}


def write_table(root: Path, rows: Sequence[Mapping[str, Any]], *, ranker: str) -> None:
    """Write ROOT/localization.json, whole or not at all."""
    document = {"ranker": ranker, "instances": list(rows)}
    write_text(root / TABLE, json.dumps(document, indent=1) + "\n")
