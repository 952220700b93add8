"""The commands of `xlocal swe` that make checkouts and localize in them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from xlocal.swe_options import FAILED, How, Rows, Where, errors_of, how, where

if TYPE_CHECKING:
    from xlocal.swe_pipeline.batch import Outcome, Step
    from xlocal.swe_pipeline.issue import Issue


@click.group()
def swe() -> None:
    """Prepare, run and measure issues of SWE-bench Lite, or of any repository.

    Work on many instances goes through a batch: what a former run did is not done again, one instance that fails stops
    no other, and Ctrl-C leaves all that was done. Exit codes: 0 all is well; 1 (validate) a patch does otherwise than
    it should; 2 the command cannot mean anything; 4 an instance failed, or a file cannot be read or written; 130
    interrupted.
    """


_Row = dict[str, Any]
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each instance, in a line.")


@swe.command()
@where
@how
@_JSON
def prepare(as_json: bool, **given: Any) -> None:
    """Clone and install instances.

    Leaves ROOT/INSTANCE/repo, the work tree at the base commit without later history, and ROOT/INSTANCE/python, a
    text file that names the interpreter of its environment. What is there already is not made again. Exits with 4
    when an instance could not be prepared; a further run tries it again.
    """
    from xlocal.swe_pipeline.steps import PrepareStep

    def row(outcome: Outcome, error: str | None) -> _Row:
        made = not outcome.before and bool((outcome.result or {}).get("made"))
        seconds = 0.0 if outcome.before else outcome.seconds
        return {"id": outcome.instance, "made": made, "seconds": seconds, "error": error}

    def text(row: _Row) -> str:
        return f"prepared ({row['seconds']:.1f} s)" if row["made"] else "was there"

    there, way = Where.taken(given), How.taken(given)
    _, issues = there.chosen()
    printed = _Printed("prepare", row, text, as_json)
    steps = [PrepareStep(there.workplace(), anew=True)]
    way.run(issues, steps, folder=there.root / "prepare", arguments=there.told(), told=printed.told)
    printed.end("prepared", issues, there.root)


@swe.command()
@where
@how
@_JSON
@click.option(
    "--pairs",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The scripts: DIR/INSTANCE/buggy*.py and DIR/INSTANCE/reference*.py.",
)
@click.option("--ranker", default="fused", show_default=True, metavar="NAME", help="As for `xlocal rank`.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Seconds that one run of a script may take.",
)
@click.option("--repeat", type=click.IntRange(min=1), default=2, show_default=True, help="Runs of each script.")
def localize(pairs: Path, ranker: str, timeout: float, repeat: int, *, as_json: bool, **given: Any) -> None:
    """Trace pairs of scripts inside the checkouts of instances, and rank.

    Prepares what is not prepared. Each instance keeps its session in ROOT/INSTANCE/session (read it with
    `xlocal rank --session`); ROOT/localization.json lists the first suspects of all. What is localized already is not
    traced again, unless its scripts, its checkout, its issue or the options changed since. Without --instances, those
    of the dataset that have a folder in --pairs. Exits with 4 when an instance could not be localized.
    """
    from xlocal.ranking.rank import get_ranker
    from xlocal.swe import LocalizeStep, row_of, write_table
    from xlocal.swe_pipeline.steps import PrepareStep

    def text(row: _Row) -> str:
        first = row["suspects"][0] if row["suspects"] else "no suspect"
        return f"{first}  (of {row['total']}, {row['seconds']:.1f} s)"

    get_ranker(ranker)  # an unknown name is refused before anything is made
    there, way = Where.taken(given), How.taken(given)
    _, issues = there.chosen(default=_paired(pairs))
    printed = _Printed("localize", row_of, text, as_json)
    workplace = there.workplace()
    step = LocalizeStep(pairs.absolute(), workplace, ranker, timeout, repeat)
    told = there.told(pairs=pairs, ranker=ranker, timeout=timeout, repeat=repeat)
    steps: list[Step] = [PrepareStep(workplace, anew=True), step]
    way.run(issues, steps, folder=there.root / "localize", arguments=told, told=printed.told)
    write_table(there.root, [printed.rows[issue.id] for issue in issues], ranker=ranker)
    printed.end("localized", issues, there.root)


class _Printed:
    """Prints a row for each instance when its step `step` is known, and keeps the rows by instance.

    `row` makes one of an outcome and the error of the instance, `text` what is printed of one without an error.
    """

    def __init__(
        self, step: str, row: Callable[[Outcome, str | None], _Row], text: Callable[[_Row], str], as_json: bool
    ) -> None:
        self.rows: dict[str, _Row] = {}
        self._step, self._row, self._text, self._json = step, row, text, as_json
        self._out = Rows()
        self._errors: dict[str, str] = {}

    def told(self, outcome: Outcome) -> None:
        """Hears of each outcome of the batch."""
        self._errors.update(errors_of([outcome]))
        if outcome.step == self._step:
            row = self.rows[outcome.instance] = self._row(outcome, self._errors.get(outcome.instance))
            text = self._text(row) if row["error"] is None else row["error"].removeprefix(f"{row['id']}: ")
            self._out.add(json.dumps(row) if self._json else f"{row['id']:34} {text}")

    def end(self, what: str, issues: Sequence[Issue], root: Path) -> NoReturn:
        """Say how many are `what`, and end with the exit code for that."""
        self._out.close()
        failed = sum(row["error"] is not None for row in self.rows.values())
        are = "instance is" if len(issues) == 1 else "instances are"
        click.echo(f"{len(issues) - failed} of {len(issues)} {are} {what} in {root}", err=True)
        sys.exit(FAILED if failed else 0)


def _paired(pairs: Path) -> str:
    from xlocal.tracer.errors import UsageError

    names = ",".join(sorted(folder.name for folder in pairs.iterdir() if folder.is_dir()))
    if not names:
        raise UsageError(f"--pairs {pairs}: holds no folder of an instance")
    return names
