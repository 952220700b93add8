"""The commands of `xlocal swe`: SWE-bench Lite on this machine, from prepared checkouts to ranked suspects."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from xlocal.swe import Localized
    from xlocal.swe_pipeline.checkout import Workplace
    from xlocal.swe_pipeline.issue import Issue
    from xlocal.swe_pipeline.prepare import Prepared


@click.group()
def swe() -> None:
    """Prepare, run and measure issues of SWE-bench Lite, or of any repository."""


_DATASET = click.option(
    "--dataset",
    default="lite",
    show_default=True,
    metavar="FILE|NAME",
    help="A JSONL or JSON file of issues, or a dataset of the hub (lite: SWE-bench Lite).",
)
_MIRRORS = click.option(
    "--mirrors",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Bare repositories to fetch from, named OWNER__NAME.git.  [default: the repositories' own hosts]",
)
_INSTANCES = click.option("--instances", metavar="A,B,...|FILE", help="Which instances.  [default: all]")
_ROOT = click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".xlocal/swe"),
    show_default=True,
    help="The folder of the checkouts, one folder for each instance.",
)
_JOBS = click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="How many at a time.")


_CACHE = click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where environments are kept for all checkouts.  [default: swe in the cache folder of xlocal]",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each instance, in a line.")


@swe.command()
@_DATASET
@_MIRRORS
@_INSTANCES
@_ROOT
@_CACHE
@_JOBS
@_JSON
def prepare(root: Path, cache: Path | None, mirrors: Path | None, jobs: int, as_json: bool, **chosen: Any) -> None:
    """Clone and install instances.

    Leaves ROOT/INSTANCE/repo, the work tree at the base commit without later history, and ROOT/INSTANCE/python, a
    text file that names the interpreter of its environment. What is there already is not made again. Exits with 4
    when an instance could not be prepared.
    """
    from xlocal.swe_pipeline.prepare import prepare_all

    issues = _issues(**chosen)
    rows = prepare_all(issues, workplace=_workplace(root, cache, mirrors), jobs=jobs, progress=_say)
    failed = 0
    for row in rows:
        failed += row.error is not None
        _print_row(row, as_json, row.error or f"{'prepared' if row.made else 'was there'} ({row.seconds:.1f} s)")
    _say(f"{len(issues) - failed} of {len(issues)} instances are prepared in {root}")
    sys.exit(4 if failed else 0)


@swe.command()
@_DATASET
@_MIRRORS
@_INSTANCES
@_ROOT
@_CACHE
@_JOBS
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
def localize(pairs: Path, root: Path, cache: Path | None, mirrors: Path | None, as_json: bool, **given: Any) -> None:
    """Trace pairs of scripts inside the checkouts of instances, and rank.

    Prepares what is not prepared. Each instance keeps its session in ROOT/INSTANCE/session (read it with
    `xlocal rank --session`); ROOT/localization.json lists the first suspects of all. Without --instances, those of
    the dataset that have a folder in --pairs. Exits with 4 when an instance could not be localized.
    """
    from xlocal.swe import localize_all

    issues = _issues(given.pop("dataset"), given.pop("instances") or _paired(pairs))
    rows = localize_all(issues, pairs=pairs, workplace=_workplace(root, cache, mirrors), progress=_say, **given)
    failed = 0
    for row in rows:
        failed += row.error is not None
        first = row.suspects[0] if row.suspects else "no suspect"
        _print_row(row, as_json, row.error or f"{first}  (of {row.total}, {row.seconds:.1f} s)")
    _say(f"{len(issues) - failed} of {len(issues)} instances are localized in {root}")
    sys.exit(4 if failed else 0)


def _issues(dataset: str, instances: str | None) -> tuple[Issue, ...]:
    from xlocal.swe_pipeline.issue import load_dataset, read_instances

    return load_dataset(dataset).select(read_instances(instances))


def _paired(pairs: Path) -> str:
    return ",".join(sorted(folder.name for folder in pairs.iterdir() if "__" in folder.name))


def _workplace(root: Path, cache: Path | None, mirrors: Path | None) -> Workplace:
    from xlocal.demo import cache_folder
    from xlocal.swe_pipeline.checkout import Workplace

    return Workplace(root, cache or cache_folder() / "swe", mirrors)


def _print_row(row: Prepared | Localized, as_json: bool, text: str) -> None:
    """Each as soon as it is known: a run of hours is read while it goes on."""
    click.echo(json.dumps(dataclasses.asdict(row)) if as_json else f"{row.id:34} {text}")
    sys.stdout.flush()


def _say(text: str) -> None:
    click.echo(text, err=True)
