"""The whole job as two calls for programs and notebooks: `trace` one command, `localize` by comparing some."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from xlocal.question import Progress, Question, investigate
from xlocal.ranking.comparison import Localization
from xlocal.ranking.evidence import RankedSuspect
from xlocal.ranking.observation import observe
from xlocal.ranking.source import SourceIndex
from xlocal.report import all_warnings, distance, outcome, print_text, reason, short_name, where
from xlocal.tracer.calltree import CallTree, Function
from xlocal.tracer.command import parse_command
from xlocal.tracer.errors import UsageError, Warned
from xlocal.tracer.launch import check_interpreter
from xlocal.tracer.record import record
from xlocal.tracer.scope import find_scope

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from xlocal.explain import Explanation

SESSION = Path(".xlocal/latest")
SHOWN = 20
SHORT = 10  # rows of a repr
MOST_WORDS = 72  # characters of a reason in a repr


@dataclass(frozen=True, slots=True)
class Found:
    """The answer of `localize`: a sequence of ranked suspects that shows itself in terminals and notebooks.

    `localization` is all that is known, `session` the folder that keeps it for `xlocal rank` and `explain`.
    """

    localization: Localization = field(repr=False)
    session: Path
    top: int = SHOWN

    @property
    def suspects(self) -> tuple[RankedSuspect, ...]:
        """All suspects, the first to blame first."""
        return self.localization.suspects

    @property
    def warnings(self) -> tuple[Warned, ...]:
        """Doubts about the data, and when nothing was found the reason for that."""
        return all_warnings(self.localization)

    def __len__(self) -> int:
        return len(self.suspects)

    def __iter__(self) -> Iterator[RankedSuspect]:
        return iter(self.suspects)

    def __getitem__(self, at: int) -> RankedSuspect:
        return self.suspects[at]

    def names(self) -> list[str]:
        """Qualified names in the order of blame."""
        return [str(ranked.suspect.function.qualname) for ranked in self.suspects]

    def explain(self, name: str) -> Explanation:
        """Why a function is suspected; UsageError when no suspect has this name."""
        from xlocal.explain import explain

        return explain(self.session, name, ranker=self.localization.ranker, issue=self.localization.issue)

    def __str__(self) -> str:
        lines = [f"{one.rank}. {one.suspect.function.qualname} ({where(one)})" for one in self.suspects[: self.top]]
        return "\n".join(lines) or "no suspects"

    def __repr__(self) -> str:
        """A short table, which Python's and IPython's prompts show."""
        return _plain_table(self.localization, min(self.top, SHORT))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """What `xlocal trace` prints."""
        from rich.console import Console as NewConsole
        from rich.text import Text

        paper = StringIO()
        printer = NewConsole(
            file=paper,
            width=options.max_width,
            force_terminal=console.is_terminal,
            color_system=console.color_system if console.is_terminal else None,  # type: ignore[arg-type]
            highlight=False,
            markup=False,
            emoji=False,
        )
        print_text(self.localization, printer, top=self.top)
        yield Text.from_ansi(paper.getvalue())

    def _repr_html_(self) -> str:
        return _html(self.localization, self.top)


@dataclass(frozen=True, slots=True)
class Traced:
    """One command recorded once: its call tree, and how it ended."""

    command: str
    tree: CallTree = field(repr=False)
    exit_status: int | None
    exception: str | None
    message: str | None
    stdout: str = field(repr=False)
    warnings: tuple[Warned, ...] = field(default=(), repr=False)

    def calls(self) -> dict[Function, int]:
        """How often each function of the scope was called, most calls first."""
        return dict(sorted(self.tree.counts().items(), key=lambda item: (-item[1], item[0])))

    def outline(self) -> str:
        """The call tree as indented names: for small trees."""
        return self.tree.outline()

    def __str__(self) -> str:
        ended = f"{short_name(self.exception)}: {self.message}" if self.exception else f"exit {self.exit_status}"
        return f"{self.command}: {ended}; {len(self.tree) - 1:,} calls of {len(self.calls()):,} functions"

    def __rich__(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        table = Table("calls", "function", "file", title=Text(str(self)), title_justify="left", box=None)
        for function, count in list(self.calls().items())[:SHOWN]:
            table.add_row(f"{count:,}", Text(function.qualname), Text(function.path, "cyan"))
        return table

    def _repr_html_(self) -> str:
        rows = [[f"{count:,}", _code(f.qualname), _code(f.path)] for f, count in list(self.calls().items())[:SHOWN]]
        return f"<p>{escape(str(self))}</p>" + _table(("calls", "function", "file"), rows)


def localize(  # noqa: PLR0913 - each is an option of `xlocal trace`
    buggy: str | Path,
    *references: str | Path,
    issue: str | Path | None = None,
    scope: str | Sequence[str] = (),
    python: str | Path | None = None,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300.0,
    repeat: int = 2,
    values: bool = True,
    ranker: str = "fused",
    session: str | Path = SESSION,
    top: int = SHOWN,
    progress: Progress = lambda _: None,
) -> Found:
    """Compare a command that shows a bug with some that do not, and rank the functions of the project.

    Commands are those of `xlocal trace`: a script, `-m pkg.tool x`, `pytest tests/test_a.py::test_b`. `issue` is the
    text of the bug report, or a Path to it. `python` is this interpreter by default, `timeout` is in seconds for one
    run, `top` is how many suspects are shown. Raises UsageError, ScriptError or SessionError (docs/messages.md).
    """
    if not references:
        raise UsageError("localize needs at least one reference: a command like the buggy one that works")
    question = Question(
        buggy=_text(buggy),
        references=tuple(map(_text, references)),
        scope=_names(scope),
        python=str(python or sys.executable),
        cwd=Path(cwd or Path.cwd()).absolute(),
        env=dict(env or {}),
        timeout=timeout,
        repeat=repeat,
        values=values,
        issue=issue.read_text("utf-8", "replace") if isinstance(issue, Path) else issue,
    )
    found = investigate(question, session=Path(session), ranker=ranker, progress=progress)
    return Found(found, Path(session), top)


def trace(
    command: str | Path,
    *,
    scope: str | Sequence[str] = (),
    python: str | Path | None = None,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300.0,
    progress: Progress = lambda _: None,
) -> Traced:
    """Run one command and record its calls; keeps nothing on disk. Raises UsageError or ScriptError."""
    where_to = Path(cwd or Path.cwd()).absolute()
    parsed = parse_command(_text(command), cwd=Path.cwd())
    interpreter = check_interpreter(python or sys.executable).path
    code, doubts = find_scope([parsed], given=_names(scope), python=interpreter, cwd=where_to, env=env or {})
    with tempfile.TemporaryDirectory(prefix="xlocal-trace-") as folder:
        recording = record(
            parsed,
            role="traced",
            scope=code,
            python=interpreter,
            folder=Path(folder),
            cwd=where_to,
            env=env or {},
            timeout=timeout,
            repeat=1,
            progress=progress,
        )
        seen = observe(recording, SourceIndex(code), code)
        uncaught = seen.uncaught[0] if seen.uncaught else None
        return Traced(
            command=parsed.text,
            tree=seen.tree,
            exit_status=recording.executions[0].exit_status,
            exception=uncaught.type if uncaught else None,
            message=uncaught.message if uncaught else None,
            stdout=recording.executions[0].stdout(),
            warnings=(*doubts, *seen.warnings),
        )


def _text(command: str | Path) -> str:
    """A Path is one script, whatever is in its name."""
    if isinstance(command, str):
        return command
    import shlex

    return shlex.quote(str(command))


def _names(scope: str | Sequence[str]) -> tuple[str, ...]:
    return (scope,) if isinstance(scope, str) else tuple(scope)


def _plain_table(found: Localization, most: int) -> str:
    """The first suspects in columns; when there are none, why."""
    if not found.suspects:
        return f"No suspects. {all_warnings(found)[-1].text}"
    shown = found.suspects[:most]
    head = ("rank", "function", "where", "why")
    rows = [
        (str(one.rank), one.suspect.function.qualname, where(one), reason(one, issue=found.issue, ranker=found.ranker))
        for one in shown
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)][:3]
    lines = [
        f"{rank:>{widths[0]}}  {name:{widths[1]}}  {place:{widths[2]}}  {_cut(why)}"
        for rank, name, place, why in (head, *rows)
    ]
    more = len(found.suspects) - len(shown)
    return "\n".join([*lines, f"... and {more:,} more"] if more else lines)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_WORDS else f"{text[: MOST_WORDS - 3].rstrip()}..."


def _html(found: Localization, top: int) -> str:
    """Runs and suspects as tables; all styles are inline, and colours are those of the notebook."""
    runs = [[escape(run.role), _code(run.command), escape(outcome(run)), f"{run.calls:,}"] for run in found.runs]
    parts = [_table(("run", "command", "ended", "calls"), runs), f"<p>{escape(distance(found.comparison))}</p>"]
    best = max((ranked.score for ranked in found.suspects), default=0.0) or 1.0
    rows = [
        [
            str(one.rank),
            f"<strong>{_code(one.suspect.function.qualname)}</strong>",
            _code(where(one)),
            escape(reason(one, issue=found.issue, ranker=found.ranker)),
            _bar(one.score, one.score / best),
        ]
        for one in found.suspects[:top]
    ]
    parts.append(_table(("rank", "function", "where", "why", "score"), rows) if rows else "<p>No suspects.</p>")
    parts += [f"<p><em>{escape(one.slug)}</em>: {escape(one.text)}</p>" for one in all_warnings(found)]
    return f"<div>{''.join(parts)}</div>"


def _bar(score: float, share: float) -> str:
    width = max(0, min(100, round(100 * share)))
    line = f"height:3px;width:{width}%;background:currentColor;opacity:.5"
    return f'{score:.3f}<div style="{line}"></div>'


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    cell = '<td style="text-align:left;vertical-align:top">'
    top = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"{cell}{text}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
