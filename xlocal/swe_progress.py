"""How a batch shows itself while it runs: a live table on a terminal, else a line for each step that ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from xlocal.swe_pipeline.batch import Board, Outcome
    from xlocal.swe_pipeline.engines import Key

_STATUSES = ("done", "before", "failed", "gave up", "skipped")
_LISTED = 8
_PAUSE = 10.0  # seconds between two lines about one job, where there is no live table


@contextlib.contextmanager
def shown(
    console: Console, *, doing: Callable[[Key], str] = lambda key: ""
) -> Iterator[tuple[Callable[[Outcome], None], Callable[[Board], None]]]:
    """Give what a batch tells its outcomes and its board to, and show them on `console` (stderr) meanwhile.

    `doing` says what a running job is doing, in one line, empty where nothing is known.
    """
    if not console.is_terminal:
        yield _line_by_line(console), _what_runs(console, doing)
        return
    # What goes to stdout is the command's result, whatever stands on the terminal.
    with Live(console=console, auto_refresh=False, redirect_stdout=False) as live:

        def tell(outcome: Outcome) -> None:
            if outcome.error and outcome.status != "skipped":
                live.console.print(f"{outcome.instance} {outcome.step}: {outcome.error}", markup=False, highlight=False)

        yield tell, lambda board: live.update(table(board, doing=doing), refresh=True)


def _line_by_line(console: Console) -> Callable[[Outcome], None]:
    started = time.monotonic()

    def tell(outcome: Outcome) -> None:
        if outcome.status != "skipped":
            what = outcome.error or f"{outcome.seconds:.1f} s"
            status = f"{outcome.status} before" if outcome.before else outcome.status
            text = f"{time.monotonic() - started:7.1f} s  {outcome.instance} {outcome.step}: {status}, {what}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    return tell


def _what_runs(console: Console, doing: Callable[[Key], str]) -> Callable[[Board], None]:
    """A line for what a running job does, where that is another than `_PAUSE` seconds ago."""
    told: dict[Key, tuple[float, str]] = {}

    def progress(board: Board) -> None:
        for key, _ in board.running:
            text, (when, former) = doing(key), told.get(key, (-_PAUSE, ""))
            if text and text != former and board.seconds - when >= _PAUSE:
                told[key] = (board.seconds, text)
                line = f"{board.seconds:7.1f} s  {key.instance} {text}"
                console.print(line, markup=False, highlight=False, soft_wrap=True)

    return progress


def table(board: Board, *, doing: Callable[[Key], str] = lambda key: "") -> Table:
    """The board as a table: a row for each step, and below it the jobs that run longest, with what they do."""
    ended = sum(board.counts[board.steps[-1]].values())
    money = f", ${board.dollars:.2f}" if board.dollars else ""
    title = (
        f"{ended} of {board.instances} instance{'s' if board.instances != 1 else ''}, {_duration(board.seconds)}{money}"
    )
    shape = Table(title=title, title_justify="left")
    shape.add_column("step")
    for name in ("waiting", "running", *_STATUSES):
        shape.add_column(name, justify="right")
    for step in board.steps:
        counts = board.counts[step]
        running = [(key, seconds) for key, seconds in board.running if key.step == step]
        left = board.instances - sum(counts.values()) - len(running)
        shape.add_row(step, *(str(n or "") for n in (left, len(running), *(counts.get(s, 0) for s in _STATUSES))))
    longest = sorted(board.running, key=lambda row: -row[1])[:_LISTED]
    lines = (f"{key.instance} {key.step} {_duration(seconds)} {doing(key)}".rstrip() for key, seconds in longest)
    shape.caption = escape("\n".join(lines))
    shape.caption_justify = "left"
    return shape


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
