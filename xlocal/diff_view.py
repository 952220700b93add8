"""`xlocal diff`: the call tree of only the differences, for the terminal and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from xlocal.aligned import ENDED, MOVED_FROM, MOVED_TO, ONLY_BUGGY, ONLY_REFERENCE, Rows, align
from xlocal.kept import kept_difference
from xlocal.outline import ALIKE, CALL, CUT, PATH, REPEAT, Line, Outline, outline
from xlocal.ranking.comparison import Comparison
from xlocal.ranking.diff import TreeDiff, diff
from xlocal.ranking.localize import CELLS_PER_SECOND
from xlocal.ranking.observation import Observation, observe
from xlocal.ranking.source import SourceIndex
from xlocal.report import plain, short_name
from xlocal.session import COMPARISON, RECORDINGS, Session, settled
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import SessionError, UsageError, Warned
from xlocal.tracer.record import Recording
from xlocal.tracer.trace import Trace

SCHEMA = 1
MOST_LINES = 400
CUT_SHORT = "trace-cut-short"  # what reading says of a trace without an end
NARROWEST_NAME = 24  # columns that indentation leaves to a name
NAMED = 3  # functions of a summary that are named

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """A session's buggy run with one of its references, read again from the recordings."""

    buggy: Observation
    reference: Observation
    difference: TreeDiff

    @property
    def rows(self) -> Rows:
        """Both trees as one."""
        return align(self.difference)

    @property
    def noisy(self) -> frozenset[Function]:
        """Functions whose calls differ between runs of the same script."""
        return self.buggy.noisy | self.reference.noisy

    @property
    def warnings(self) -> tuple[Warned, ...]:
        """What the traces themselves leave in doubt; what recording them did was told when it was done."""
        each = (self.buggy, self.reference)
        return tuple(warned for seen in each for warned in seen.warnings if warned not in seen.recording.warnings)


def roles_of(folder: Path) -> tuple[str, ...]:
    """The references of a session, in the order in which they were given."""
    with settled(folder):
        Session.load(folder)
        runs = Comparison.load(folder / COMPARISON).runs
    return tuple(run.role for run in runs[1:])


def read_again(
    folder: Path,
    roles: tuple[str, ...],
    *,
    budget: float,
    insist: bool = False,
    progress: Progress = lambda text: None,
) -> tuple[Compared, ...]:
    """The recordings of a session with the differences that it keeps; runs nothing.

    `roles` name the references. A difference is computed anew, within `budget` seconds, where the session keeps none,
    where the sources now name the calls otherwise, and, if you `insist`, where it is a bound found with a smaller
    budget. Raises SessionError or TraceFormatError for recordings that are missing or damaged, or that do not hold what
    the session's comparison saw in them.
    """
    with settled(folder):
        session = Session.load(folder)
        scope = session.scope
        index = SourceIndex(scope)
        progress("reading the traces")
        buggy, *references = [
            observe(Recording.load(folder / RECORDINGS / role), index, scope) for role in ("buggy", *roles)
        ]
        former = Comparison.load(folder / COMPARISON)
        changed = bool(session.changed_sources())
        for seen in (buggy, *references):
            if not _as_before(seen, former, changed):
                raise SessionError(f"{_damaged(seen)}: is damaged; record again with xlocal trace")
        return tuple(
            Compared(
                buggy,
                reference,
                kept_difference(folder, reference.role, buggy.tree, reference.tree, budget=budget if insist else None)
                or _difference(buggy, reference, budget=budget, progress=progress),
            )
            for reference in references
        )


def _difference(buggy: Observation, reference: Observation, *, budget: float, progress: Progress) -> TreeDiff:
    return diff(
        buggy.tree,
        reference.tree,
        budget=budget * CELLS_PER_SECOND,
        progress=lambda phase, share: progress(f"comparing with {reference.role}: {phase} {share:.0%}"),
    )


def _damaged(seen: Observation) -> Path:
    """The trace of a recording that ends too early, else the folder of its first run."""
    runs = [run.folder for run in seen.recording.executions]
    traces = (file for folder in runs for file in sorted(folder.glob("*.xtrace")))
    return next((file for file in traces if not Trace.load(file).complete), runs[0])


def _as_before(seen: Observation, former: Comparison, changed: bool) -> bool:
    """Whether a recording still holds what it held when the session was made.

    In sources that `changed` since, calls may have other names or none, so that their numbers say nothing.
    """
    run = next((run for run in former.runs if run.role == seen.role), None)
    cut = any(warned.slug == CUT_SHORT for warned in seen.warnings)
    if run is None or (cut and not any(w.slug == CUT_SHORT and seen.role in w.text for w in former.warnings)):
        return False
    now = len(seen.tree) - 1, len(seen.tree.counts()), not seen.noisy
    return changed or now == (run.calls, run.functions, run.identical_repeats)


def chosen_role(roles: tuple[str, ...], number: int) -> str:
    """The reference that a number from 1 means; raises UsageError when there is none."""
    if not 1 <= number <= len(roles):
        raise UsageError(f"--reference {number}: this session has {len(roles)} of them")
    return roles[number - 1]


def sign(kind: int) -> str:
    """`-` for a call of the buggy run alone, `+` for one of the reference alone, `~` for another ending, or a space."""
    if kind in ONLY_BUGGY:
        return "-"
    if kind in ONLY_REFERENCE:
        return "+"
    return "~" if kind == ENDED else " "


def told_of(rows: Rows, row: int) -> str:
    """What is told of a row beside its name: how its calls ended, and whether they moved; '' for nothing."""
    here, there = ending(rows, row), ending(rows, row, there=True)
    return f"{here}, {there} in the reference run" if rows.kind[row] == ENDED else here or there


def ending(rows: Rows, row: int, *, there: bool = False) -> str:
    """How a row's call ended in the buggy run (`there`: in the reference), as far as it is worth telling."""
    kind, node = int(rows.kind[row]), int((rows.right if there else rows.left)[row])
    if node < 0:
        return ""
    exception = int((rows.raised_right if there else rows.raised_left)[row])
    raised = "" if exception < 0 else f"raised {short_name(rows.exceptions[exception])}".replace("?", "an exception")
    moved = {MOVED_FROM: "moved from here", MOVED_TO: "moved to here"}.get(kind, "")
    return ", ".join(part for part in (moved, raised) if part) or ("returned" if kind == ENDED else "")


def functions_inside(rows: Rows, line: Line) -> Counter[Function]:
    """How often each function is called in the rows that a line stands for, calls in both runs counted once."""
    stop = line.row + max(line.calls)
    return Counter(rows.functions[label] for label in rows.label[line.row : stop].tolist() if label >= 0)


def summary(rows: Rows, line: Line) -> str:
    """The text of a line that stands for several calls."""
    here, there = line.calls
    if line.what == REPEAT:
        return f"{line.times:,} times:"
    if line.what == PATH:
        return f"{_number(line.times, 'call')} deeper"
    if line.what == CUT:
        return f"{_number(max(here, there), 'call')} more, {_number(line.edits, 'difference')} among them"
    counted = functions_inside(rows, line)
    named = ", ".join(plain(function.qualname) for function, _ in counted.most_common(NAMED))
    more = f" and {len(counted) - NAMED} more" if len(counted) > NAMED else ""
    return f"{_number(here, 'call')} alike: {named}{more}"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def heading(compared: Compared, rows: Rows) -> str:
    """How far the two runs are apart, in one sentence."""
    difference, role = compared.difference, compared.reference.role
    ended = int((rows.kind == ENDED).sum())
    if not difference.cost:
        if ended:
            return f"buggy and {role} make the same calls; {ended:,} ended otherwise."
        return f"The call trees of buggy and {role} are equal."
    gone, new = len(difference.deleted), len(difference.inserted)
    exact = "" if difference.exact else f"; a bound, at least {difference.lower:,} are needed"
    otherwise = f", {ended:,} ended otherwise" if ended else ""
    only = f"{_number(gone, 'call')} only in the buggy run, {new:,} only in the reference"
    return f"buggy against {role}: {only}{otherwise}{exact}."


def print_diff(compared: Compared, console: Console, *, most: int = MOST_LINES) -> bool:
    """Print the tree of differences, at most about `most` lines; False when there is none.

    On a terminal each line keeps to its width; elsewhere nothing is shortened.
    """
    rows = compared.rows
    console.print(Text(heading(compared, rows), "bold"), soft_wrap=not console.is_terminal)
    if not rows.differs.any():
        return False
    legend = Text("- only in the buggy run, + only in the reference, ~ ended otherwise", "dim")
    console.print(legend, soft_wrap=not console.is_terminal)
    console.print()
    shown = outline(rows, most=most)
    width = console.width if console.is_terminal else None
    for line in shown.lines[1:]:
        console.print(_text(rows, line, compared.noisy, width), soft_wrap=True)
    if shown.hidden:
        text = f"{_number(shown.hidden, 'difference')} left out; --lines {most * 4} shows more, xlocal report the most"
        console.print()
        console.print(Text(text, "dim"), soft_wrap=not console.is_terminal)
    return True


_STYLES = {"-": "red", "+": "green", "~": "yellow", " ": ""}


def _text(rows: Rows, line: Line, noisy: frozenset[Function], width: int | None) -> Text:
    mark = sign(int(rows.kind[line.row])) if line.what == CALL else " "
    style = _STYLES[mark] if line.what == CALL else "dim"
    indent = 2 * (line.depth - 1)
    # Deep down the depth is a number, so that names keep their room.
    room = None if width is None else max(width - NARROWEST_NAME, 8)
    lead = " " * indent if room is None or indent <= room else f"{'':{room - 8}}[{line.depth}] "
    text = Text(f"{mark} {lead}", style)
    if line.what == CALL:
        function = rows.functions[rows.label[line.row]]
        text.append(plain(function.qualname), style if mark != " " else "bold")
        text.append(f" x{line.times:,}" if line.times > 1 else "")
        text.append("".join(f"  {told}" for told in (told_of(rows, line.row), _noise(function, noisy)) if told))
        text.append(f"  {plain(function.path)}", "dim")
    else:
        text.append(f"... {summary(rows, line)}")
    if width is not None:
        text.truncate(width, overflow="ellipsis")
    return text


def _noise(function: Function, noisy: frozenset[Function]) -> str:
    return "noise: differs between runs of one script" if function in noisy else ""


WHATS = {CALL: "call", REPEAT: "repeat", ALIKE: "alike", PATH: "path", CUT: "cut"}


def as_json(compared: Compared, *, most: int = MOST_LINES) -> str:
    """The same for programs: `lines` in preorder, each with its `depth`."""
    rows = compared.rows
    shown = outline(rows, most=most)
    difference = compared.difference
    document = {
        "schema": SCHEMA,
        "reference": compared.reference.role,
        "distance": {"cost": difference.cost, "lower": difference.lower, "exact": difference.exact},
        "warnings": [{"slug": warned.slug, "text": warned.text} for warned in compared.warnings],
        "left_out": shown.hidden,
        "lines": list(_documents(rows, shown)),
    }
    return json.dumps(document, indent=1) + "\n"


def _documents(rows: Rows, shown: Outline) -> Iterator[dict[str, Any]]:
    for line in shown.lines[1:]:
        item: dict[str, Any] = {"what": WHATS[line.what], "depth": line.depth, "times": line.times}
        if line.what == CALL:
            item["sign"] = sign(int(rows.kind[line.row])).strip() or "="
            item["function"] = rows.functions[rows.label[line.row]]._asdict()
            item["note"] = told_of(rows, line.row)
        else:
            item["text"] = summary(rows, line)
        yield {**item, "calls": {"buggy": line.calls[0], "reference": line.calls[1]}, "differences": line.edits}
