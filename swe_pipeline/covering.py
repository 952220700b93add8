"""Which existing tests execute the suspects: candidate files run once, at the base commit, under a recorder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from xlocal.ranking.source import SourceIndex
from xlocal.swe_pipeline.checkout import Checkout
from xlocal.swe_pipeline.leads import TreeScope
from xlocal.swe_pipeline.regression import choose_tests, importing
from xlocal.swe_pipeline.specs import Spec, spec_of
from xlocal.swe_pipeline.workspace import HostTree
from xlocal.tracer import launch
from xlocal.tracer.calltree import Function

CANDIDATES = 12  # test files that are run to see what they execute
_FILE_SECONDS = 60.0
_LEAST_SECONDS = 5.0
_MARK = "XLOCAL-EXECUTED "
_PLUGIN = Path(launch.__file__).with_name("executed.py")
# Run by the project's interpreter, 3.6 at the oldest. The recorder comes as a text: xlocal may not be readable there.
_PROGRAM = f"""
import json, os, sys, tempfile, types

source, wanted, arguments = sys.argv[1], set(json.loads(sys.argv[2])), sys.argv[3:]
del sys.argv[1:]
plugin = types.ModuleType("xlocal_executed")
plugin.__file__ = os.path.abspath("xlocal_executed.py")
exec(compile(source, plugin.__file__, "exec"), plugin.__dict__)
handle, path = tempfile.mkstemp(suffix=".json")
os.close(handle)
os.environ[plugin.VARIABLE] = path
import pytest

pytest.main(arguments, plugins=[plugin])
with open(path, encoding="utf-8", errors="surrogateescape") as file:
    text = file.read()
os.unlink(path)
if text:
    document = json.loads(text)
    root = os.path.join(os.getcwd(), "")
    kept, numbers = [], {{}}
    for number, (name, line, function) in enumerate(document["codes"]):
        name = name[len(root):].replace(os.sep, "/") if name.startswith(root) else ""
        if name in wanted:
            numbers[number] = len(kept)
            kept.append([name, line, function])
    tests = [
        [row["outcome"], [numbers[code] for code in row["codes"] or () if code in numbers]]
        for row in document["tests"].values()
    ]
    print("\\n{_MARK}" + json.dumps({{"codes": kept, "tests": tests, "held_by": document["hook_held_by"]}}))
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """Test files, the nearest first, and `how` they were chosen, for people."""

    files: tuple[str, ...]
    how: str


class _NotSeen(Exception):  # noqa: N818 - an expected end
    """What a file's tests execute cannot be seen; the message says why."""


def choose_by_coverage(
    checkout: Checkout, suspects: Sequence[Function], *, limit: int, seconds: float = 120.0
) -> Choice:
    """The test files nearest to some suspects, the likeliest first, by what their passing tests execute.

    Candidates are the files that names and imports bring up. Each is run alone, once, within `seconds` for all. A
    suspect counts by its place in the list and by how few of the files execute it. Files whose tests could not be seen
    to execute any (they may start programs of their own) come after those, by their names; those that take too long are
    left out. Where nothing can be recorded, names decide, and `how` says why.
    """
    named = choose_tests(checkout, suspects, limit=CANDIDATES)
    candidates = tuple(dict.fromkeys((*named, *importing(checkout, suspects))))[:CANDIDATES]
    if not candidates or not suspects:
        return Choice(candidates[:limit], "no test file mentions a suspect or imports its module")
    if not _by_pytest(checkout):
        return Choice(named[:limit], "by names: the project's tests have a runner of their own")
    seen: dict[str, frozenset[Function]] = {}
    slow: set[str] = set()
    why = ""
    deadline = time.monotonic() + seconds
    for file in candidates:
        left = min(_FILE_SECONDS, deadline - time.monotonic())
        if left < _LEAST_SECONDS:
            why = why or ("" if seen else "there was no time to run any")
            break
        try:
            found = _executed(checkout, file, suspects, timeout=left)
        except _NotSeen as reason:
            why = str(reason)
            continue
        if found is None:
            slow.add(file)
        else:
            seen[file] = found
    ranked = by_executed(seen, suspects)
    kept = [file for file in (*ranked, *candidates) if file not in slow]
    files = tuple(dict.fromkeys(kept))[:limit]
    if not ranked:
        return Choice(files, f"by names: {why or 'none of their tests was seen to execute a suspect'}")
    covered = len(frozenset().union(*(seen[file] for file in ranked[:limit])))
    return Choice(
        files, f"by what they execute: {covered} of {len(set(suspects))} suspects; {len(seen)} files were run"
    )


def by_executed(seen: Mapping[str, frozenset[Function]], suspects: Sequence[Function]) -> list[str]:
    """The files that execute a suspect, the best first: a suspect weighs by its place and by its rarity in them."""
    holders = {suspect: sum(suspect in executed for executed in seen.values()) for suspect in suspects}
    weights = {
        suspect: math.log1p(len(seen) / holders[suspect]) / place
        for place, suspect in reversed([*enumerate(suspects, 1)])
        if holders[suspect]
    }
    scores = {file: sum(weights[suspect] for suspect in executed) for file, executed in seen.items()}
    places = {file: place for place, file in enumerate(seen)}
    return sorted((file for file in scores if scores[file] > 0), key=lambda file: (-scores[file], places[file]))


def _by_pytest(checkout: Checkout) -> bool:
    test = spec_of(checkout.issue).test
    return test[: len(Spec().test) - 1] == Spec().test[:-1] and hasattr(checkout, "tree")


def _executed(
    checkout: Checkout, file: str, suspects: Sequence[Function], *, timeout: float
) -> frozenset[Function] | None:
    """The suspects that a file's passing tests execute; None when it takes too long. Raises _NotSeen."""
    wanted = json.dumps(sorted({suspect.path for suspect in suspects}))
    arguments = ["-q", "--tb=no", "-p", "no:cacheprovider", file]
    command = [checkout.python, "-c", _PROGRAM, _PLUGIN.read_text("utf-8"), wanted, *arguments]
    run = checkout.run(command, timeout=timeout)
    if run.timed_out:
        return None
    lines = [line for line in run.log.splitlines() if line.strip()]
    found = next((line for line in reversed(lines) if line.startswith(_MARK)), None)
    if found is None:
        raise _NotSeen(f"pytest did not run {file} ({lines[-1].strip()[:200] if lines else 'it said nothing'})")
    try:
        return _suspects_in(json.loads(found.removeprefix(_MARK)), cast(HostTree, checkout).tree, suspects)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        # Tests write to the same output.
        raise _NotSeen(f"what {file} executes was not told ({error!r})") from None


def _suspects_in(document: Any, tree: Path, suspects: Sequence[Function]) -> frozenset[Function]:
    if document["held_by"]:
        raise _NotSeen(f"the hook for recording is held by {document['held_by']}")
    index = SourceIndex(TreeScope(tree))
    passing = {code for outcome, codes in document["tests"] if outcome == "passed" for code in codes}
    rows = [document["codes"][code] for code in passing]
    located = {index.locate(str(tree / name), int(line), str(function)) for name, line, function in rows}
    return frozenset(suspects) & frozenset(each for each in located if each is not None)
