"""Our own localization benchmark: how high each ranker places the functions that real fixes changed.

    python experiments/localization.py --cases DIR [--out FILE] [--checkouts DIR] [--rankers NAME...]
                                      [--model NAME] [--only ID...]

DIR holds one folder per real bug (case.json, buggy.py, references). Released packages are installed by uv into cached
environments, one per case; repositories come from --checkouts, one folder per case with `repo/` and a text file
`python` that names the interpreter. What cannot run here is counted and said, with the reason. Each case is recorded
and compared once per version of the code that does so (--cache), then ranked by every ranker that works here. The
tables go to stdout, progress to stderr, all figures to --out as JSON. --self compares each buggy script with itself
instead: evidence against no function is the only right answer, and the exit status is 1 otherwise (edits alone may be
chance that the repeats showed).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import metrics
from environments import Case, UnavailableError, load_cases
from outcomes import (
    Held,
    Outcome,
    Repeated,
    Skipped,
    Unranked,
    by_repository,
    case_table,
    kind_table,
    ranking_table,
    report,
    self_table,
    spread_table,
    summarize,
    working,
)
from recorded import Recorded
from rich.console import Console
from xlocal.ranking.comparison import Comparison, Localization
from xlocal.ranking.localize import NO_DIFFERENCE
from xlocal.ranking.rank import DEFAULT_RANKER, ranker_names
from xlocal.tracer.errors import ModelError, UsageError, XlocalError

from xlocal.demo import cache_folder
from xlocal.question import rerank
from xlocal.session import COMPARISON

T = TypeVar("T")


def outcome_of(case: Case, recorded: Recorded, rankers: Sequence[str], model: str | None = None) -> Outcome:
    """Record and compare unless that is stored, then rank by each ranker that works here.

    Raises UnavailableError, or XlocalError when a script does not behave.
    """
    session = recorded.session(case)
    found: dict[str, Localization] = {}
    unranked: dict[str, Unranked] = {}
    for name in rankers:
        try:
            found[name] = rerank(session, issue=case.issue, ranker=name, model=model)
        except (ModelError, UsageError) as error:  # needs a model or a repository that is not here
            unranked[name] = Unranked(str(error), isinstance(error, ModelError))
    comparison = Comparison.load(session / COMPARISON)
    return Outcome(
        id=case.id,
        repository=case.repository,
        kind=case.kind,
        true_functions=case.true_functions,
        executed=sum(suspect.executed for suspect in comparison.suspects),
        cost=comparison.cost,
        exact=comparison.exact,
        warnings=tuple(warning.slug for warning in comparison.warnings),
        kinds=_kinds(comparison, found.get(DEFAULT_RANKER), case.true_functions),
        rankings={name: _names(located) for name, located in found.items()},
        unranked=unranked,
    )


def repeated(case: Case, recorded: Recorded) -> Repeated:
    """Compare the buggy script with itself."""
    comparison = Comparison.load(recorded.session(case, itself=True) / COMPARISON)
    differ = [
        str(suspect.function)
        for suspect in comparison.suspects
        if any(evidence.kind not in NO_DIFFERENCE for evidence in suspect.evidence)
    ]
    return Repeated(case.id, comparison.cost, tuple(differ))


def _names(found: Localization) -> tuple[str, ...]:
    return tuple(str(ranked.suspect.function) for ranked in found.suspects)


def _kinds(comparison: Comparison, found: Localization | None, true: Sequence[str]) -> dict[str, Held]:
    """Every kind of evidence in the comparison, and in the default ranking (which adds what the issue names)."""
    suspects = [ranked.suspect for ranked in found.suspects] if found else comparison.suspects
    holders: dict[str, set[str]] = defaultdict(set)
    for suspect in suspects:
        for evidence in suspect.evidence:
            holders[evidence.kind].add(str(suspect.function))
    return {
        kind: Held(len(functions), any(metrics.is_right(name, true) for name in functions))
        for kind, functions in sorted(holders.items())
    }


def run_all(
    cases: Sequence[Case], work: Callable[[Case], T], *, jobs: int, say: Callable[[str], None]
) -> tuple[list[T], list[Skipped]]:
    """`work` on every case, `jobs` at a time; what cannot run, or does not behave, is left out with its reason."""

    def one(case: Case) -> T | Skipped:
        try:
            done = work(case)
        except (UnavailableError, XlocalError) as error:
            say(f"{case.id}: left out: {error}")
            return Skipped(case.id, str(error))
        say(f"{case.id}: done")
        return done

    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(one, cases))
    skipped = [result for result in results if isinstance(result, Skipped)]
    return [result for result in results if not isinstance(result, Skipped)], skipped


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    options = _parser().parse_args(arguments)
    console, progress = Console(), Console(stderr=True)
    if not console.is_terminal:
        console.width = 140
    try:
        cases = _chosen(load_cases(options.cases), options.only)
        unknown = set(options.rankers) - set(ranker_names())
        if unknown:
            raise UsageError(f"no ranker {', '.join(sorted(unknown))}; choose from {', '.join(ranker_names())}")
    except (FileNotFoundError, UsageError) as error:
        progress.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return 2
    recorded = Recorded(options.cache.resolve(), options.checkouts)

    def say(text: str) -> None:
        progress.print(text, markup=False, highlight=False, soft_wrap=True)

    if options.itself:
        repeats, skipped = run_all(cases, lambda case: repeated(case, recorded), jobs=options.jobs, say=say)
        console.print(self_table(repeats))
        document: dict[str, object] = {
            "schema": 1,
            "cases": [asdict(one) | {"differences": one.differences} for one in repeats],
            "skipped": [asdict(one) for one in skipped],
        }
        status = int(any(one.functions for one in repeats))
    else:
        outcomes, skipped = run_all(
            cases, lambda case: outcome_of(case, recorded, options.rankers, options.model), jobs=options.jobs, say=say
        )
        document, status = report(outcomes, options.rankers, skipped), 0
        _print_tables(console, outcomes, options.rankers)
    _print_skipped(console, skipped)
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return status


def _print_tables(console: Console, outcomes: Sequence[Outcome], rankers: Sequence[str]) -> None:
    shown = working(outcomes, rankers)
    console.print(case_table(outcomes, shown))
    console.print(ranking_table("Rankers (%)", "ranker", {name: summarize(outcomes, name) for name in shown}))
    if shown:
        console.print(ranking_table(f"Repositories, {shown[0]} (%)", "repository", by_repository(outcomes, shown[0])))
        console.print(spread_table(outcomes, shown[0]))
    console.print(kind_table(outcomes))
    for name in rankers:
        reasons = Counter(outcome.unranked[name].reason for outcome in outcomes if name in outcome.unranked)
        for reason, count in reasons.items():
            text = f"{name}: no ranking in {count} of {len(outcomes)} cases: {reason}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def _print_skipped(console: Console, skipped: Sequence[Skipped]) -> None:
    reasons: dict[str, list[str]] = defaultdict(list)
    for one in skipped:
        reasons[one.reason].append(one.id)
    for reason, ids in reasons.items():
        console.print(f"{len(ids)} left out: {reason}: {', '.join(ids)}", markup=False, highlight=False)


def _chosen(cases: list[Case], only: list[str] | None) -> list[Case]:
    if not only:
        return cases
    unknown = set(only) - {case.id for case in cases}
    if unknown:
        raise UsageError(f"no case {', '.join(sorted(unknown))}")
    return [case for case in cases if case.id in only]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True, metavar="DIR", help="folder of the cases")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument(
        "--checkouts", type=Path, metavar="DIR", help="prepared repositories, DIR/ID/repo and DIR/ID/python"
    )
    parser.add_argument("--rankers", nargs="+", default=list(ranker_names()), metavar="NAME", help="default: all")
    parser.add_argument("--model", metavar="NAME", help="the encoder of paper and embedding; default UniXcoder")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these cases alone")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at a time (default 1)")
    parser.add_argument("--cache", type=Path, default=cache_folder() / "localization", metavar="DIR")
    parser.add_argument("--self", dest="itself", action="store_true", help="compare each buggy script with itself")
    return parser


if __name__ == "__main__":
    sys.exit(main())
