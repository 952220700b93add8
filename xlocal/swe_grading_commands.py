"""The commands of `xlocal swe` that grade and measure: validate, grade, report, metrics."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlocal.swe_options import (
    BACKEND,
    DATASET,
    FAILED,
    INSTANCES,
    MIRRORS,
    How,
    Where,
    errors_of,
    how,
    where,
)

if TYPE_CHECKING:
    from xlocal.swe_pipeline.batch import Outcome, Step
    from xlocal.swe_pipeline.issue import Dataset, Issue
    from xlocal.swe_pipeline.predictions import Prediction

UNRESOLVED = 1

_PREDICTIONS = click.argument("predictions", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


_TIMEOUT = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=1800.0,
    show_default=True,
    metavar="S",
    help="Seconds that the tests of an instance may take.",
)


@click.command()
@where
@_TIMEOUT
@BACKEND
@how
@_JSON
def validate(timeout: float, backend: Any, *, as_json: bool, **given: Any) -> None:
    """Check that each gold patch resolves its instance here, and that an empty one does not.

    A patch resolves when every fail-to-pass test passes with it, and it breaks no pass-to-pass test that passes
    without it. Printed beside that: how many tests of both lists behave here (fail-to-pass tests fail without the fix
    and pass with it, pass-to-pass tests pass in both). Results are kept in ROOT/validate and in
    ROOT/INSTANCE/calibration.json and not made again. Exits with 0 when all is so, with 1 when a patch does otherwise,
    and with 4 when an instance could not be judged.
    """
    from xlocal.swe_pipeline.steps import PrepareStep, ValidateStep, check_gold

    there, way = Where.taken(given), How.taken(given)
    dataset, issues = there.chosen()
    check_gold(dataset.gold, issues, dataset.name)
    workplace = there.workplace()
    steps: list[Step] = [ValidateStep(workplace, dataset.gold, timeout=timeout, backend=backend)]
    if backend == "local":
        steps.insert(0, PrepareStep(workplace))
    told = there.told(timeout=timeout, backend=backend)
    outcomes = way.run(issues, steps, folder=there.root / "validate", arguments=told)
    rows = [outcome for outcome in outcomes if outcome.step == "validate"]
    errors = errors_of(outcomes)
    if as_json:
        click.echo(
            json.dumps([{"id": row.instance, **(row.result or {"error": errors[row.instance]})} for row in rows])
        )
    else:
        for row in rows:
            click.echo(f"{row.instance:34} {_validity(row.instance, row.result, errors.get(row.instance, ''))}")
        click.echo(_validity_table(issues, rows), nl=False)
    if any(row.result is None for row in rows):
        sys.exit(FAILED)
    sys.exit(0 if all(row.result and row.result["gold"] and not row.result["empty"] for row in rows) else UNRESOLVED)


def _validity(name: str, result: Mapping[str, Any] | None, error: str) -> str:
    if result is None:
        return f"not judged: {error.removeprefix(f'{name}: ')}"
    gold = "gold resolves" if result["gold"] else "GOLD DOES NOT RESOLVE"
    empty = "EMPTY RESOLVES" if result["empty"] else "empty does not"
    counts = "fail-to-pass {}/{}, pass-to-pass {}/{}".format(*result["fail_to_pass"], *result["pass_to_pass"])
    broken = f"; gold breaks {', '.join(result['broken'][:2])}" if result["broken"] else ""
    return f"{gold}, {empty} ({counts} behave{broken}), {result['seconds']:.1f} s"


def _validity_table(issues: Sequence[Issue], rows: Sequence[Outcome]) -> str:
    """One line for each repository."""
    repositories = {issue.id: issue.repository for issue in issues}
    layout = "{:26} {:>4} {:>7} {:>14} {:>13} {:>15}\n"
    text = "\n" + layout.format("repository", "n", "judged", "gold resolves", "by all tests", "empty does not")
    for name in [*sorted(set(repositories.values())), "all"]:
        mine = [row for row in rows if name in ("all", repositories[row.instance])]
        judged = [row.result for row in mine if row.result]
        counts = (
            len(mine),
            len(judged),
            sum(result["gold"] for result in judged),
            sum(result["official"] for result in judged),
            sum(not result["empty"] for result in judged),
        )
        text += layout.format(name, *counts)
    return text


@click.command()
@_PREDICTIONS
@click.option("--run-id", required=True, metavar="NAME", help="Names the run: its logs, and its report.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where logs/ and the report go.  [default: the current folder, as for the benchmark's harness]",
)
@click.option(
    "--calibrate/--no-calibrate",
    "calibrated",
    default=True,
    show_default=True,
    help="Run the tests of each instance without and with its own fix too, once, to know which behave here.",
)
@where
@_TIMEOUT
@BACKEND
@how
@_JSON
def grade(
    predictions: Path,
    *,
    run_id: str,
    out: Path,
    calibrated: bool,
    timeout: float,
    backend: Any,
    as_json: bool,
    **given: Any,
) -> None:
    """Grade the patches in PREDICTIONS (.json or .jsonl, as for the benchmark's harness).

    Leaves the harness's files: OUT/logs/run_evaluation/RUN_ID/MODEL/INSTANCE/ and OUT/MODEL.RUN_ID.json. What was
    graded in the same run is not graded again. A patch that does not apply, reaches outside the work tree or whose
    tests take too long does not resolve; a line says so. Exits with 4 when a prediction could not be graded.
    """
    from xlocal.swe_pipeline.grade import LOGS
    from xlocal.swe_pipeline.predictions import load_predictions
    from xlocal.swe_pipeline.reports import check_run_id, write_run_report
    from xlocal.swe_pipeline.steps import GradeStep, check_gold

    check_run_id(run_id)
    found = load_predictions(predictions)
    there, way = Where.taken(given), How.taken(given)
    dataset, issues = there.chosen()
    _all_known(found, dataset, predictions)
    first = next(iter(found.values()))
    step = GradeStep(
        there.workplace(),
        dataset.gold,
        out.absolute(),
        run_id,
        predictions=found,
        timeout=timeout,
        calibrated=calibrated,
        backend=backend,
    )
    graded = [issue for issue in issues if issue.id in found]
    check_gold(dataset.gold, graded, dataset.name)
    told = there.told(timeout=timeout, backend=backend, calibrated=calibrated, predictions=predictions)
    folder = out / LOGS / run_id / first.folder
    outcomes = way.run(graded, [step], folder=folder, arguments=told) if graded else ()
    verdicts = _verdicts(outcomes)
    report = write_run_report(
        out, run_id, found, verdicts, instances=[issue.id for issue in issues], backend=backend, calibrated=calibrated
    )
    _print_report(report, as_json)
    for name, verdict in verdicts.items():
        if verdict.patch_exists and verdict.problem:
            click.echo(f"{name}: not resolved: {verdict.problem.removeprefix(f'{name}: ')}", err=True)
    for outcome in outcomes:
        if outcome.error:
            click.echo(f"{outcome.instance}: not graded: {outcome.error}", err=True)
    sys.exit(FAILED if any(outcome.error for outcome in outcomes) else 0)


def _verdicts(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    from xlocal.swe_pipeline.grade import Verdict

    return {outcome.instance: Verdict(**outcome.result) for outcome in outcomes if outcome.result}


def _all_known(found: Mapping[str, Prediction], dataset: Dataset, file: Path) -> None:
    from xlocal.tracer.errors import UsageError

    known = {issue.id for issue in dataset.issues}
    unknown = [name for name in found if name not in known]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UsageError(f"{file}: {unknown[0]}{more} is not in the dataset {dataset.name}")


@click.command()
@click.argument("reports", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_JSON
def report(reports: tuple[Path, ...], as_json: bool) -> None:
    """Print what runs resolved, from their MODEL.RUN_ID.json (ours, or the benchmark's)."""
    for file in reports:
        _print_report(file, as_json)


def _print_report(file: Path, as_json: bool) -> None:
    from xlocal.swe_pipeline.reports import read_run_report

    document = read_run_report(file)
    if as_json:
        click.echo(json.dumps({"report": str(file), **document}))
        return
    own = document.get("xlocal") or {}
    click.echo(f"{file}" + (f"  ({own['label']})" if own else ""))
    for name in ("submitted", "completed", "resolved", "unresolved", "empty_patch", "error"):
        if f"{name}_instances" in document:
            click.echo(f"  {name.replace('_', ' '):12} {document[f'{name}_instances']:>4}")
    click.echo(f"  {'of':12} {document['total_instances']:>4}")
    for name, rate in own.get("rates", {}).items():
        if name != "official" and not own.get("calibrated", True):
            click.echo(f"  {_RATES[name]:62} not calibrated")
            continue
        percent = f"({100 * rate['resolved'] / rate['n']:.1f} %)" if rate["n"] else ""
        click.echo(f"  {_RATES[name]:62} {rate['resolved']:>4} of {rate['n']:>4} {percent}")


_RATES = {
    "official": "resolved, official rule, of all instances",
    "valid": "of those whose fail-to-pass tests all behave here",
    "practical": "resolved by the tests that behave here, where there are any",
}


@click.command()
@_PREDICTIONS
@DATASET
@INSTANCES
@MIRRORS
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".xlocal/swe"),
    show_default=True,
    help="Prepared checkouts, to read base files from where there are no --mirrors.",
)
@click.option(
    "--convention",
    type=click.Choice(("paper", "locagent", "orcaloca")),
    default="paper",
    show_default=True,
    help="How instances are scored: mean precision, recall and F1; or whether all true ones were predicted.",
)
@click.option(
    "--functions",
    "counting",
    type=click.Choice(("existing", "innermost", "enclosing")),
    default="existing",
    show_default=True,
    help="Which functions a patch touches: the innermost existing ones; new ones too; or all around a line.",
)
@_JSON
def metrics(
    predictions: Path,
    *,
    dataset: str,
    instances: str | None,
    mirrors: Path | None,
    root: Path,
    convention: Any,
    counting: Any,
    as_json: bool,
) -> None:
    """Measure localization: the files and functions that the patches in PREDICTIONS touch, against the gold patches'.

    Touched functions are found by applying the patches to the base files and comparing; nothing is run.
    """
    from xlocal.swe_pipeline.issue import load_dataset, read_instances
    from xlocal.swe_pipeline.localized import localization_scores
    from xlocal.swe_pipeline.predictions import load_predictions

    data = load_dataset(dataset)
    found = load_predictions(predictions)
    _all_known(found, data, predictions)
    scores = localization_scores(
        data.select(read_instances(instances)),
        data.gold,
        {name: prediction.patch for name, prediction in found.items()},
        mirrors=mirrors,
        root=root,
        convention=convention,
        counting=counting,
    )
    if as_json:
        click.echo(json.dumps(scores.as_json()))
        return
    click.echo(f"{'':10} {'n':>4} {'left out':>9} {'precision':>10} {'recall':>7} {'F1':>6} {'all found':>10}")
    for name, row in (("files", scores.files), ("functions", scores.functions)):
        values = (100 * row.precision, 100 * row.recall, 100 * row.f1, 100 * row.accuracy)
        click.echo("{:10} {:>4} {:>9} {:>10.1f} {:>7.1f} {:>6.1f} {:>10.1f}".format(name, row.n, row.excluded, *values))
    click.echo(f"convention {convention}, functions {counting}; {scores.missing} without a patch")
    for name, reason in scores.unapplied.items():
        click.echo(f"{name}: counted as no prediction: {reason}", err=True)


COMMANDS = (validate, grade, report, metrics)
