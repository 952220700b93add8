"""The HTML report: one self-contained file that shows a localization, its two trees, and the source of the suspects."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from xlocal.aligned import SAME, Rows, align
from xlocal.diff_view import Compared, ending, functions_inside, heading, read_again
from xlocal.explain import numbered, why_unseen
from xlocal.flame import flame
from xlocal.kept import Numbers, lines_title
from xlocal.outline import ALIKE, CALL, Line, outline
from xlocal.ranking.comparison import Localization, RunSummary
from xlocal.ranking.evidence import CallView, FunctionView, RankedSuspect
from xlocal.ranking.source import SourceIndex
from xlocal.report import all_warnings, distance, outcome, plain, reason, where
from xlocal.session import Session
from xlocal.surroundings import Calls
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import SessionError, TraceFormatError, Warned

MOST_LINES = 40_000  # of the trees, over all references
MOST_SUSPECTS = 2_000  # listed
MOST_DETAILED = 150  # with source and values
MOST_SOURCE = 1_500_000  # characters of source text
MOST_TEXT = 400  # characters of one value
BOUND = "The difference is a bound, so more calls may be counted as differing than need be."
NAMED = 4  # functions of a summary that are named

Document = dict[str, Any]


def make_report(
    folder: Path,
    found: Localization,
    *,
    budget: float,
    insist: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    warn: Callable[[Warned], None] = lambda warned: None,
) -> str:
    """The page for a session and its localization; runs nothing.

    `budget` is in seconds for each reference, where the session keeps no difference, or, if you `insist`, a bound found
    with a smaller one. Where the recordings are missing or damaged the page has no trees and says why. `warn` is given
    what reading the recordings left in doubt.
    """
    roles = tuple(run.role for run in found.runs[1:])
    session = Session.load(folder)
    doubts: tuple[Warned, ...]
    try:
        compared = read_again(folder, roles, budget=budget, insist=insist, progress=progress)
        doubts = tuple(dict.fromkeys(warned for each in compared for warned in each.warnings))
    except (SessionError, TraceFormatError) as error:
        compared = ()
        doubts = (Warned("recordings-unread", f"the report shows no trees: {error}"),)
    for warned in doubts:
        warn(warned)
    progress("writing the page")
    index = SourceIndex(session.scope)
    return page(document(found, index, compared, doubts=doubts, numbers=Numbers(folder, index)))


def document(
    found: Localization,
    index: SourceIndex,
    compared: Sequence[Compared],
    *,
    doubts: Iterable[Warned] = (),
    numbers: Numbers | None = None,
) -> Document:
    """All that the page shows, as plain values for JSON. `doubts` are warnings beside those of `found`; `numbers` knows
    how many calls were seen closely."""
    functions = _Numbers()
    suspects, left_out = _suspects(found, index, functions, numbers, _calls(compared))
    trees = [_tree(each, functions, most=MOST_LINES // max(len(compared), 1)) for each in compared]
    return {
        "version": version("xlocal"),
        "ranker": found.ranker,
        "issue": found.issue,
        "distance": distance(found.comparison),
        "runs": [_run(run) for run in found.runs],
        "warnings": [[warned.slug, plain(warned.text)] for warned in dict.fromkeys((*all_warnings(found), *doubts))],
        "suspects": suspects,
        "trees": trees,
        "noise": [[role, names] for role, names in _noise(compared).items() if names],
        "limits": [*left_out, *(limit for tree in trees for limit in tree["limits"])],
        "functions": [[function.path, function.qualname] for function in functions.known],
    }


class _Numbers:
    """Numbers for functions, so that each is written once."""

    def __init__(self) -> None:
        self.known: dict[Function, int] = {}

    def of(self, function: Function) -> int:
        return self.known.setdefault(function, len(self.known))


def _run(run: RunSummary) -> Document:
    return {
        "role": run.role,
        "command": plain(run.command),
        "ended": outcome(run),
        "failed": bool(run.exception or run.exit_status),
        "calls": run.calls,
        "functions": run.functions,
        "seconds": round(run.seconds, 2),
        "repeats": run.repeats,
        "identical": run.identical_repeats,
    }


def _noise(compared: Iterable[Compared]) -> dict[str, list[str]]:
    """For each script the functions whose calls differ from run to run."""
    noise: dict[str, list[str]] = {}
    for each in compared:
        for observation in (each.buggy, each.reference):
            noise[observation.role] = [str(function) for function in sorted(observation.noisy)]
    return noise


def _calls(compared: Sequence[Compared]) -> list[Calls]:
    """What the calls of each run tell, the buggy run first."""
    return [Calls(seen) for seen in (*(each.buggy for each in compared[:1]), *(each.reference for each in compared))]


def _suspects(
    found: Localization,
    index: SourceIndex,
    functions: _Numbers,
    numbers: Numbers | None,
    calls: Sequence[Calls],
) -> tuple[list[Document], list[str]]:
    """The suspects, the first of them with source and values, and what had to be left out."""
    views: dict[Function, list[FunctionView]] = {}
    for view in found.comparison.views:
        views.setdefault(view.function, []).append(view)
    shown: list[Document] = []
    limits: list[str] = []
    room = MOST_SOURCE
    for ranked in found.suspects[:MOST_SUSPECTS]:
        item = _suspect(ranked, functions, found)
        if len(shown) < MOST_DETAILED and room > 0:
            item["lines"] = _source(ranked, index)
            item["views"] = [_view(view, numbers) for view in views.get(ranked.suspect.function, ())]
            if not item["views"]:
                item["unseen"] = why_unseen(ranked, found.comparison)
                item["around"] = _around(ranked.suspect.function, calls)
            room -= sum(len(text) for _, text in item["lines"])
        shown.append(item)
    if hidden := len(found.suspects) - len(shown):
        limits.append(f"{hidden:,} suspects of low rank are left out; xlocal rank --top lists them.")
    if any("lines" not in item for item in shown):
        detailed = sum("lines" in item for item in shown)
        limits.append(f"Source and values are here for the first {detailed:,} suspects; xlocal explain shows the rest.")
    return shown, limits


def _suspect(ranked: RankedSuspect, functions: _Numbers, found: Localization) -> Document:
    suspect = ranked.suspect
    strongest = sorted(suspect.evidence, key=lambda item: (-item.weight, item.kind))
    return {
        "rank": ranked.rank,
        "score": round(ranked.score, 4),
        "function": functions.of(suspect.function),
        "where": where(ranked),
        "calls": suspect.calls,
        "executed": suspect.executed,
        "reason": reason(ranked, issue=found.issue, ranker=found.ranker),
        "evidence": [[item.kind, item.weight, plain(item.detail)] for item in strongest],
    }


def _source(ranked: RankedSuspect, index: SourceIndex) -> list[tuple[int, str]]:
    source = index.source(ranked.suspect.function)
    return [(line, _cut(text.expandtabs(4))) for line, text in numbered(source)] if source else []


def _around(function: Function, calls: Iterable[Calls]) -> list[list[str]]:
    """For each run that calls a function what its calls tell, in sentences."""
    found = (each.of(function) for each in calls)
    return [list(each.sentences()) for each in found if each is not None]


def _view(view: FunctionView, numbers: Numbers | None) -> Document:
    bad, good = view.lines
    seen = numbers.of(view.function, view.reference) if numbers else None
    return {
        "reference": view.reference,
        "title": lines_title(seen, view.reference),
        "lines": [bad, good],
        "pairs": [[_call(one), _call(other)] for one, other in view.pairs],
    }


def _call(call: CallView) -> Document:
    return {
        "number": call.number,
        "given": _short(call.given),
        "left": _short(call.left),
        "hidden": call.hidden,
        "unsure": call.unsure,
        "outcome": f"raised {plain(call.raised)}" if call.raised else f"returned {_cut(plain(call.returned))}",
    }


def _short(named: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(plain(name), _cut(plain(value))) for name, value in named]


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "..."


def _tree(compared: Compared, functions: _Numbers, *, most: int) -> Document:
    """One pair of trees: the lines as columns, and the frames of the flame view."""
    rows = align(compared.difference)
    shown = outline(rows, most=most, alike=True)
    lines = shown.lines
    texts = _Texts()
    numbers = [functions.of(function) for function in rows.functions]
    noisy = {numbers[place] for place, function in enumerate(rows.functions) if function in compared.noisy}
    return {
        "reference": compared.reference.role,
        "heading": heading(compared, rows),
        "whole": shown.whole,
        "what": [line.what for line in lines],
        "depth": [line.depth for line in lines],
        "kind": [int(rows.kind[line.row]) if line.what == CALL else SAME for line in lines],
        "function": [_function_of(rows, line.what, line.row, numbers) for line in lines],
        "times": [line.times for line in lines],
        "buggy": [line.calls[0] for line in lines],
        "reference_calls": [line.calls[1] for line in lines],
        "edits": [line.edits for line in lines],
        "told": [texts.of(_told(rows, line)) for line in lines],
        "told_there": [texts.of(ending(rows, line.row, there=True) if line.what == CALL else "") for line in lines],
        "texts": list(texts.known),
        "noisy": sorted(noisy),
        "flame": _flame(compared, rows, numbers),
        "limits": _limits(compared, shown.whole, shown.hidden),
    }


class _Texts:
    """Numbers for texts; 0 is the empty one."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"": 0}

    def of(self, text: str) -> int:
        return self.known.setdefault(text, len(self.known))


def _function_of(rows: Rows, what: int, row: int, numbers: Sequence[int]) -> int:
    label = int(rows.label[row])
    return numbers[label] if what == CALL and label >= 0 else -1


def _told(rows: Rows, line: Line) -> str:
    """How a call ended in the buggy run, or which functions a run of equal calls holds."""
    if line.what == CALL:
        return ending(rows, line.row)
    if line.what != ALIKE:
        return ""
    counted = functions_inside(rows, line)
    named = ", ".join(plain(function.qualname) for function, _ in counted.most_common(NAMED))
    return named + (f" and {len(counted) - NAMED} more" if len(counted) > NAMED else "")


def _flame(compared: Compared, rows: Rows, numbers: Sequence[int]) -> Document:
    frames = flame(compared.difference, rows)
    return {
        "doubt": "" if compared.difference.exact else BOUND,
        "parent": frames.parent.tolist(),
        "function": [numbers[label] if label >= 0 else -1 for label in frames.label.tolist()],
        "buggy": frames.buggy.tolist(),
        "reference": frames.reference.tolist(),
        "width": frames.width.tolist(),
        "edits": frames.edits.tolist(),
        "left_out": frames.left_out,
    }


def _limits(compared: Compared, whole: bool, hidden: int) -> list[str]:
    role, difference = compared.reference.role, compared.difference
    limits = []
    if not difference.exact:
        limits.append(
            f"The difference to {role} is a bound: {difference.cost:,} edits are shown, "
            f"at least {difference.lower:,} are needed."
        )
    if not whole:
        limits.append(f"Calls alike in the buggy run and {role} are only counted: there are too many to list.")
    if hidden:
        limits.append(f"{hidden:,} differences to {role} did not fit; their places say how many are missing.")
    return limits


def page(shown: Mapping[str, Any]) -> str:
    """The page around a document. It loads nothing, and its policy lets no script run but its own."""
    parts = files("xlocal").joinpath("report_template")
    style, script = (parts.joinpath(name).read_text("utf-8") for name in ("report.css", "report.js"))
    template = Template(parts.joinpath("report.html").read_text("utf-8"))
    buggy = shown["runs"][0]["command"] if shown["runs"] else ""
    return template.substitute(
        title=html.escape(f"xlocal: {buggy}" if buggy else "xlocal"),
        style_hash=_digest(style),
        script_hash=_digest(script),
        style=style,
        script=script,
        data=_inert(shown),
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _inert(value: Any) -> str:
    """JSON that no HTML parser takes for markup: escaped to ASCII, and without angle brackets or ampersands."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
