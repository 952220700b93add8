"""What shells offer when they complete: rankers, functions of the session, and revisions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import click

from xlocal.settings import RANKERS, load_settings
from xlocal.tracer.errors import XlocalError

GIT_SECONDS = 2.0
MOST_REVISIONS = 200


def rankers(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The rankers that begin so."""
    return [name for name in RANKERS if name.startswith(incomplete)]


def functions(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The suspects of the session whose qualified name, or the end of it after a dot, begins so."""
    from xlocal.session import COMPARISON

    try:
        folder = Path(context.params.get("session") or load_settings(Path.cwd()).session)
        suspects = json.loads((folder / COMPARISON).read_text("utf-8"))["suspects"]
        rows = [suspect["function"] for suspect in suspects]  # path and qualified name
        names = dict.fromkeys(str(name) for _path, name in rows)
    except (OSError, ValueError, LookupError, TypeError, XlocalError):  # nothing to offer
        return []
    whole = [name for name in names if name.startswith(incomplete)]
    return whole or [end for name in names if (end := name.rpartition(".")[2]).startswith(incomplete)]


def revisions(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Branches and tags of the repository here, the youngest first, and HEAD."""
    listed = ["git", "for-each-ref", "--format=%(refname:short)", "--sort=-creatordate", f"--count={MOST_REVISIONS}"]
    try:
        done = subprocess.run(
            [*listed, "refs/heads", "refs/tags", "refs/remotes"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):  # no git, or a repository that is slow to answer
        return []
    names = ["HEAD", *done.stdout.split()] if done.returncode == 0 else []
    return [name for name in names if name.startswith(incomplete)]
