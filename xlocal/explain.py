"""Why a function is suspected: its aligned calls, the lines that each run took, and the values, for the terminal."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xlocal.kept import Numbers, SeenCalls, lines_title
from xlocal.question import rerank
from xlocal.ranking.closer import cut, cut_apart
from xlocal.ranking.comparison import Comparison, Localization
from xlocal.ranking.evidence import CallView, FunctionView, RankedSuspect
from xlocal.ranking.observation import observe
from xlocal.ranking.source import FunctionSource, SourceIndex
from xlocal.report import plain, print_wrapped, where
from xlocal.session import RECORDINGS, Session, settled
from xlocal.surroundings import Calls, Surroundings
from xlocal.tracer.errors import SessionError, TraceFormatError, UsageError
from xlocal.tracer.record import Recording

CONTEXT = 2  # lines shown around those that differ
MOST_VALUES = 12  # of one call
WIDTH = 100  # characters of a value
MOST_SOURCE = 30  # lines of a function whose lines were not seen


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything known of one suspect: its place, its source (None when it is not there), its views by reference, each
    with how many calls it is of (None where that is not known).

    Without a view `unseen` says why, and `around` what the calls alone tell, or `missing` why they cannot be read.
    """

    ranked: RankedSuspect
    source: FunctionSource | None
    views: tuple[FunctionView, ...]
    seen: tuple[SeenCalls | None, ...] = ()
    unseen: str = ""
    around: tuple[Surroundings, ...] = ()
    missing: str = field(default="", kw_only=True)


def find_suspect(found: Localization, name: str) -> RankedSuspect:
    """The suspect that `name` means: its qualname, the end of it, or `path::qualname`.

    Raises UsageError that lists the candidates when several fit, or the nearest names when none does.
    """
    fits = [ranked for ranked in found.suspects if _fits(name, ranked)]
    exact = [ranked for ranked in fits if name in (ranked.suspect.function.qualname, str(ranked.suspect.function))]
    chosen = exact or fits
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        names = ", ".join(str(ranked.suspect.function) for ranked in chosen[:6])
        raise UsageError(f"{name}: several functions have this name; name one of {names}")
    known = [ranked.suspect.function.qualname for ranked in found.suspects]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"; did you mean {', '.join(near)}?" if near else "; `xlocal rank` lists the suspects"
    if not known:
        hint = ", for it has none; `xlocal rank` says why"
    raise UsageError(f"{name}: no suspect of this session has this name{hint}")


def _fits(name: str, ranked: RankedSuspect) -> bool:
    function = ranked.suspect.function
    if "::" in name:
        path, _, qualname = name.partition("::")
        return function.qualname == qualname and function.path.endswith(path)
    return function.qualname == name or function.qualname.endswith(f".{name}")


def explain(
    folder: Path,
    name: str,
    *,
    ranker: str = "fused",
    issue: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Explanation:
    """Explain one function of a session; runs nothing. Raises UsageError when no suspect has this name."""
    found = rerank(folder, issue=issue, ranker=ranker)
    ranked = find_suspect(found, name)
    function = ranked.suspect.function
    index = SourceIndex(Session.load(folder).scope)
    source = index.source(function)
    views = tuple(view for view in found.comparison.views if view.function == function)
    if views:
        numbers = Numbers(folder, index)
        return Explanation(ranked, source, views, tuple(numbers.of(function, view.reference) for view in views))
    progress("reading the traces")
    around, missing = _around(folder, ranked, tuple(run.role for run in found.runs), index)
    return Explanation(ranked, source, (), (), why_unseen(ranked, found.comparison), around, missing=missing)


def why_unseen(ranked: RankedSuspect, comparison: Comparison) -> str:
    """Why no lines and values of a suspect without a view are there."""
    here, there = ranked.suspect.calls
    if here and there:
        if not comparison.views:
            if any(warned.slug == "second-pass-failed" for warned in comparison.warnings):
                return "The second pass did not end as the first, so there are no lines and values (see the warnings)."
            return (
                "No call was seen closely: the session was recorded with --no-values, or the calls were in other "
                "threads or processes, which the second pass does not see."
            )
        return "No call of it was seen closely in both runs, so there are no lines and values to set side by side."
    if not here and not there:
        return "No run called it, so there are no lines and values."
    only = "only the buggy run calls it" if here else "the buggy run never calls it"
    return f"Lines and values are seen only of functions that both runs call, and {only}."


def _around(
    folder: Path, ranked: RankedSuspect, roles: tuple[str, ...], index: SourceIndex
) -> tuple[tuple[Surroundings, ...], str]:
    """What the calls of each run tell of a suspect, and why that is missing."""
    if not any(ranked.suspect.calls):
        return (), ""
    wanted = roles if ranked.suspect.calls[1] else roles[:1]
    try:
        with settled(folder):
            scope = Session.load(folder).scope
            seen = [observe(Recording.load(folder / RECORDINGS / role), index, scope) for role in wanted]
    except (SessionError, TraceFormatError) as error:
        return (), str(error)
    told = (Calls(each).of(ranked.suspect.function) for each in seen)
    return tuple(each for each in told if each is not None), ""


def print_explanation(explained: Explanation, console: Console) -> None:
    """Print the reasons, then for each reference the aligned calls and the lines side by side."""
    ranked = explained.ranked
    suspect = ranked.suspect
    head = Text.assemble((suspect.function.qualname, "bold"), "  ", (where(ranked), "cyan"))
    console.print(head, soft_wrap=True)
    print_wrapped(console, _standing(ranked))
    console.print()
    for evidence in suspect.evidence:
        detail = Text.assemble((evidence.kind, "yellow"), f"  {plain(evidence.detail)}")
        print_wrapped(console, detail, indent=2, hanging=2)
    if not suspect.evidence:
        print_wrapped(console, _no_evidence(ranked), indent=2)
    for view, seen in zip(explained.views, explained.seen, strict=True):
        console.print()
        _print_view(view, seen, explained, console)
    if not explained.views:
        console.print()
        _print_calls(explained, console)


def _standing(ranked: RankedSuspect) -> str:
    here, there = ranked.suspect.calls
    return f"rank {ranked.rank}, score {ranked.score:.3f}; calls: {here} in the buggy run, {there} in the reference run"


def _no_evidence(ranked: RankedSuspect) -> str:
    if ranked.suspect.executed:
        return "no evidence was seen: it is listed because the buggy run executes it"
    return "no evidence was seen"


def _print_calls(explained: Explanation, console: Console) -> None:
    """What the calls alone tell of a function whose lines and values were not seen, and its source."""
    print_wrapped(console, explained.unseen)
    for around in explained.around:
        for sentence in around.sentences():
            print_wrapped(console, sentence, indent=2, hanging=2)
    if explained.missing:
        print_wrapped(console, f"Its calls cannot be read: {plain(explained.missing)}", indent=2)
    if explained.source is None:
        return
    console.print()
    console.print(Text("source", "bold"))
    table = _source_table(("line",))
    texts = list(numbered(explained.source))
    for line, text in texts[:MOST_SOURCE]:
        table.add_row(str(line), Text(_printable(text)))
    console.print(table)
    if len(texts) > MOST_SOURCE:
        print_wrapped(console, Text(f"{len(texts) - MOST_SOURCE:,} more lines", "dim"), indent=2)


def _print_view(view: FunctionView, seen: SeenCalls | None, explained: Explanation, console: Console) -> None:
    for bad, good in view.pairs:
        title = f"call {bad.number} of the buggy run, call {good.number} of {view.reference}"
        print_wrapped(console, Text(title, "bold"))
        _print_values(bad, good, console)
        console.print()
    if explained.source is None:
        return
    print_wrapped(console, Text(lines_title(seen, view.reference), "bold"))
    _print_lines(view, explained.source, console)


def _print_values(bad: CallView, good: CallView, console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("")
    table.add_column("buggy", overflow="fold", ratio=1)
    table.add_column("reference", overflow="fold", ratio=1)
    rows = [*_rows("", dict(bad.given), dict(good.given)), *_rows("then ", dict(bad.left), dict(good.left))]
    hidden = {*bad.hidden, *good.hidden}
    rows.sort(key=lambda row: row[1] == row[2] and row[0] not in hidden)
    unsure = {*bad.unsure, *good.unsure}
    for name, here, there in rows[:MOST_VALUES]:
        _add(table, name, here, there, hidden=name in hidden, unsure=name in unsure)
    if len(rows) > MOST_VALUES:
        table.add_row(Text(f"{len(rows) - MOST_VALUES} more", "dim"))
    _add(table, "outcome", _outcome(bad), _outcome(good), hidden="outcome" in hidden, unsure="outcome" in unsure)
    console.print(table)


def _rows(prefix: str, here: Mapping[str, str], there: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Values by name, those that differ first; `self` as a whole only where no attribute of it is shown."""
    names = [name for name in dict.fromkeys((*here, *there)) if name != "self" or not any("self." in n for n in here)]
    rows = [(prefix + name, here.get(name, "unset"), there.get(name, "unset")) for name in names]
    return sorted(rows, key=lambda row: row[1] == row[2])


def _add(table: Table, name: str, here: str, there: str, *, hidden: bool, unsure: bool) -> None:
    """One value of both runs; `hidden`: it differs although its text, as far as that is kept, is the same; `unsure`: it
    was not looked at whole."""
    if here != there:
        here, there = cut_apart(plain(here), plain(there), WIDTH)
        table.add_row(Text(name, "cyan"), Text(here, "red"), Text(there, "green"))
        return
    alike = Text("same as far as seen" if unsure else "same", "dim")
    told = Text("differs beyond what is shown", "green") if hidden else alike
    table.add_row(Text(name, "cyan"), Text(cut(plain(here), WIDTH), "red" if hidden else ""), told)


def _outcome(call: CallView) -> str:
    return f"raised {call.raised.rpartition('.')[2]}" if call.raised else f"returned {call.returned}"


def _print_lines(view: FunctionView, source: FunctionSource, console: Console) -> None:
    """The function's source with how often each run took each line; only the neighbourhood of differences."""
    here, there = (dict(counted) for counted in view.lines)
    texts = dict(numbered(source))
    differing = {line for line in texts if here.get(line, 0) != there.get(line, 0)}
    if not differing:
        console.print("  the same lines, as often, in both runs")
        return
    taken_apart = {line for line in differing if not here.get(line) or not there.get(line)}
    wanted = {near for line in (taken_apart or differing) for near in range(line - CONTEXT, line + CONTEXT + 1)}
    table = _source_table(("line", "buggy", "reference"))
    previous = None
    for line in sorted(wanted & texts.keys()):
        if previous is not None and line != previous + 1:
            table.add_row("", "", "", Text("...", "dim"))
        previous = line
        style = _style(here.get(line, 0), there.get(line, 0))
        counts = (str(side[line]) if line in side else "." for side in (here, there))
        table.add_row(str(line), *counts, Text(_printable(texts[line]), style))
    console.print(table)


def _source_table(numbers: tuple[str, ...]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    return table


def _style(here: int, there: int) -> str:
    if here == there:
        return ""
    return "red" if not there else "green" if not here else "yellow"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text.expandtabs(4))


def numbered(source: FunctionSource) -> Iterator[tuple[int, str]]:
    """The function's lines with their numbers in the file."""
    lines: Sequence[str] = source.text.splitlines()
    at = 0
    for start, end in source.ranges:
        for line in range(start, end + 1):
            if at < len(lines):
                yield line, lines[at]
                at += 1
