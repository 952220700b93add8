"""A localization in SARIF 2.1.0, the format of code scanning: one rule for each kind of evidence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple
from urllib.parse import quote

from xlocal.ranking.comparison import Localization
from xlocal.ranking.evidence import Evidence, FunctionView, RankedSuspect
from xlocal.ranking.signals import times
from xlocal.report import all_warnings, distance, outcome, plain, reason, where
from xlocal.tracer import layout
from xlocal.tracer.calltree import Function
from xlocal.tracer.scope import Scope

SARIF_VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
SOURCE, PACKAGES = "SRCROOT", "PACKAGES"
WARNED = 3  # suspects with the level `warning`; the others are notes
MOST_SPANS = 5  # of differing lines, for one suspect
MOST_CALLEES = 3
UNSEEN = "no-difference"

# What was seen, as docs/how_it_works.md tells the kinds.
KINDS = {
    "deleted": "A call of the function has no counterpart in the reference run",
    "inserted": "A call of the function happens only in the reference run",
    "moved": "A call of the function happens elsewhere in the other run",
    "parent-of-deleted": "It makes a call that it does not make in the reference run",
    "parent-of-inserted": "It leaves out a call that it makes in the reference run",
    "only-buggy": "It ran in the buggy run alone",
    "only-reference": "It ran in a reference run alone",
    "count": "It was called more or fewer times than in the reference run",
    "line": "Matching calls took other lines",
    "line-count": "Matching calls took the same lines more or fewer times",
    "origin": "Given the same, it came out otherwise",
    "absorber": "Given something else, it came out the same",
    "carrier": "It differs in what it is given and in what comes out",
    "writer": "It set a value that differs where the runs part",
    "argument": "It was given other arguments",
    "return": "It returned something else",
    "exit-state": "It left its object in another state",
    "exception": "An exception left it in the buggy run alone",
    "traceback": "It stands in the final traceback of the buggy run",
    "override": "It did not run, but overrides a method that differs, or is overridden by one",
    "class-data": "It sets class-level data that is read where the runs part",
    "named-in-issue": "The issue names it",
    "changed": "Its code differs between the two revisions",
    "spectrum": "It runs in failing tests more than in passing ones",
    UNSEEN: "It runs in the buggy run, and no evidence was seen",
}


def as_sarif(found: Localization, scope: Scope, *, top: int) -> str:
    """The first `top` suspects as one SARIF log with a final newline.

    Paths are relative: to the project's root (base `SRCROOT`), or for an installed package to the folder that holds it
    (base `PACKAGES`).
    """
    log = {"$schema": SCHEMA, "version": SARIF_VERSION, "runs": [_run(found, scope, found.suspects[:top])]}
    return json.dumps(log, indent=2) + "\n"


def _run(found: Localization, scope: Scope, suspects: Sequence[RankedSuspect]) -> dict[str, Any]:
    rules = list(dict.fromkeys(strongest(ranked).kind for ranked in suspects))
    warnings = all_warnings(found)
    slugs = list(dict.fromkeys(warned.slug for warned in warnings))
    results = _Results(found, scope, rules)
    return {
        "tool": {
            "driver": {
                "name": "xlocal",
                "version": version("xlocal"),
                "rules": [_rule(kind) for kind in rules],
                "notifications": [{"id": slug} for slug in slugs],
            }
        },
        "automationDetails": {"id": "xlocal/"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {
            SOURCE: {"description": {"text": "The root of the project"}},
            PACKAGES: {"description": {"text": "The folder that holds the installed package"}},
        },
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {
                        "descriptor": {"id": warned.slug, "index": slugs.index(warned.slug)},
                        "level": "warning",
                        "message": {"text": plain(warned.text)},
                    }
                    for warned in warnings
                ],
            }
        ],
        "results": [results.one(ranked) for ranked in suspects],
        "properties": {
            "distance": distance(found.comparison),
            "ranker": found.ranker,
            "scripts": [f"{run.role}: {plain(run.command)} ({outcome(run)})" for run in found.runs],
        },
    }


def _rule(kind: str) -> dict[str, Any]:
    text = KINDS.get(kind, f"Evidence of the kind {kind}")
    return {
        "id": kind,
        "name": "".join(word.capitalize() for word in kind.split("-")),
        "shortDescription": {"text": f"{text}."},
        "fullDescription": {
            "text": f"{text}. xlocal compared a run that shows a bug with one that does not; the evidence orders the "
            "functions by suspicion and does not prove that one is wrong."
        },
        "defaultConfiguration": {"level": "note"},
        "properties": {"tags": ["fault-localization"]},
    }


def strongest(ranked: RankedSuspect) -> Evidence:
    """The heaviest evidence of a suspect, or one that says that there is none."""
    return max(ranked.suspect.evidence, key=lambda item: item.weight, default=Evidence(UNSEEN, 0.0, ""))


def base_of(function: Function, scope: Scope) -> str:
    """Which folder the path of a function is relative to: SRCROOT, or PACKAGES for an installed package."""
    for root in scope.roots:
        inside = layout.inside(f"{root.base}/{function.path}", root.directory)
        if inside is not None:
            return SOURCE if layout.installation(root.directory) is None else PACKAGES
    return SOURCE


class _Results:
    """Turns suspects into results."""

    def __init__(self, found: Localization, scope: Scope, rules: Sequence[str]) -> None:
        self._found = found
        self._scope = scope
        self._rules = rules
        self._highest = max((ranked.score for ranked in found.suspects), default=0.0)
        self._suspects = {ranked.suspect.function: ranked for ranked in found.suspects}
        self._views: Mapping[Function, FunctionView] = {
            view.function: view for view in reversed(found.comparison.views)
        }

    def one(self, ranked: RankedSuspect) -> dict[str, Any]:
        suspect, kind = ranked.suspect, strongest(ranked).kind
        name = plain(suspect.function.qualname)
        details = [reason(ranked, issue=self._found.issue, ranker=self._found.ranker)]
        details += [f"{plain(item.detail)}." for item in suspect.evidence if item != strongest(ranked)]
        result = {
            "ruleId": kind,
            "ruleIndex": self._rules.index(kind),
            "level": "warning" if ranked.rank <= WARNED and suspect.evidence else "note",
            "message": {"text": f"Suspect {ranked.rank}, {name}: {details[0]}"},
            "locations": [self._location(ranked)],
            "partialFingerprints": {"function/v1": _fingerprint(suspect.function, kind)},
            "properties": {"place": ranked.rank, "score": round(ranked.score, 6), "evidence": details},
        }
        related = [{"id": number, **place} for number, place in enumerate(self._related(ranked), 1)]
        if related:
            result["relatedLocations"] = related
        if self._highest > 0:
            result["rank"] = round(100 * max(ranked.score, 0.0) / self._highest, 2)
        return result

    def _location(self, ranked: RankedSuspect) -> dict[str, Any]:
        function = ranked.suspect.function
        place: dict[str, Any] = {"artifactLocation": self._artifact(function)}
        if ranked.suspect.line:
            place["region"] = {"startLine": ranked.suspect.line, "endLine": ranked.suspect.end_line}
        name = plain(function.qualname)
        logical = {"fullyQualifiedName": name, "name": name.rpartition(".")[2], "kind": "function"}
        return {"physicalLocation": place, "logicalLocations": [logical]}

    def _artifact(self, function: Function) -> dict[str, str]:
        path = function.path.encode("utf-8", "surrogatepass")
        return {"uri": quote(path), "uriBaseId": base_of(function, self._scope)}

    def _related(self, ranked: RankedSuspect) -> Iterator[dict[str, Any]]:
        """The lines that differ between the runs, then the suspects that the function calls."""
        suspect = ranked.suspect
        for span in differing_lines(self._views.get(suspect.function))[:MOST_SPANS]:
            text = f"ran {times(span.here)} in the buggy run, {times(span.there)} in the reference run"
            region = {"startLine": span.first, "endLine": span.last}
            place = {"artifactLocation": self._artifact(suspect.function), "region": region}
            yield {"physicalLocation": place, "message": {"text": text}}
        called = [self._suspects[callee] for callee in suspect.callees if callee in self._suspects]
        called = [
            callee for callee in called if callee.suspect.evidence and callee.suspect.function != suspect.function
        ]
        for callee in sorted(called, key=lambda callee: callee.rank)[:MOST_CALLEES]:
            text = f"calls suspect {callee.rank}, {plain(callee.suspect.function.qualname)} ({where(callee)})"
            yield {**self._location(callee), "message": {"text": text}}


class Span(NamedTuple):
    """Consecutive lines that ran `here` times in the buggy run and `there` times in the reference run."""

    first: int
    last: int
    here: int
    there: int


def differing_lines(view: FunctionView | None) -> list[Span]:
    """The lines that the runs took unlike often, those of one run alone first."""
    if view is None:
        return []
    here, there = (dict(counted) for counted in view.lines)
    spans: list[Span] = []
    for line in sorted({*here, *there}):
        counts = (here.get(line, 0), there.get(line, 0))
        if counts[0] == counts[1]:
            continue
        if spans and spans[-1].last == line - 1 and spans[-1][2:] == counts:
            spans[-1] = spans[-1]._replace(last=line)
        else:
            spans.append(Span(line, line, *counts))
    return sorted(spans, key=lambda span: (bool(span.here and span.there), span.first))


def _fingerprint(function: Function, kind: str) -> str:
    """The same in the next run while the function and what is held against it stay the same."""
    text = f"{function.path}\0{function.qualname}\0{kind}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
