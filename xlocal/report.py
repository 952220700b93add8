"""A localization as text for a terminal, as JSON (schema version 1) and as markdown."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
from collections.abc import Iterable, Iterator
from typing import IO, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xlocal.doctor import Check
from xlocal.ranking.comparison import Comparison, Localization, RunSummary
from xlocal.ranking.evidence import Evidence, RankedSuspect
from xlocal.tracer.errors import Warned

SCHEMA = 1
# Below this width a table's columns would fold into slivers; a list reads better.
TABLE_WIDTH = 88
PIPE_WIDTH = 120
CHANGED = "changed"  # the kind of evidence that `xlocal trace --between` adds
_UNPRINTABLE = re.compile(r" *\n[ \n]*")
# What the columns beside commands, or names and places, need: those are never folded, so that they can be searched for
# and clicked.
OTHER_COLUMNS = 50


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The command line answers for a reader that went away; rich would end it as if nothing had been found."""
        raise  # noqa: PLE0704 - called where BrokenPipeError is handled


def make_console(file: IO[str]) -> Console:
    """A console for `file` that obeys NO_COLOR and COLUMNS; a pipe gets 120 columns and no colour."""
    fixed = not file.isatty() and "COLUMNS" not in os.environ
    return _Console(file=file, width=PIPE_WIDTH if fixed else None, highlight=False, markup=False, emoji=False)


def as_json(found: Localization, *, top: int) -> str:
    """Schema version 1, indented, with a final newline; the first `top` suspects."""
    document = {
        "schema": SCHEMA,
        "ranker": found.ranker,
        "issue": found.issue,
        "runs": [dataclasses.asdict(run) for run in found.runs],
        "warnings": [dataclasses.asdict(warned) for warned in all_warnings(found)],
        "suspects": [_suspect(ranked) for ranked in found.suspects[:top]],
    }
    return json.dumps(document, indent=2) + "\n"


def _suspect(ranked: RankedSuspect) -> dict[str, Any]:
    suspect = ranked.suspect
    return {
        "rank": ranked.rank,
        "score": round(ranked.score, 6),
        "function": {**suspect.function._asdict(), "line": suspect.line, "end_line": suspect.end_line},
        "evidence": [dataclasses.asdict(evidence) for evidence in suspect.evidence],
    }


def all_warnings(found: Localization) -> tuple[Warned, ...]:
    """The warnings, and when nothing was found the reason for that as the last one (slug `nothing-found`)."""
    if found.suspects:
        return found.warnings
    return (*found.warnings, Warned("nothing-found", why_nothing(found)))


def why_nothing(found: Localization) -> str:
    """What was compared and why nothing could be seen, in a few sentences."""
    compared = " with ".join(f"{run.command!r} ({_counts(run)})" for run in found.runs)
    reason = found.comparison.blindness or f"the ranker {found.ranker} finds no candidate in what differs"
    return f"Compared {compared}. {_sentence(plain(reason))}"


def as_markdown(found: Localization, *, top: int) -> str:
    """A report to paste into an issue: runs, distance, suspects with all their evidence, warnings."""
    lines = ["# Suspects" if found.suspects else "# No suspects", "", *_markdown_runs(found.runs), ""]
    lines += [_distances(found), ""]
    for ranked in found.suspects[:top]:
        suspect = ranked.suspect
        score = f"{ranked.score:.3f}{', changed' if is_changed(ranked) else ''}"
        lines.append(f"{ranked.rank}. {_code(suspect.function.qualname)} in {_code(where(ranked))}, {score}")
        lines += [f"   - {_escape(_sentence(item.detail))}" for item in _strongest_first(ranked)]
        lines += [] if suspect.evidence else [f"   - {_escape(reason(ranked, issue=found.issue, ranker=found.ranker))}"]
    warnings = all_warnings(found)
    if warnings:
        lines += ["", "## Warnings", ""]
        lines += [f"- {_code(warned.slug)}: {_escape(warned.text)}" for warned in warnings]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_runs(runs: tuple[RunSummary, ...]) -> Iterator[str]:
    yield "| run | command | ended | calls | functions |"
    yield "|---|---|---|---:|---:|"
    for run in runs:
        ended = _escape(outcome(run)).replace("|", "\\|")
        yield f"| {run.role} | {_code(run.command, in_table=True)} | {ended} | {run.calls:,} | {run.functions:,} |"


def _code(text: str, *, in_table: bool = False) -> str:
    text = plain(text)
    fence = "``" if "`" in text else "`"
    padded = f" {text} " if fence == "``" else text
    return f"{fence}{padded.replace('|', chr(92) + '|') if in_table else padded}{fence}"


def _escape(text: str) -> str:
    """Keep names such as `__init__` and `<module>` from being read as markup."""
    return "".join(f"\\{char}" if char in "\\`*_<[#" else char for char in plain(text))


def print_text(found: Localization, console: Console, *, top: int, next_steps: tuple[str, ...] = ()) -> None:
    """Print runs, distance, suspects with one reason each, warnings, and what to type next."""
    wide = console.width >= TABLE_WIDTH
    whole = wide and _widest(plain(run.command) for run in found.runs) <= console.width - OTHER_COLUMNS
    (_print_runs_table if whole else _print_runs_list)(console, found.runs)
    console.print()
    print_wrapped(console, _distances(found))
    console.print()
    if found.suspects:
        _print_suspects(console, found, top=top)
    else:
        print_wrapped(console, Text(f"No suspects. {why_nothing(found)}", "bold"))
    for warned in found.warnings:
        console.print()
        print_wrapped(console, Text.assemble((f"warning: {warned.slug}: ", "yellow"), plain(warned.text)))
    _print_next(console, next_steps)


def print_demo(
    found: Localization, console: Console, *, explanation: tuple[str, ...], next_steps: tuple[str, ...]
) -> None:
    """Print the first suspects, then the explanation, then what to type next."""
    print_text(found, console, top=5)
    console.print()
    print_wrapped(console, Text("What this shows", "bold"))
    for sentence in explanation:
        print_wrapped(console, sentence, indent=2)
    _print_next(console, next_steps)


def print_checks(checks: tuple[Check, ...], console: Console) -> None:
    """Print what `xlocal doctor` found, by area, and what to install for what is missing."""
    for area in dict.fromkeys(check.area for check in checks):
        print_wrapped(console, Text(area, "bold"))
        for check in (check for check in checks if check.area == area):
            mark = ("yes ", "green") if check.works else ("no  ", "yellow")
            print_wrapped(console, Text.assemble(mark, f"{check.name}: {plain(check.detail)}"), indent=2)
            if not check.works and check.install:
                print_wrapped(console, f"to get it: {check.install}", indent=6)


def print_wrapped(console: Console, text: Text | str, *, indent: int = 0, hanging: int = 0) -> None:
    """Print text wrapped at spaces, every line indented, those after the first by `hanging` more, without spaces at the
    end of lines."""
    text = Text(text) if isinstance(text, str) else text
    room = max(console.width - indent - hanging, 1)
    for place, line in enumerate(text.wrap(console, room, overflow="fold")):
        line.rstrip()
        console.print(Text(" " * (indent + (hanging if place else 0))).append_text(line), soft_wrap=True)


def _print_next(console: Console, steps: tuple[str, ...]) -> None:
    if steps:
        console.print()
        print_wrapped(console, Text("Next", "bold"))
    for step in steps:
        print_wrapped(console, step, indent=2)


def _print_runs_table(console: Console, runs: tuple[RunSummary, ...]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for run in runs:
        table.add_row(run.role, Text(plain(run.command)), _outcome(run), _counts(run))
    console.print(table)


def _print_runs_list(console: Console, runs: tuple[RunSummary, ...]) -> None:
    for run in runs:
        console.print(Text.assemble((run.role, "bold"), f": {plain(run.command)}"), soft_wrap=True)
        print_wrapped(console, _outcome(run), indent=2)
        print_wrapped(console, _counts(run), indent=2)


def _outcome(run: RunSummary) -> Text:
    return Text(outcome(run), "red" if run.exception or run.exit_status != 0 else "green")


def outcome(run: RunSummary) -> str:
    """How a run ended, such as `exit 1, NotFound: 404 Not Found`."""
    if run.exit_status is None:
        ended = "no exit status"
    elif run.exit_status < 0:
        ended = f"killed by {_signal_name(-run.exit_status)}"
    else:
        ended = f"exit {run.exit_status}"
    if run.exception is None:
        return ended
    message = f": {_cut(plain(run.message), 160)}" if run.message else ""
    return f"{ended}, {short_name(run.exception)}{message}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def short_name(exception: str) -> str:
    """The type of an exception without its module."""
    return plain(exception).rpartition(".")[2]


def _counts(run: RunSummary) -> str:
    return f"{_number(run.calls, 'call')}, {_number(run.functions, 'function')}"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def distance(comparison: Comparison) -> str:
    """How far the call trees are apart, in one sentence."""
    several = len(comparison.runs) > 2
    trees = "The call trees of the buggy run and the nearest reference" if several else "The call trees"
    if comparison.exact and comparison.cost == 0:
        return f"{trees} are equal."
    if comparison.exact:
        return f"{trees} differ by {_number(comparison.cost, 'edit')} (exact)."
    return f"{trees} differ by {comparison.lower:,} to {_number(comparison.cost, 'edit')} (a bound, not exact)."


def _distances(found: Localization) -> str:
    return " ".join(filter(None, (distance(found.comparison), revealed(found.runs))))


def revealed(runs: tuple[RunSummary, ...]) -> str:
    """What each of several references shows, in one sentence; '' with one reference."""
    told = [run for run in runs if run.differing is not None]
    if len(told) < 2:
        return ""
    shown = [f"{run.role} {_number(run.differing or 0, 'function')} ({run.alone or 0:,} there alone)" for run in told]
    return f"Functions that differ: beside {', beside '.join(shown)}."


def _widest(texts: Iterable[str]) -> int:
    return max((cell_len(text) for text in texts), default=0)


def _print_suspects(console: Console, found: Localization, *, top: int) -> None:
    shown = found.suspects[:top]
    needed = _widest(ranked.suspect.function.qualname for ranked in shown) + _widest(map(where, shown)) + OTHER_COLUMNS
    wide = console.width >= max(TABLE_WIDTH, needed)
    (_print_suspects_table if wide else _print_suspects_list)(console, shown, found)
    if hidden := len(found.suspects) - len(shown):
        print_wrapped(
            console, Text(f"{_number(hidden, 'more function')} not shown (--top {len(found.suspects)})", "dim")
        )


def _print_suspects_table(console: Console, shown: tuple[RankedSuspect, ...], found: Localization) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("function", no_wrap=True)
    table.add_column("where", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=1)
    table.add_column("score", justify="right", no_wrap=True)
    for ranked in shown:
        table.add_row(
            str(ranked.rank),
            Text(ranked.suspect.function.qualname, "bold" if ranked.rank == 1 else ""),
            Text(where(ranked), "cyan"),
            Text(_why(ranked, found)),
            f"{ranked.score:.3f}",
        )
    console.print(table)


def _print_suspects_list(console: Console, shown: tuple[RankedSuspect, ...], found: Localization) -> None:
    for ranked in shown:
        name = (ranked.suspect.function.qualname, "bold")
        console.print(Text.assemble(f"{ranked.rank}. ", name, f"  {ranked.score:.3f}"), soft_wrap=True)
        console.print(Text.assemble("   ", (where(ranked), "cyan")), soft_wrap=True)
        print_wrapped(console, _why(ranked, found), indent=3)


def _why(ranked: RankedSuspect, found: Localization) -> str:
    """The reason, and whatever it is, that the function was changed between the two revisions."""
    return " ".join(filter(None, (reason(ranked, issue=found.issue, ranker=found.ranker), _change(ranked))))


def _change(ranked: RankedSuspect) -> str:
    """What the commits between two revisions did to a function, '' where that is its reason already, or nothing."""
    _, *others = _strongest_first(ranked) or (None,)
    return next((_sentence(plain(item.detail)) for item in others if item.kind == CHANGED), "")


def is_changed(ranked: RankedSuspect) -> bool:
    """Whether the commits between two revisions changed the function (`xlocal trace --between`)."""
    return any(item.kind == CHANGED for item in ranked.suspect.evidence)


def where(ranked: RankedSuspect) -> str:
    """`path:line`, or the path alone when the source is not there."""
    suspect = ranked.suspect
    path = plain(suspect.function.path)
    return f"{path}:{suspect.line}" if suspect.line else path


def reason(ranked: RankedSuspect, *, issue: str | None, ranker: str = "fused") -> str:
    """One plain sentence: the strongest evidence, or why the function is listed without any."""
    suspect = ranked.suspect
    for evidence in _strongest_first(ranked):
        return _sentence(plain(evidence.detail))
    if not suspect.executed:
        return "Did not run in the buggy run."
    if ranker == "commits":
        return f"Changed {_times(round(ranked.score))} in the year before; no evidence was seen."
    if ranker == "proximity":
        return "Placed by nearness in the call tree and to what the issue names; no evidence was seen."
    if issue is not None and ranked.score > 0:
        return "Listed for its likeness to the issue text; no evidence was seen."
    return f"Runs {_times(suspect.calls[0])} in the buggy run; no evidence was seen."


def _strongest_first(ranked: RankedSuspect) -> list[Evidence]:
    return sorted(ranked.suspect.evidence, key=lambda evidence: -evidence.weight)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _sentence(clause: str) -> str:
    clause = clause.strip()
    return clause[:1].upper() + clause[1:] + ("" if clause.endswith((".", "!", "?")) else ".")


def plain(text: str) -> str:
    """`text` on one line without control characters: messages come from the observed program. Spaces in a row stay."""
    return _UNPRINTABLE.sub(" ", "".join(char if char.isprintable() else "\n" for char in text)).strip()


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 3] + "..."
