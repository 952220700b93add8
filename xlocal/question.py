"""The whole job behind one call: record the scripts, compare them, rank the functions, keep the session."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xlocal.kept import Keeper
from xlocal.ranking.comparison import Comparison, Localization
from xlocal.ranking.localize import compare, rank_suspects
from xlocal.ranking.observation import observe
from xlocal.ranking.source import SourceIndex
from xlocal.session import COMPARISON, RECORDINGS, Session, digests, replacing, settled
from xlocal.tracer.closeup import Closeup, Focus, steady
from xlocal.tracer.command import Command, parse_command
from xlocal.tracer.errors import UsageError, Warned
from xlocal.tracer.record import Recording, check_interpreter, closeups, record
from xlocal.tracer.scope import Scope, find_scope

Progress = Callable[[str], None]
Enrich = Callable[[Comparison, Scope], Comparison]  # adds evidence from elsewhere, or leaves suspects out
ISSUE_LIMIT = 1_000_000


def _silent(_message: str) -> None:
    """No progress is shown."""


@dataclass(frozen=True, slots=True)
class Question:
    """Two or more commands to compare and how to run them; `timeout` and `budget` are seconds. `values` asks for the
    second pass, which sees lines and values. `thrifty` has each reference run once where the runs of the buggy command
    make the same calls: what is steady there and differs in a reference is no noise.

    Each command is a script or text such as `script.py --flag`, `-m pkg.tool x`, `pytest tests/test_a.py::test_b`.
    """

    buggy: str
    references: tuple[str, ...]
    scope: tuple[str, ...] = ()
    python: str = sys.executable
    cwd: Path = field(default_factory=Path.cwd)
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 300.0
    repeat: int = 2
    backend: str = "auto"
    budget: float = 60.0
    values: bool = True
    issue: str | None = None
    thrifty: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One command and where it runs; `env` is added to the environment."""

    command: Command
    cwd: Path
    env: Mapping[str, str]


def investigate(
    question: Question,
    *,
    session: Path,
    ranker: str = "fused",
    model: str | None = None,
    enrich: Enrich | None = None,
    progress: Progress = _silent,
) -> Localization:
    """Answer a question and keep the session in the folder `session`, whole or not at all.

    `enrich` may change the comparison before it is ranked and kept. Raises UsageError, ScriptError or SessionError; see
    docs/messages.md.
    """
    commands = [parse_command(text, cwd=Path.cwd()) for text in (question.buggy, *question.references)]
    python = check_interpreter(question.python).path
    progress("looking for the project's code")
    scope, doubts = find_scope(commands, given=question.scope, python=python, cwd=question.cwd, env=question.env)
    runs = [Run(command, question.cwd, question.env) for command in commands]
    ready = Ready(dataclasses.replace(question, python=python), tuple(runs), scope, doubts)
    return answer(ready, session=session, ranker=ranker, model=model, enrich=enrich, progress=progress)


@dataclass(frozen=True, slots=True)
class Ready:
    """A question with its runs, the buggy one first, and the code to observe. `reread` may change what the second pass
    saw of a run."""

    question: Question
    runs: tuple[Run, ...]
    scope: Scope
    doubts: tuple[Warned, ...] = ()
    reread: Callable[[Run, Focus, Closeup], Closeup] = lambda _run, _focus, seen: seen


def answer(
    ready: Ready,
    *,
    session: Path,
    ranker: str = "fused",
    model: str | None = None,
    enrich: Enrich | None = None,
    progress: Progress = _silent,
) -> Localization:
    """Record and compare the runs, rank, and keep the session; see `investigate`."""
    question, scope = ready.question, ready.scope
    roles = ["buggy", *(f"reference-{number}" for number in range(1, len(ready.runs)))]
    by_role = dict(zip(roles, ready.runs, strict=True))
    with replacing(session) as folder:
        kept = Keeper(folder, question.budget)
        how: dict[str, Any] = {
            "scope": scope,
            "python": question.python,
            "timeout": question.timeout,
            "folder": folder / RECORDINGS,
            "repeat": question.repeat,
            "backend": question.backend,
            "progress": progress,
        }

        def closer(recording: Recording, focus: Focus) -> list[Closeup]:
            run = by_role[recording.role]
            once = {"repeat": len(recording.executions)}
            seen = closeups(recording, focus, cwd=run.cwd, env=run.env, **{**how, **once})
            alike = steady([ready.reread(run, focus, each) for each in seen])
            kept.closeup(recording.role, focus, alike)
            return [alike]

        def recorded(role: str) -> Recording:
            run = by_role[role]
            return record(run.command, role=role, cwd=run.cwd, env=run.env, **how)

        buggy = recorded(roles[0])
        if question.thrifty and question.repeat > 1 and not observe(buggy, SourceIndex(scope), scope).noisy:
            how["repeat"] = 1
        references = [recorded(role) for role in roles[1:]]
        comparison = compare(
            buggy,
            references,
            scope=scope,
            budget=question.budget,
            closer=closer if question.values else None,
            keep=kept.difference,
            progress=progress,
        )
        comparison = dataclasses.replace(comparison, warnings=(*ready.doubts, *comparison.warnings))
        if enrich is not None:
            comparison = enrich(comparison, scope)
        progress("ranking")
        found = rank_suspects(comparison, scope=scope, issue=question.issue, ranker=ranker, model=model)
        comparison.save(folder / COMPARISON)
        kept.close()
        Session(
            commands=tuple(run.command.text for run in ready.runs),
            python=question.python,
            cwd=str(question.cwd),
            env=tuple(question.env),
            issue=question.issue,
            scope=scope,
            sources=digests(scope, (suspect.function.path for suspect in comparison.suspects)),
        ).save(folder)
    return _conclude(found)


def rerank(folder: Path, *, issue: str | None = None, ranker: str = "fused", model: str | None = None) -> Localization:
    """Rank the stored comparison of a session anew; runs nothing. `issue` replaces the session's own issue text,
    '' by none.

    `model` is the encoder of the rankers that need one: a folder, or a name on the hub.
    """
    with settled(folder):
        session = Session.load(folder)
        comparison = Comparison.load(folder / COMPARISON)
    text = session.issue if issue is None else issue or None
    found = rank_suspects(comparison, scope=session.scope, issue=text, ranker=ranker, model=model)
    changed = session.changed_sources()
    return with_warnings(_conclude(found), (_source_changed(changed),) if changed else ())


def _conclude(found: Localization) -> Localization:
    """Say so when the runs showed nothing; without an issue text either, a list would rest on nothing at all."""
    if found.issue is None and not any(ranked.suspect.evidence for ranked in found.suspects):
        return dataclasses.replace(found, suspects=())
    if found.suspects and found.comparison.blindness:
        return with_warnings(found, (Warned("nothing-seen", found.comparison.blindness),))
    return found


def with_warnings(found: Localization, more: tuple[Warned, ...]) -> Localization:
    """The same localization with further warnings, except what it was already warned of."""
    known = {warned.slug for warned in found.warnings}
    return dataclasses.replace(found, warnings=(*found.warnings, *(item for item in more if item.slug not in known)))


def _source_changed(paths: tuple[str, ...]) -> Warned:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    text = f"{paths[0]}{more} changed since the recording; lines and texts may not fit: record again with xlocal trace"
    return Warned("source-changed", text)


def read_issue(source: str, *, option: str = "--issue") -> tuple[str | None, tuple[Warned, ...]]:
    """The text of an issue from a file, or from standard input for `-`; None when it is empty.

    Text beyond a million bytes is cut and bytes that are not UTF-8 are replaced, each with a warning. Raises
    UsageError, naming `option`, when the file cannot be read.
    """
    name = "standard input" if source == "-" else source
    try:
        data = sys.stdin.buffer.read(ISSUE_LIMIT + 1) if source == "-" else _read_start(Path(source))
    except OSError as error:
        raise UsageError(f"{option} {name}: cannot be read: {error.strerror}") from None
    warnings = []
    if len(data) > ISSUE_LIMIT:
        data = data[:ISSUE_LIMIT]
        warnings.append(Warned("issue-cut", f"{name} is longer than 1 MB; only its first megabyte is used"))
    text, damaged = _decode(data)
    if damaged:
        warnings.append(Warned("issue-encoding", f"{name} is not UTF-8 text; what cannot be read is left out"))
    if not text.strip():
        return None, (*warnings, Warned("issue-empty", f"{name} holds no text; ranked without an issue"))
    return text, tuple(warnings)


def other_issue(source: str | None) -> tuple[str | None, tuple[Warned, ...]]:
    """The text that replaces a session's issue: None when no file is named, '' when it is empty. See `read_issue`."""
    if not source:
        return None, ()
    text, doubts = read_issue(source)
    return text or "", doubts


def _read_start(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(ISSUE_LIMIT + 1)


def _decode(data: bytes) -> tuple[str, bool]:
    """Text and whether anything was lost. A cut in the middle of the last character does not count as loss."""
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    text = data.decode(encoding, "replace")
    whole = text[:-1] if len(data) == ISSUE_LIMIT and text.endswith("\ufffd") else text
    clean = whole.replace("\ufffd", " ").replace("\x00", " ")
    return clean, clean != whole
