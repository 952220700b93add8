"""One script at two revisions of its project: a regression localized to functions (`xlocal trace --between`).

Both revisions are checked out in folders below `.xlocal/worktrees` of the repository, named after their commits and
kept for the session and the next time; each borrows the repository's objects, which knows nothing of them. The script
and the environment are those of today; only the project's code differs.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import os
import shutil
import subprocess
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xlocal.failing import add_evidence
from xlocal.question import Progress, Question, Ready, Run, answer
from xlocal.ranking.comparison import Comparison, Localization
from xlocal.ranking.signals import Finding, weigh
from xlocal.ranking.source import FunctionSource, SourceIndex
from xlocal.tracer import layout
from xlocal.tracer.calltree import Function
from xlocal.tracer.closeup import Closeup, Focus
from xlocal.tracer.command import Command, parse_command
from xlocal.tracer.errors import UsageError, Warned, XlocalError
from xlocal.tracer.launch import check_interpreter
from xlocal.tracer.scope import Scope, ScopeRoot, find_scope

KIND = "changed"
MOST_NAMED = 30  # changed functions whose last commit is looked up
# What a build leaves beside the sources and imports need, though git ignores it.
_GENERATED = (".py", ".so", ".pyd")


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision as the user names it, its commit, and the folder where it is checked out."""

    name: str
    commit: str
    folder: Path


def investigate_between(
    question: Question,
    good: str,
    bad: str,
    *,
    session: Path,
    ranker: str = "fused",
    model: str | None = None,
    progress: Progress = lambda _: None,
) -> Localization:
    """Run `question.buggy` at both revisions and compare; functions that the commits between them changed are marked.

    `question.references` must be empty. Raises UsageError for a revision that is none, or when the code to observe lies
    outside of the repository; XlocalError when git fails; otherwise what `investigate` raises.
    """
    repository = Path(os.path.realpath(_git(question.cwd, "rev-parse", "--show-toplevel")))
    commits = {name: _commit(repository, name) for name in (good, bad)}
    if commits[good] == commits[bad]:
        raise UsageError(f"--between {good} {bad}: both are the commit {commits[good][:12]}")
    command = parse_command(question.buggy, cwd=Path.cwd())
    python = check_interpreter(question.python).path
    progress("looking for the project's code")
    scope, doubts = find_scope([command], given=question.scope, python=python, cwd=question.cwd, env=question.env)
    revisions = []
    for name in (bad, good):
        progress(f"checking out {name}")
        revisions.append(_check_out(repository, name, commits[name]))
    doubts = (*doubts, *_uncommitted(repository, scope, command))
    scopes = [_moved_scope(scope, repository, revision) for revision in revisions]
    runs = [_run(command, question, repository, revision, one) for revision, one in zip(revisions, scopes, strict=True)]
    lines = _Lines(*revisions)

    def reread(run: Run, focus: Focus, seen: Closeup) -> Closeup:
        return seen if run is runs[0] else lines.of_bad(focus, seen)

    def enrich(comparison: Comparison, _scope: Scope) -> Comparison:
        return mark_changed(comparison, scopes[0], scopes[1], revisions[0], revisions[1])

    both = Scope((*scopes[0].roots, *scopes[1].roots))
    ready = Ready(dataclasses.replace(question, python=python), tuple(runs), both, doubts, reread)
    return answer(ready, session=session, ranker=ranker, model=model, enrich=enrich, progress=progress)


def _git(folder: Path, *arguments: str) -> str:
    """What git prints; UsageError where there is no work tree, XlocalError when it fails otherwise."""
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotePath=false", *arguments],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
        )
    except OSError as error:
        raise XlocalError(f"--between needs git, which cannot be started: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr.strip() or "no message").splitlines()[-1]
        kind = UsageError if "not a git repository" in said else XlocalError
        raise kind(f"git {arguments[0]} failed in {folder}: {said}")
    return done.stdout.rstrip("\n")


def _commit(repository: Path, name: str) -> str:
    try:
        return _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except XlocalError:
        raise UsageError(f"--between: {name!r} is no revision of {repository}") from None


def _check_out(repository: Path, name: str, commit: str) -> Revision:
    """The tree of a commit, clean; made unless it is there."""
    home = repository / ".xlocal"
    folder = home / "worktrees" / commit[:12]
    home.mkdir(exist_ok=True)
    if not (home / ".gitignore").exists():
        (home / ".gitignore").write_text("*\n", "utf-8")
    if (folder / ".git").is_file():  # registered with the repository, as an earlier version did
        _git(repository, "worktree", "remove", "--force", "--force", str(folder))
    _fill(folder, repository, commit)
    for path, inner in _submodules(folder):
        _check_out_submodule(folder / path, repository / path, inner, name)
    for path in _generated(repository):
        target = folder / path
        if target.parent.is_dir() and not target.exists():
            shutil.copy2(repository / path, target)
    return Revision(name, commit, folder)


def _fill(folder: Path, repository: Path, commit: str) -> None:
    """Check a commit out into a folder of its own, which is a repository that borrows the objects of another."""
    if not (folder / ".git").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        sha256 = ["--object-format=sha256"] if len(commit) == 64 else []
        _git(repository, "init", "--quiet", "--template=", *sha256, str(folder))
    common = repository / _git(repository, "rev-parse", "--git-common-dir")
    (folder / ".git" / "objects" / "info").mkdir(parents=True, exist_ok=True)
    (folder / ".git" / "objects" / "info" / "alternates").write_text(f"{common / 'objects'}\n", "utf-8")
    if (common / "shallow").exists():
        shutil.copyfile(common / "shallow", folder / ".git" / "shallow")
    _git(folder, "checkout", "--quiet", "--force", "--detach", commit)
    _git(folder, "clean", "--quiet", "-ffd")


def _submodules(folder: Path) -> list[tuple[str, str]]:
    """Path and commit of each submodule of a tree."""
    rows = (row.partition("\t") for row in _git(folder, "ls-files", "--stage", "-z").split("\0"))
    return [(path, facts.split()[1]) for facts, _, path in rows if facts.startswith("160000 ")]


def _check_out_submodule(folder: Path, theirs: Path, commit: str, name: str) -> None:
    """The tree of a submodule, where the user's checkout has it; what nobody has checked out stays an empty folder."""
    if not (theirs / ".git").exists():
        return
    try:
        _git(theirs, "cat-file", "-e", f"{commit}^{{commit}}")
    except XlocalError:
        raise UsageError(
            f"--between: the submodule {theirs} lacks the commit {commit[:12]}, which {name} needs; fetch it there"
        ) from None
    _fill(folder, theirs, commit)
    for path, inner in _submodules(folder):
        _check_out_submodule(folder / path, theirs / path, inner, name)


def _uncommitted(repository: Path, scope: Scope, command: Command) -> Iterator[Warned]:
    """Says so when code under study is not as in HEAD: neither revision has it."""
    roots = [root.directory for root in scope.roots if layout.inside(root.directory, str(repository)) is not None]
    rows = _git(repository, "status", "--porcelain", "-z", "--no-renames", "--", *roots).split("\0") if roots else []
    # New files of other kinds are data and notes; a new module is code that neither revision has.
    paths = [row[3:] for row in rows if row and (not row.startswith("??") or row.endswith((".py", "/")))]
    paths = [path for path in paths if not _is_inside(command.file, repository / path)]
    if paths:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        verb = "have" if more else "has"
        text = f"{paths[0]}{more} {verb} changes that are not committed; both revisions ran without them"
        yield Warned("uncommitted-left-out", text)


def _is_inside(file: Path | None, path: Path) -> bool:
    """Whether a file is the one of a path, or lies in that folder."""
    return file is not None and layout.inside(layout.real(str(file)), layout.real(str(path))) is not None


def _generated(repository: Path) -> Iterator[str]:
    """Single ignored files that imports may need: `_version.py`, extension modules. Ignored folders are left out."""
    listed = _git(repository, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    for path in filter(None, listed.split("\0")):
        if path.endswith(_GENERATED) and not path.startswith((".", "build/", "dist/")):
            yield path


def _moved(path: str, repository: Path, revision: Revision) -> str | None:
    """Where a path of the repository lies at a revision; None for a path outside."""
    for spelling in (path, os.path.realpath(path)):
        rest = layout.inside(spelling, str(repository))
        if rest is not None:
            return os.path.join(revision.folder, rest) if rest else str(revision.folder)
    return None


def _moved_scope(scope: Scope, repository: Path, revision: Revision) -> Scope:
    roots = []
    for root in scope.roots:
        moved, base = _moved(root.directory, repository, revision), _moved(root.base, repository, revision)
        if moved is None or base is None:
            raise UsageError(
                f"--between compares code of {repository}, but {root.name} lies in {root.directory}; name code of the "
                "repository with --scope"
            )
        if os.path.exists(moved):
            roots.append(ScopeRoot(moved, base, root.name, moved))
    if not roots:
        raise UsageError(f"--between: nothing of the code to observe is there at {revision.name}; name it with --scope")
    return Scope(tuple(roots))


def _run(command: Command, question: Question, repository: Path, revision: Revision, scope: Scope) -> Run:
    """The command at a revision: today's script, the revision's code first on the path."""
    file = command.file
    if file is not None and file.is_file() and (copy := _moved(str(file), repository, revision)) is not None:
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copyfile(file, copy)

    def moved(text: str) -> str:
        path, colons, rest = text.partition("::")
        return f"{(os.path.isabs(path) and _moved(path, repository, revision)) or path}{colons}{rest}"

    there = dataclasses.replace(
        command,
        text=f"{command.text} ({revision.name})",
        target=moved(command.target),
        argv=tuple(map(moved, command.argv)),
    )
    first = dict.fromkeys(_on_path(root) for root in scope.roots)
    former = question.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")).split(os.pathsep)
    paths = [*first, *(moved(path) for path in former if path)]
    cwd = Path(_moved(str(question.cwd), repository, revision) or question.cwd)
    return Run(there, cwd if cwd.is_dir() else revision.folder, {**question.env, "PYTHONPATH": os.pathsep.join(paths)})


def _on_path(root: ScopeRoot) -> str:
    """The folder from which a root is imported."""
    folder = root.directory if os.path.isdir(root.directory) else os.path.dirname(root.directory)
    return layout.package_holder(folder)


class _Lines:
    """Line numbers of the good revision's files as those of the bad one's."""

    def __init__(self, bad: Revision, good: Revision) -> None:
        self._bad, self._good = bad, good
        self._map = cache(self._read)

    def of_bad(self, focus: Focus, seen: Closeup) -> Closeup:
        """The close-up with lines renumbered; a line without a counterpart is left out."""
        calls = {}
        for key, record in seen.calls.items():
            numbers = self._map(focus[key.function][0])
            lines = record.lines
            if numbers is not None:
                lines = {numbers[line]: count for line, count in record.lines.items() if line in numbers}
            calls[key] = dataclasses.replace(record, lines=lines)
        return Closeup(calls, seen.warnings)

    def _read(self, filename: str) -> Mapping[int, int] | None:
        """Good line -> bad line; None where the files are equal, or where there is no other file."""
        rest = layout.inside(layout.real(filename), str(self._good.folder))
        other = self._bad.folder / rest if rest else None
        if other is None or not other.is_file():
            return None
        old, new = (path.read_bytes().split(b"\n") for path in (Path(filename), other))
        if old == new:
            return None
        # Edited lines count as the same as long as there are as many of them.
        blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        return {
            start + at + 1: there + at + 1
            for _, start, end, there, until in blocks
            if end - start == until - there
            for at in range(end - start)
        }


def mark_changed(comparison: Comparison, here: Scope, there: Scope, bad: Revision, good: Revision) -> Comparison:
    """The comparison with evidence for every suspect whose code the two revisions do not share; comments, docstrings
    and layout do not count."""
    new, old = SourceIndex(here), SourceIndex(there)
    flagged: dict[Function, Finding] = {}
    for suspect in comparison.suspects:
        one, other = new.source(suspect.function), old.source(suspect.function)
        if (one or other) and not _alike(one, other):
            what = "changed" if one and other else "added" if one else "removed"
            commit = _last_commit(one, bad, good) if one and len(flagged) < MOST_NAMED else ""
            flagged[suspect.function] = Finding(1.0, f"{what} between {good.name} and {bad.name}{commit}")
    evidence = weigh({KIND: flagged}, sum(suspect.executed for suspect in comparison.suspects))
    suspects = tuple(add_evidence(suspect, evidence.get(suspect.function, ())) for suspect in comparison.suspects)
    return dataclasses.replace(comparison, suspects=suspects)


def _alike(one: FunctionSource | None, other: FunctionSource | None) -> bool:
    if one is None or other is None:
        return False
    return one.text == other.text or _meaning(one) == _meaning(other)


def _meaning(source: FunctionSource) -> str:
    """The syntax tree without docstrings as text, else the lines without comments."""
    try:
        tree = ast.parse(textwrap.dedent(source.text))
    except (SyntaxError, ValueError, RecursionError):
        return "\n".join(line.strip() for line in source.body.splitlines() if line.strip())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:]
    return ast.dump(tree)


def _last_commit(source: FunctionSource, bad: Revision, good: Revision) -> str:
    """` (1a2b3c4 Subject)` of the last commit of the range that touched the function, empty when git cannot tell."""
    where = f"-L{source.line},{source.end_line}:{source.function.path}"
    try:
        said = _git(bad.folder, "log", "-1", "--no-patch", "--format=%h %s", where, f"{good.commit}..{bad.commit}")
    except XlocalError:  # the scope's base is another folder, or the file has no history of its own
        return ""
    return f" ({said.splitlines()[0]})" if said else ""
