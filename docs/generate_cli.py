"""Writes docs/cli.md from the commands' own `--help`: python docs/generate_cli.py"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from xlocal.cli import cli
from xlocal.settings import key_descriptions

PAGE = Path(__file__).with_name("cli.md")

TOP = """\
# The command line

This page is made from `--help` by `python docs/generate_cli.py`; a test compares them.

stdout carries the result alone; progress and log messages go to stderr. Colours follow `NO_COLOR` and the width of the
terminal (`COLUMNS` overrides it); in a pipe there are no colours and lines are up to 120 columns wide.
"""

SCRIPTS = """\
## Naming a script

| you type | what runs |
|---|---|
| `script.py` | the script, as `python script.py` does |
| `'script.py --flag x'` | the script with arguments; quote the whole command |
| `'-m pkg.tool x'` | a module, as `python -m pkg.tool x` does; quoted, so that `-m` is no option of xlocal |
| `'pytest tests/test_a.py::test_b'` | one test |

A script whose name starts with a dash goes after `--`: `xlocal trace -- ./-odd.py ok.py`.
"""

JSON = """\
## JSON

`--format json` (or `--json`) of `xlocal trace` and `xlocal rank` prints schema version 1:

```json
{
  "schema": 1,
  "ranker": "fused",
  "issue": null,
  "runs": [
    {"role": "buggy", "command": "buggy.py", "exit_status": 1, "exception": "KeyError", "message": "'a'",
     "calls": 120, "functions": 14, "seconds": 0.2, "repeats": 2, "identical_repeats": true}
  ],
  "warnings": [{"slug": "hook-lost", "text": "..."}],
  "suspects": [
    {"rank": 1, "score": 0.93,
     "function": {"path": "pkg/mod.py", "qualname": "Class.method", "line": 10, "end_line": 42},
     "evidence": [{"kind": "deleted", "weight": 0.4, "detail": "runs 3 times only in the buggy run"}]}
  ]
}
```

`path` is relative to the git work tree that holds the code, or for an installed package to the folder that holds it.
`line` is 0 where the source is not there. Without suspects the warning `nothing-found` says why. Slugs are explained in
[messages.md](messages.md).
"""

SETTINGS = """\
## Settings

`[tool.xlocal]` in the nearest pyproject.toml (of the current folder or one above it) gives defaults; the command line
overrules them, except that `--env` adds to `env`. Paths are relative to that file.

| key | value |
|---|---|
"""


def document() -> str:
    """The whole page."""
    rows = "".join(f"| `{key}` | {meaning} |\n" for key, meaning in key_descriptions().items())
    return "\n".join([TOP, *_commands(), SCRIPTS, JSON, SETTINGS + rows])


def _commands() -> Iterator[str]:
    """The help of every command, groups before what is in them."""
    settings = {**cli.context_settings, "terminal_width": 100}
    waiting: list[tuple[click.Command, click.Context]] = [(cli, click.Context(cli, info_name="xlocal", **settings))]
    while waiting:
        command, context = waiting.pop(0)
        yield _section(context.command_path, command.get_help(context))
        inner = command.commands if isinstance(command, click.Group) else {}
        waiting[:0] = [
            (item, click.Context(item, info_name=name, parent=context, **settings)) for name, item in inner.items()
        ]


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(document(), "utf-8")
