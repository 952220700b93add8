"""The composition: recordings -> call trees -> differences -> evidence -> suspects -> ranked suspects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from xlocal.ranking.closer import Chosen, choose, chosen_calls, unsteady, value_findings
from xlocal.ranking.comparison import Comparison, Localization, RunSummary
from xlocal.ranking.diff import TreeDiff, diff
from xlocal.ranking.doubts import blindness, run_doubts
from xlocal.ranking.evidence import Evidence, FunctionView, Suspect
from xlocal.ranking.observation import Observation, namer, observe
from xlocal.ranking.rank import Context, get_ranker
from xlocal.ranking.relatives import KINDS as RELATIVE_KINDS
from xlocal.ranking.relatives import relatives
from xlocal.ranking.signals import Finding, Findings, findings, refused_calls, strongest, weigh, without_noise
from xlocal.ranking.source import SourceIndex
from xlocal.ranking.text import Issue, mentioned_names, named_functions, read_issue
from xlocal.tracer.calltree import CallTree, Function, depths
from xlocal.tracer.closeup import Closeup, Focus, steady
from xlocal.tracer.errors import ScriptError, Warned
from xlocal.tracer.record import Recording
from xlocal.tracer.scope import Scope
from xlocal.tracer.trace import Code

CELLS_PER_SECOND = 6e8  # of the exact tree difference, on an ordinary core
BUDGET = 60.0  # seconds
# Said of a function whatever the reference did, or of one that did not run.
NO_DIFFERENCE = frozenset({"traceback", "named-in-issue", *RELATIVE_KINDS})

Progress = Callable[[str], None]
Closer = Callable[[Recording, Focus], Sequence[Closeup]]  # runs a script again; one close-up for each repeat


def compare(
    buggy: Recording,
    references: Sequence[Recording],
    *,
    scope: Scope,
    budget: float = BUDGET,
    paper: bool = False,
    closer: Closer | None = None,
    keep: Callable[[str, TreeDiff], None] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare the buggy recording with each reference and gather the evidence for every function in scope.

    `budget` bounds the exact tree difference, in seconds for each reference. `paper` lets the difference rename
    nodes, as APTED does. `closer` runs a recording's script again to see lines and values (`record.closeups` with
    its options); without it the evidence is of calls alone. `keep` is given each difference with the role of its
    reference. Raises TraceFormatError for a trace that cannot be read.
    """
    say: Progress = progress or (lambda text: None)
    index = SourceIndex(scope)
    say("reading the traces")
    seen = [observe(recording, index, scope) for recording in (buggy, *references)]
    bad, good = seen[0], seen[1:]
    pairs: list[tuple[Observation, TreeDiff]] = []
    for reference in good:
        difference = diff(
            bad.tree,
            reference.tree,
            budget=budget * CELLS_PER_SECOND,
            paper=paper,
            progress=lambda phase, share: say(f"comparing with {reference.role}: {phase} {share:.0%}"),  # noqa: B023
        )
        pairs.append((reference, difference))
        if keep is not None:
            keep(reference.role, difference)
    say("gathering the evidence")
    executed = len(bad.tree.counts())
    found = [findings(bad, reference, difference, index) for reference, difference in pairs]
    doubts: list[Warned] = []
    views: list[FunctionView] = []
    if closer is not None and len(bad.tree) > 1:
        try:
            for kinds, (more, shown) in zip(found, look_closer(bad, pairs, closer, doubts.append), strict=True):
                kinds.update(more)
                views.extend(shown)
        except ScriptError as error:
            text = f"lines and values are missing, since the second pass did not end as the first: {error}"
            doubts.append(Warned("second-pass-failed", text))
    for kinds, (reference, _) in zip(found, pairs, strict=True):
        seen_closely = [view for view in views if view.reference == reference.role]
        kinds.update(relatives(kinds, seen_closely, bad.tree.counts(), index))
    if len(found) > 1:
        found = [_named(kinds, reference.role) for kinds, reference in zip(found, good, strict=True)]
    weighed = [weigh(kinds, executed) for kinds in found]
    suspects = tuple(_suspects(bad, good, strongest(weighed), index, scope))
    nearest = min((difference for _, difference in pairs), key=lambda d: d.cost)
    return Comparison(
        runs=(_summary(bad), *_reference_summaries(good, found)),
        # What is wrong with the machine is found by each run, and said once.
        warnings=tuple(dict.fromkeys((*run_doubts(bad, good, pairs), *_reveal(good, found), *doubts, *index.warnings))),
        suspects=suspects,
        cost=nearest.cost,
        lower=nearest.lower,
        exact=nearest.exact,
        blindness=blindness(bad, good, suspects, scope, closely=bool(views)),
        views=tuple(views),
    )


def look_closer(
    bad: Observation,
    pairs: Sequence[tuple[Observation, TreeDiff]],
    closer: Closer,
    warn: Callable[[Warned], None],
) -> list[tuple[Findings, list[FunctionView]]]:
    """The findings of a second pass over the buggy script and each reference, and what to show of it, for each pair.

    Raises ScriptError when a script does not run to its end this time.
    """
    wanted = [choose(bad, reference, difference) for reference, difference in pairs]
    here = chosen_calls(bad, set().union(*(nodes for nodes, _ in wanted)))
    seen = settled(bad, here, closer, warn)
    found = []
    for (reference, difference), (_, nodes) in zip(pairs, wanted, strict=True):
        there = chosen_calls(reference, nodes)
        other = settled(reference, there, closer, warn)
        kinds, views = value_findings(bad, reference, difference, (here, there), (seen, other))
        noisy = bad.noisy | reference.noisy | unsteady(bad, here, seen) | unsteady(reference, there, other)
        found.append((without_noise(kinds, noisy), views))
    return found


def settled(observation: Observation, chosen: Chosen, closer: Closer, warn: Callable[[Warned], None]) -> Closeup:
    """The close-up of one script that its repeats agree on; says so when it does not line up with the first pass."""
    seen = steady(closer(observation.recording, chosen.focus))
    for warning in seen.warnings:
        warn(Warned(warning.slug, f"{observation.role}, second pass: {warning.text}"))
    missing = sum(key not in seen.calls for key in chosen.keys.values())
    if missing:
        text = (
            f"{observation.role}: {missing} of {len(chosen.keys)} calls were not the same in the second pass; "
            "their lines and values are left out"
        )
        warn(Warned("second-pass-differs", text))
    return seen


def _suspects(
    bad: Observation,
    good: Sequence[Observation],
    evidence: Mapping[Function, tuple[Evidence, ...]],
    index: SourceIndex,
    scope: Scope,
) -> Iterable[Suspect]:
    """Every function that the buggy run executed, in the order of first calls, then those of a reference alone."""
    name = namer(bad.recording, index, scope)
    named = {name(Code(*frame[:3], "function")) for error in bad.uncaught for frame in error.frames}
    named |= {function for function, _ in refused_calls(bad.uncaught, index)}
    here = bad.tree.counts()
    there = [reference.tree.counts() for reference in good]
    places = _places(bad.tree)
    others = dict.fromkeys(function for counts in there for function in counts if function not in here)
    # Of the source alone: methods that theirs override, and classes whose data is read.
    beside = {f for f, items in evidence.items() if any(item.kind in RELATIVE_KINDS for item in items)}
    others.update(dict.fromkeys(sorted(beside - here.keys())))
    # In the traceback of the buggy run, though no call was recorded: the hook was lost, or it ran at import.
    traced = {f for f, items in evidence.items() if any(item.kind == "traceback" for item in items)}
    unseen = (traced & named) - here.keys()
    others.update(dict.fromkeys(sorted(unseen)))
    for function in [*sorted(here, key=lambda f: places[f][1]), *others]:
        source = index.source(function)
        depth, first, callees = places.get(function, (-1, -1, ()))
        yield Suspect(
            function=function,
            line=source.line if source else 0,
            end_line=source.end_line if source else 0,
            executed=function in here or function in unseen,
            calls=(here.get(function, 0), max((counts.get(function, 0) for counts in there), default=0)),
            depth=depth,
            first_call=first,
            callees=callees,
            evidence=evidence.get(function, ()),
        )


def _places(tree: CallTree) -> dict[Function, tuple[int, int, tuple[Function, ...]]]:
    """Least depth, first call and direct callees of each function of a tree."""
    depth = depths(tree.parent)
    least = np.full(len(tree.functions), np.iinfo(np.int32).max)
    np.minimum.at(least, tree.label[1:], depth[1:])
    labels, first = np.unique(tree.label[1:], return_index=True)
    edges = np.unique(np.stack([tree.label[tree.parent[1:]], tree.label[1:]], axis=1), axis=0)
    callees: dict[int, list[Function]] = {}
    for caller, callee in edges.tolist():
        callees.setdefault(caller, []).append(tree.functions[callee])
    return {
        tree.functions[label]: (int(least[label]), int(at) + 1, tuple(callees.get(label, ())))
        for label, at in zip(labels.tolist(), first.tolist(), strict=True)
    }


def _summary(observation: Observation) -> RunSummary:
    run = observation.recording.executions[0]
    uncaught = observation.uncaught[0] if observation.uncaught else None
    return RunSummary(
        role=observation.role,
        command=observation.recording.command.text,
        exit_status=-run.signal if run.exit_status is None and run.signal else run.exit_status,
        exception=uncaught.type if uncaught else None,
        message=uncaught.message if uncaught else None,
        calls=len(observation.tree) - 1,
        functions=len(observation.tree.counts()),
        seconds=run.seconds,
        repeats=len(observation.recording.executions),
        identical_repeats=not observation.noisy,
    )


def _named(kinds: Findings, role: str) -> Findings:
    """The findings with the name of their reference, where there are several: another one may be like the buggy run."""

    def named(detail: str) -> str:
        apart = detail.replace("only in the buggy run", f"in the buggy run and not in {role}")
        return apart.replace("the reference run", role)

    return {
        kind: {function: Finding(each.strength, named(each.detail)) for function, each in flagged.items()}
        for kind, flagged in kinds.items()
    }


def _reference_summaries(good: Sequence[Observation], found: Sequence[Findings]) -> Iterator[RunSummary]:
    """The references' summaries, with what each shows that differs from the buggy run."""
    shown = [_differing(kinds) for kinds in found]
    for place, observation in enumerate(good):
        others = set().union(*shown[:place], *shown[place + 1 :])
        alone = len(shown[place] - others)
        yield dataclasses.replace(_summary(observation), differing=len(shown[place]), alone=alone)


def _differing(kinds: Findings) -> set[Function]:
    return {function for kind, flagged in kinds.items() if kind not in NO_DIFFERENCE for function in flagged}


def _reveal(good: Sequence[Observation], found: Sequence[Findings]) -> Iterator[Warned]:
    """Says which of several references shows no difference."""
    silent = [reference.role for reference, kinds in zip(good, found, strict=True) if not _differing(kinds)]
    if len(good) > len(silent) > 0:
        text = (
            f"{', '.join(silent)} shows no difference from the buggy run, so the list rests on the others; one without "
            "the feature, or with ordinary input, would show more"
        )
        yield Warned("reference-silent", text)


def rank_suspects(
    comparison: Comparison,
    *,
    scope: Scope,
    issue: str | None = None,
    ranker: str = "fused",
    model: str | None = None,
    cache: Path | None = None,
) -> Localization:
    """Rank the suspects of a comparison, with the functions that the issue names added.

    Raises UsageError for an unknown ranker, ModelError when one needs an encoder that is not here.
    """
    chosen = get_ranker(ranker)
    index = SourceIndex(scope)
    read = read_issue(issue) if issue is not None and issue.strip() else None
    suspects = with_named(comparison.suspects, read, index) if read else comparison.suspects
    heard: list[Warned] = []
    context = Context(
        issue=read,
        sources=index,
        repository=Path(scope.repository) if scope.repository else None,
        model=model,
        cache=cache,
        warn=heard.append,
    )
    return Localization(
        ranker=ranker,
        issue=issue,
        runs=comparison.runs,
        warnings=(*comparison.warnings, *(read.warnings if read else ()), *heard),
        suspects=chosen.rank(suspects, context),
        comparison=comparison,
    )


def with_named(suspects: Sequence[Suspect], issue: Issue, index: SourceIndex) -> tuple[Suspect, ...]:
    """The suspects with `named-in-issue` evidence, and those functions that the issue names but no run executed."""
    present = {suspect.function for suspect in suspects}
    named = dict(named_functions(issue, present, sources=index))
    elsewhere = (function for function in index.named(mentioned_names(issue)) if function not in present)
    # Apart, so that namesakes elsewhere do not make a name too common to mean one that ran.
    for function, detail in named_functions(issue, elsewhere, sources=index).items():
        named.setdefault(function, detail)
    flagged = {function: Finding(1.0, detail) for function, detail in named.items()}
    evidence = weigh({"named-in-issue": flagged}, len(present))
    merged = [
        dataclasses.replace(suspect, evidence=(*suspect.evidence, *evidence.get(suspect.function, ())))
        for suspect in suspects
    ]
    for function in sorted(flagged.keys() - present):
        source = index.source(function)
        if source is not None:
            merged.append(
                Suspect(
                    function=function,
                    line=source.line,
                    end_line=source.end_line,
                    executed=False,
                    evidence=tuple(evidence[function]),
                )
            )
    return tuple(merged)
