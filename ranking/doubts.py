"""What speaks against a comparison: runs that did not end as they should, and why nothing could be seen."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from xlocal.ranking.diff import TreeDiff
from xlocal.ranking.evidence import Suspect
from xlocal.ranking.observation import Observation
from xlocal.tracer.errors import Warned
from xlocal.tracer.layout import installation, package_holder
from xlocal.tracer.scope import Scope
from xlocal.tracer.trace import LOST

# What .pth files run when the interpreter starts.
_START_UP = ("_distutils_hack", "_virtualenv", "__editable__")


def run_doubts(
    bad: Observation, good: Sequence[Observation], pairs: Sequence[tuple[Observation, TreeDiff]]
) -> Iterable[Warned]:
    for observation in (bad, *good):
        yield from observation.warnings
    for reference in good:
        if _failed(reference):
            text = f"{reference.role} fails too ({_ending(reference)}); a reference should work, or fail otherwise"
            yield Warned("reference-fails", text)
    if not _failed(bad):
        same = [reference.role for reference in good if not _failed(reference) and _output(bad) == _output(reference)]
        if same:
            text = f"the buggy script behaves like {same[0]}: both exit with 0 and print the same"
            yield Warned("same-behaviour", text)
        else:
            text = "the buggy script exits with 0: taken as a bug in what it prints or returns"
            yield Warned("buggy-passes", text)
    for reference, difference in pairs:
        if not difference.exact:
            text = (
                f"the difference to {reference.role} is a bound, between {difference.lower} and {difference.cost} "
                "edits; raise --budget for an exact one"
            )
            yield Warned("difference-bounded", text)


def _failed(observation: Observation) -> bool:
    return observation.recording.executions[0].exit_status != 0


def _output(observation: Observation) -> str:
    return observation.recording.executions[0].stdout()


def _ending(observation: Observation) -> str:
    if observation.uncaught:
        return observation.uncaught[0].type.rpartition(".")[2]
    run = observation.recording.executions[0]
    return f"exit status {run.exit_status}" if run.signal is None else f"signal {run.signal}"


def blindness(
    bad: Observation, good: Sequence[Observation], suspects: Sequence[Suspect], scope: Scope, *, closely: bool
) -> str | None:
    lost = _lost(bad, good)
    if not suspects:
        return _nothing_ran((bad, *good), lost, scope)
    if len(bad.tree) == 1 and not any(suspect.executed for suspect in suspects):
        if lost:
            return f"no call of the buggy run was seen in the scope{lost}; functions of the reference run are listed"
        return "the buggy run executed nothing of the scope; functions of the reference run are listed"
    if any(suspect.evidence for suspect in suspects):
        return None
    if lost:
        return f"the calls that were seen are the same in both runs, so no function stands out{lost}"
    return _nothing_differs(noisy=any(seen.noisy for seen in (bad, *good)), closely=closely)


def _nothing_differs(*, noisy: bool, closely: bool) -> str:
    hint = "A reference without the feature, or with ordinary input, would show more"
    if noisy:
        return (
            "what differs between the runs differs between runs of one script too, so no function stands out. Make the "
            f"scripts repeat (seeds, fixed times, an order that does not follow addresses) to see more. {hint}"
        )
    alike = (
        "both runs made the same calls, and took the same lines with the same values as far as they were seen"
        if closely
        else "both runs made the same calls"
    )
    where = "in C code or in another process" if closely else "in values, in C code, or in another process"
    return f"{alike}, so no function stands out: the difference lies {where}, or beyond what is looked at. {hint}"


def _nothing_ran(observations: Sequence[Observation], lost: str, scope: Scope) -> str:
    if imported := _imported(observations, scope):
        return (
            f"no function of the scope was called after its import{lost}: of {imported} only module-level code ran, "
            "with what it calls, and that is not recorded as calls"
        )
    ran = _packages(path for seen in observations for path in seen.outside)
    listed = f"; what ran was {', '.join(ran)}: name one with --scope" if ran else ""
    return f"nothing of the scope was executed{lost}{listed}"


def _lost(bad: Observation, good: Sequence[Observation]) -> str:
    """A clause that says in which runs the hook was lost; '' when it stayed in all."""
    roles = [seen.role for seen in (bad, *good) if any(warned.slug == "hook-lost" for warned in seen.warnings)]
    if not roles:
        return ""
    return f" (the hook that records calls was lost in {', '.join(roles)}, and later calls were not seen)"


def _imported(observations: Iterable[Observation], scope: Scope) -> str:
    """Names of the scope's files of which module-level code ran, the scripts left out; at most three, '' for none."""
    ran: dict[str, None] = {}
    for seen in observations:
        modules = (code.filename for code in seen.codes if code.kind in ("import", "module") and code != LOST)
        ran.update((filename, None) for filename in modules if scope.relative(filename) is not None)
    for seen in observations:
        ran.pop(str(seen.recording.command.file), None)
    names = list(dict.fromkeys(map(os.path.basename, ran)))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _packages(paths: Iterable[str]) -> list[str]:
    """Names of the packages that these files belong to, most files first; the standard library is left out."""
    found: dict[str, int] = {}
    for path in paths:
        folder = installation(path)
        if folder is None:
            # What is run by exec has no file; the standard library lies in lib/python3.x itself.
            if not os.path.isabs(path) or re.search(r"[/\\]lib(64)?[/\\]python3[^/\\]*[/\\]", path):
                continue
            folder = package_holder(os.path.dirname(path))
        name = os.path.relpath(path, folder).split(os.sep)[0].removesuffix(".py")
        if not name.startswith(_START_UP):
            found[name] = found.get(name, 0) + 1
    return sorted(found, key=lambda name: (-found[name], name))[:8]
