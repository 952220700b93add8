"""The command that lets an agent solve many instances: `xlocal swe run`."""

from __future__ import annotations

import json
import shlex
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlocal.agent_options import (
    CANDIDATES,
    NOT_GREEN,
    UNSAFE,
    VARIANT,
    dollars,
    model_options,
    options,
    ranking_options,
)
from xlocal.swe_options import BACKEND, FAILED, How, Where, how, where

if TYPE_CHECKING:
    from xlocal.swe_pipeline.checkout import Workplace


@click.command("run")
@where
@BACKEND
@how
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True,
              help="The folder of the batch; an unfinished one is taken up.")  # fmt: skip
@click.option("--batch-budget", callback=dollars, metavar="$N", help="US dollars that the whole batch may cost.")
@click.option("--batch-tokens", type=click.IntRange(min=1), metavar="N", help="Tokens that the whole batch may use.")
@model_options
@VARIANT
@CANDIDATES
@ranking_options
@UNSAFE
def run_batch_command(out: Path, unsafe_local: bool, **given: Any) -> None:
    """Solve instances of SWE-bench, one recorded run for each.

    Leaves OUT/predictions.jsonl for `xlocal swe grade`, OUT/INSTANCE/agent with the trajectory, OUT/run.json with the
    costs, and OUT/report.json, which tell of all instances of the folder. A killed batch goes on where it was, each
    instance from its last step; so does an instance that a limit ended, when it is run with other limits. Exits with 4
    when an instance ended in an error, with 1 when limits ended all of them without a patch.
    """
    from xlocal.swe_pipeline.sandbox import require_sandbox
    from xlocal.swe_pipeline.solving import doing, nothing_within_limits, write_report

    if given["backend"] == "local" and not unsafe_local:
        require_sandbox()
    there, way = Where.taken(given), How.taken(given)
    _, issues = there.chosen()
    steps = _steps(there.workplace(), out=out.absolute(), unsafe_local=unsafe_local, **given)
    told = _told(steps[-1].options, unsafe_local=unsafe_local, **given)
    outcomes = way.run(
        issues, steps, folder=out, arguments={**_places(there), **told}, doing=lambda key: doing(out, key)
    )
    report = write_report(out, outcomes, model=str(given["model"]))
    click.echo(json.dumps(report, indent=1))
    if any(outcome.status != "done" for outcome in outcomes):
        sys.exit(FAILED)
    sys.exit(NOT_GREEN if nothing_within_limits(outcomes) else 0)


def _places(there: Where) -> dict[str, str]:
    """Which instances and where, for the manifest: by whole paths, which mean the same in another folder."""
    place = there.workplace()
    told = there.told(root=place.root, cache=place.cache, mirrors=place.mirrors)
    return {name: _whole(text) for name, text in told.items()}


def _whole(text: str) -> str:
    """The absolute path of a file or folder that is there; another text as it is."""
    return str(Path(text).absolute()) if Path(text).exists() else text


def _told(chosen: Any, *, backend: str, batch_budget: Any, batch_tokens: int | None, **given: Any) -> dict[str, str]:
    """The other options of a batch for its manifest, all limits among them; `none` is no limit."""
    limits = chosen.limits
    amounts = {
        "budget": limits.dollars,
        "tokens": limits.tokens,
        "seconds": limits.seconds,
        "batch_budget": batch_budget,
        "batch_tokens": batch_tokens,
        "reproduce_actions": limits.reproduce_actions,
        "repair_actions": limits.repair_actions,
    }
    names = ("model", "variant", "candidates", "ranker", "encoder", "top", "window", "unsafe_local")
    files = {"prices": given["prices"] and given["prices"].absolute()}
    others = {"backend": backend, **{name: given[name] for name in names}, **files}
    return {
        **{name: _whole(str(value)) for name, value in others.items() if value not in (None, False)},
        **{name: "none" if value is None else str(value) for name, value in amounts.items()},
    }


def batch_command(out: Path, *, without: str | None = None) -> str | None:
    """The command that goes on with the batch in a folder, less an option; None where there is no batch."""
    from xlocal.swe_pipeline.manifest import read_manifest

    manifest = read_manifest(out)
    if manifest is None or "solve" not in manifest["steps"]:
        return None
    words = ["xlocal", "swe", "run", "--out", str(out)]
    for option in run_batch_command.params:
        value = manifest["arguments"].get(option.name)
        name = max(option.opts, key=len)
        if value is None or name == without or value in ("none", str(option.default)):
            continue
        words += [name] if isinstance(option, click.Option) and option.is_flag else [name, value]
    return shlex.join(words)


def _steps(
    workplace: Workplace,
    *,
    backend: Any,
    batch_budget: Decimal | str | None,
    batch_tokens: int | None,
    unsafe_local: bool,
    out: Path,
    **given: Any,
) -> list[Any]:
    from xlocal.swe_pipeline.solving import BatchLimits, SolveStep
    from xlocal.swe_pipeline.steps import PrepareStep

    limits = BatchLimits(batch_budget if isinstance(batch_budget, Decimal) else None, batch_tokens)
    chosen = options(pair=None, batch_dollars=limits.dollars, **given)
    solving = SolveStep(chosen, workplace, limits, backend, unsafe_local, out)
    return [solving] if backend == "docker" else [PrepareStep(workplace), solving]


COMMANDS = (run_batch_command,)
