"""What the commands of `xlocal swe` share: options that say which instances, where and how, and running a batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xlocal.tracer.errors import UsageError

if TYPE_CHECKING:
    from xlocal.swe_pipeline.batch import Outcome, Step
    from xlocal.swe_pipeline.checkout import Workplace
    from xlocal.swe_pipeline.engines import Engine, Key
    from xlocal.swe_pipeline.issue import Dataset, Issue

Command = TypeVar("Command", bound=Callable[..., Any])
FAILED = 4

DATASET = click.option(
    "--dataset",
    default="lite",
    show_default=True,
    metavar="FILE|NAME",
    help="A JSONL or JSON file of issues, or a dataset of the hub (lite: SWE-bench Lite).",
)
INSTANCES = click.option("--instances", metavar="A,B,...|FILE", help="Which instances.  [default: all]")
MIRRORS = click.option(
    "--mirrors",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Bare repositories to fetch from, named OWNER__NAME.git.  [default: the repositories' own hosts]",
)
ROOT = click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".xlocal/swe"),
    show_default=True,
    help="The folder of the checkouts, one folder for each instance.",
)
CACHE = click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where environments are kept for all checkouts.  [default: swe in the cache folder of xlocal]",
)
WORKERS = click.option(
    "--workers",
    "--jobs",
    "workers",
    type=click.IntRange(min=1),
    help="How many instances at a time.  [default: 1; with ray, as many as the cluster has processors]",
)
RETRIES = click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Further attempts after a fault of the infrastructure (network, disk, a machine that is gone).",
)
AGAIN = click.option(
    "--again", is_flag=True, help="Do again what failed in a former run.  [default: its result stands]"
)
ENGINE = click.option(
    "--engine",
    "engine_name",
    type=click.Choice(("local", "ray")),
    default="local",
    show_default=True,
    help="Processes of this machine, or tasks of a Ray cluster.",
)
RAY_ADDRESS = click.option(
    "--ray-address", metavar="HOST:PORT|auto", help="A running Ray cluster.  [default: start one here]"
)
BACKEND = click.option(
    "--backend",
    type=click.Choice(("local", "docker")),
    default="local",
    show_default=True,
    help="Prepared checkouts of this machine, or containers of the benchmark's images.",
)


def where(command: Command) -> Command:
    """The options that say which instances, and where their checkouts are."""
    return _all(command, DATASET, INSTANCES, MIRRORS, ROOT, CACHE)


def how(command: Command) -> Command:
    """The options of every batch: how many at a time, on what, and what is tried again."""
    return _all(command, WORKERS, RETRIES, AGAIN, ENGINE, RAY_ADDRESS)


def _all(command: Command, *options: Callable[[Any], Any]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Where:
    """The values of the options of `where`."""

    dataset: str
    instances: str | None
    mirrors: Path | None
    root: Path
    cache: Path | None

    @classmethod
    def taken(cls, given: dict[str, Any]) -> Where:
        """Take them out of a command's arguments."""
        return cls(**{item.name: given.pop(item.name) for item in fields(cls)})

    def chosen(self, *, default: str | None = None) -> tuple[Dataset, tuple[Issue, ...]]:
        """The dataset, and the issues of it that `--instances` names, else `default`, else all."""
        from xlocal.swe_pipeline.issue import load_dataset, read_instances

        data = load_dataset(self.dataset)
        return data, data.select(read_instances(default if self.instances is None else self.instances))

    def workplace(self) -> Workplace:
        """Where checkouts are; absolute, since the workers of a cluster stand in folders of their own."""
        from xlocal.demo import cache_folder
        from xlocal.swe_pipeline.checkout import Workplace

        mirrors = self.mirrors.absolute() if self.mirrors is not None else None
        return Workplace(self.root.absolute(), (self.cache or cache_folder() / "swe").absolute(), mirrors)

    def told(self, **more: Any) -> dict[str, str]:
        """For the manifest of a batch: these options and others, less those not given."""
        return {name: str(value) for name, value in {**asdict(self), **more}.items() if value is not None}


@dataclass(frozen=True, slots=True)
class How:
    """The values of the options of `how`."""

    workers: int | None
    retries: int
    again: bool
    engine_name: str
    ray_address: str | None

    @classmethod
    def taken(cls, given: dict[str, Any]) -> How:
        """Take them out of a command's arguments."""
        return cls(**{item.name: given.pop(item.name) for item in fields(cls)})

    def run(
        self,
        issues: Sequence[Issue],
        steps: Sequence[Step],
        *,
        folder: Path,
        arguments: Mapping[str, str],
        told: Callable[[Outcome], None] = lambda outcome: None,
        doing: Callable[[Key], str] = lambda key: "",
    ) -> tuple[Outcome, ...]:
        """Run a batch and show its progress on stderr; `arguments` go to its manifest, `told` hears of each outcome.

        `doing` says what a running job is doing, in one line, empty where nothing is known.
        """
        from rich.console import Console

        from xlocal.swe_pipeline.batch import Options, run_batch
        from xlocal.swe_progress import shown

        engine = self._engine()
        with shown(Console(stderr=True), doing=doing) as (tell, progress):

            def tell_both(outcome: Outcome) -> None:
                tell(outcome)
                told(outcome)

            try:
                return run_batch(
                    issues,
                    steps,
                    folder=folder.absolute(),
                    engine=engine,
                    options=Options(retries=self.retries, again=self.again),
                    arguments=arguments,
                    told=tell_both,
                    progress=progress,
                )
            except KeyboardInterrupt:
                # The last line on stderr tells how to go on.
                raise KeyboardInterrupt("what was done is kept, and the same command goes on from there") from None

    def _engine(self) -> Engine:
        if self.engine_name == "ray":
            from xlocal.swe_pipeline.ray_engine import RayEngine

            return RayEngine(address=self.ray_address, workers=self.workers)
        if self.ray_address is not None:
            raise UsageError("--ray-address: needs --engine ray")
        from xlocal.swe_pipeline.engines import LocalEngine

        return LocalEngine(self.workers or 1)


class Rows:
    """Prints a row for each instance on stdout: each as it comes, for a run of hours is read while it goes on.

    On a terminal they wait for the end, since the live table stands there.
    """

    def __init__(self) -> None:
        self._waiting: list[str] | None = [] if sys.stdout.isatty() and sys.stderr.isatty() else None

    def add(self, text: str) -> None:
        """Print a row, now or at the end."""
        if self._waiting is None:
            click.echo(text)
            sys.stdout.flush()
        else:
            self._waiting.append(text)

    def close(self) -> None:
        """Print what waits."""
        for text in self._waiting or ():
            click.echo(text)


def errors_of(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Why instances did not come to their end, by instance."""
    return {each.instance: each.error for each in outcomes if each.error is not None and each.status != "skipped"}
