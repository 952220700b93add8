"""A work tree at one commit whose repository holds nothing of what came after it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from xlocal.swe_pipeline.issue import Issue
from xlocal.tracer.errors import CheckoutError, MissingError

# Rankers look one year back; older history would only cost time and disk.
HISTORY = timedelta(days=400)
BRANCH = "base"
# Written by installs and runs, of no interest to a patch.
_IGNORED = ("*.egg-info/", ".eggs/", "*.libs/", "*.so", "*.pyc", "__pycache__/", ".pytest_cache/")
_SECONDS = 1800


def clone(issue: Issue, tree: Path, *, mirrors: Path | None) -> datetime:
    """Fetch the issue's base commit and the year before it into the folder `tree`; returns the commit's time.

    Nothing else is fetched: no later commit, no remote's name, no object shared with another repository. Tags of
    the commits fetched are kept, since many projects take their version from them.

    Raises CheckoutError when the repository or the commit is not there, or the disk refuses.
    """
    source = find_source(issue.repository, mirrors)
    commit = _full_name(issue, source)
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    git(tree, "init", "--quiet", "--initial-branch", BRANCH)
    _fetch(issue, tree, source, commit)
    git(tree, "checkout", "--quiet", "-B", BRANCH, commit)
    _tag(tree, source)
    for leftover in ("FETCH_HEAD", "ORIG_HEAD"):
        (tree / ".git" / leftover).unlink(missing_ok=True)
    (tree / ".git" / "info").mkdir(exist_ok=True)
    (tree / ".git" / "info" / "exclude").write_text("\n".join(_IGNORED) + "\n", "utf-8")
    return commit_time(tree, "HEAD")


def find_source(repository: str, mirrors: Path | None) -> str:
    """What git fetches from: the bare mirror OWNER__NAME.git, a folder, or a URL.

    Raises CheckoutError when the mirror is not there.
    """
    if "://" in repository or repository.startswith("git@"):
        return repository
    folder = Path(repository).expanduser()
    if folder.is_absolute() or repository.startswith((".", "~")):
        if not folder.is_dir():
            raise MissingError(f"{repository}: no such repository")
        return str(folder.resolve())
    if mirrors is None:
        return f"https://github.com/{repository}.git"
    mirror = mirrors / f"{repository.replace('/', '__')}.git"
    if not mirror.is_dir():
        raise MissingError(f"{mirror}: no such mirror; make one with: git clone --bare URL {mirror}")
    return str(mirror.resolve())


def _full_name(issue: Issue, source: str) -> str:
    """The commit's full name; one that is not in a local source is missed before anything is copied."""
    if not os.path.isdir(source):
        return issue.base_commit
    found = _git(["-C", source, "rev-parse", "--verify", "--quiet", f"{issue.base_commit}^{{commit}}"])
    if found.returncode:
        said = found.stderr.strip().splitlines()
        reason = said[-1] if said else f"commit {issue.base_commit} is not in it; fetch it into the mirror"
        raise MissingError(f"{source}: {reason}")
    return found.stdout.strip()


def _fetch(issue: Issue, tree: Path, source: str, commit: str) -> None:
    moment = commit_time(Path(source), commit) if os.path.isdir(source) else issue.created
    fetch = ["-C", str(tree), "fetch", "--quiet", "--no-tags", "--no-write-fetch-head"]
    if moment is not None:
        since = f"--shallow-since={(moment - HISTORY).date().isoformat()}"
        if not _git([*fetch, since, source, commit]).returncode:
            return
        # Not every server, and not every history, knows how to be cut by date.
    # A source that is itself cut short keeps its own beginning.
    done = _git([*fetch, "--update-shallow", source, commit])
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        # The first complaint is the cause, such as an object that an incomplete mirror lacks.
        cause = next((line for line in said if "fatal: " in line or "error: " in line), said[-1]).strip()
        raise CheckoutError(f"{source}: commit {commit} cannot be fetched: {cause}")


def _tag(tree: Path, source: str) -> None:
    """Tags of what was fetched, straight on their commits: an annotated tag's object was not fetched."""
    listed = _git(["ls-remote", "--tags", source])
    named: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        commit, name = line.split("\t")
        # The peeled line follows the tag's own.
        named[name.removesuffix("^{}")] = commit
    here = set(git(tree, "rev-list", "HEAD").split())
    updates = [f"create {name} {commit}\n" for name, commit in named.items() if commit in here]
    if updates:
        git(tree, "update-ref", "--stdin", stdin="".join(updates))


def commit_time(repository: Path, commit: str) -> datetime:
    """When a commit was made, UTC."""
    return datetime.fromtimestamp(int(git(repository, "show", "--no-patch", "--format=%ct", commit)), UTC)


def git(repository: Path, *arguments: str, stdin: str | None = None, env: dict[str, str] | None = None) -> str:
    """What git prints. Raises CheckoutError with the last line that it said."""
    done = _git(["-C", str(repository), *arguments], stdin=stdin, env=env)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise CheckoutError(f"{repository}: git {arguments[0]}: {said[-1]}")
    return done.stdout


def _git(
    arguments: Sequence[str], *, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Git without the user's settings, prompts and hooks; bytes that are not UTF-8 survive the round trip."""
    left_out = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    ours = {name: value for name, value in os.environ.items() if name not in left_out}
    ours.update(GIT_TERMINAL_PROMPT="0", GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1", LC_ALL="C.UTF-8")
    try:
        done = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false", *arguments],
            env={**ours, **(env or {})},
            input=(stdin or "").encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        # Decoded here: text mode would turn the line ends of a diff's files into our own.
        said, complained = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, said, complained)
    except FileNotFoundError:
        raise MissingError("repositories are fetched by git, which is not here; install it") from None
    except subprocess.TimeoutExpired:
        raise CheckoutError(f"git {' '.join(arguments)}: not ready after {_SECONDS} seconds") from None
