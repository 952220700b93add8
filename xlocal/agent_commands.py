"""The commands with agents: `xlocal reproduce`, `xlocal fix`, `xlocal trajectory`, `xlocal swe run`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xlocal.settings import RANKERS
from xlocal.tracer.errors import UsageError

if TYPE_CHECKING:
    from xlocal.swe_pipeline.agent import Progress
    from xlocal.swe_pipeline.solve import Options, Solution
    from xlocal.swe_pipeline.trajectory import Step
    from xlocal.swe_pipeline.workcopy import WorkCopy

_Command = TypeVar("_Command", bound=Callable[..., Any])
MODEL_VARIABLE = "XLOCAL_MODEL"
NOT_GREEN = 1


def _dollars(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Decimal | str | None:
    """`2`, `$2` or `0.50`; `none` for no limit."""
    if value is None or value.lower() == "none":
        return value and "none"
    try:
        dollars = Decimal(value.removeprefix("$"))
    except InvalidOperation:
        raise click.BadParameter(f"{value!r} is not an amount of US dollars such as 2 or $0.50, nor none") from None
    if not (dollars.is_finite() and dollars > 0):
        raise click.BadParameter(f"{value!r} is not more than 0")
    return dollars


def _model_options(command: _Command) -> _Command:
    for option in (
        click.option(
            "--context-window",
            "window",
            type=click.IntRange(min=1024),
            metavar="N",
            help="Tokens that the model takes, where neither its maker nor its server tells.",
        ),
        click.option(
            "--prices",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Prices of models that are not listed publicly, as TOML; see docs/agents.md.",
        ),
        click.option("--time", "seconds", type=click.FloatRange(min=1), default=3600.0, show_default=True, metavar="S",
                     help="Seconds that one issue may take."),
        click.option("--tokens", type=click.IntRange(min=1), default=5_000_000, show_default=True, metavar="N",
                     help="Tokens that one issue may use, input and output together."),
        click.option("--budget", callback=_dollars, metavar="$N|none",
                     help="US dollars that one issue may cost; nothing is asked that could cross it.  [default: $2 "
                     "where the model's price is known]"),
        click.option("--model", "model", envvar=MODEL_VARIABLE, show_envvar=True, metavar="M",
                     help="anthropic:NAME, openai:NAME, http://HOST/v1#NAME for any OpenAI-compatible server, or "
                     "scripted:FILE."),
    ):  # fmt: skip
        command = option(command)
    return command


def _ranking_options(command: _Command) -> _Command:
    for option in (
        click.option("--encoder", metavar="DIR", help="The encoder of the rankers that need one: a folder."),
        click.option("--ranker", type=click.Choice(RANKERS), default="fused", show_default=True,
                     help="How functions are ordered."),
        click.option("--top", type=click.IntRange(min=1), default=20, show_default=True,
                     help="How many suspects the model is shown."),
    ):  # fmt: skip
        command = option(command)
    return command


_VARIANT = click.option(
    "--variant",
    type=click.Choice(("vanilla", "localizer", "full")),
    default="full",
    show_default=True,
    help="vanilla: the issue alone; localizer: with ranked functions; full: with validation tests too.",
)
_CANDIDATES = click.option(
    "--candidates",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Repairs to make independently, until one passes all tests; the tests choose.",
)
_REPO = click.option(
    "--repo",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    show_default="the current folder",
    help="The git work tree; it is copied with its uncommitted changes, and never written to.",
)
_PYTHON = click.option(
    "--python",
    metavar="PATH",
    help="The project's interpreter.  [default: the active environment's, else xlocal's own]",
)
_RUN = click.option(
    "--run",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder that keeps the run.  [default: a new one in .xlocal/runs]",
)
_RESUME = click.option(
    "--resume", is_flag=True, help="Go on with the run in --run; what is recorded is not billed again."
)
_STEP = click.option("--step", type=click.IntRange(min=0), metavar="N", help="With --resume: go on from this step.")
_UNSAFE = click.option(
    "--unsafe-local",
    is_flag=True,
    help="Run what the model writes without a sandbox, with all that your user may do.",
)
_PAIR = click.option(
    "--pair",
    nargs=2,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="BUGGY REFERENCE",
    help="Scripts that show the bug and correct behaviour, instead of having them written.",
)


@click.command()
@click.argument("issue", metavar="ISSUE")
@_REPO
@_PYTHON
@_model_options
@_ranking_options
@_RUN
@_RESUME
@_STEP
@_UNSAFE
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reproduce(issue: str, as_json: bool, **given: Any) -> None:
    """Write a script that shows the bug of an issue and one that does not, and rank the functions.

    ISSUE is a file, - for standard input, or the address of a GitHub issue. The scripts stay in RUN/scripts, for
    `xlocal trace`; `xlocal fix --resume --run RUN` goes on to a repair. Exits with 1 when no pair could be made; the
    functions are then chosen by the model from the text alone, which is said.
    """
    solution, folder = _work(issue, stop_after="reproduce", variant="full", candidates=1, pair=None, **given)
    found = solution.reproduction
    if as_json:
        click.echo(json.dumps({"run": str(folder), **solution.as_json()}, indent=1))
    else:
        if found is not None and found.pair is not None:
            for name in found.pair.scripts():
                click.echo(str(folder / "scripts" / name))
        for number, lead in enumerate(found.leads.leads[: given["top"]] if found is not None else (), 1):
            reason = lead.reasons[0] if lead.reasons else "executed in the buggy run"
            click.echo(f"{number:3} {lead.path}:{lead.line} {lead.qualname}: {reason}")
    _tell(solution, folder)
    sys.exit(0 if found is not None and found.pair is not None else NOT_GREEN)


@click.command()
@click.argument("issue", metavar="ISSUE")
@_REPO
@_PAIR
@_PYTHON
@_model_options
@_VARIANT
@_CANDIDATES
@_ranking_options
@_RUN
@_RESUME
@_STEP
@_UNSAFE
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the patch.")
def fix(issue: str, as_json: bool, **given: Any) -> None:
    """Repair the bug that an issue describes; prints the patch.

    ISSUE is a file, - for standard input, or the address of a GitHub issue. The model works on a copy of the
    repository, in a sandbox without network; apply the patch yourself, with `git apply`. Everything is kept in the
    run's folder, after each step. Exits with 0 when the patch passes all tests, with 1 when there is none that does
    (the best one is printed all the same).
    """
    solution, folder = _work(issue, stop_after=None, **given)
    if as_json:
        click.echo(json.dumps({"run": str(folder), "patch": solution.diff, **solution.as_json()}, indent=1))
    else:
        sys.stdout.write(solution.diff)
    _tell(solution, folder)
    sys.exit(0 if solution.green else NOT_GREEN)


def _work(
    issue: str,
    *,
    repo: Path,
    python: str | None,
    folder: Path | None,
    resume: bool,
    step: int | None,
    unsafe_local: bool,
    **given: Any,
) -> tuple[Solution, Path]:
    from xlocal.swe_pipeline.existing import ExistingTests
    from xlocal.swe_pipeline.solve import solve

    if (resume and folder is None) or (step is not None and not resume):
        raise UsageError("--resume needs the folder of the run (--run DIR), and --step needs --resume")
    options = _options(**given)
    statement = _statement(issue)
    copy, folder = _copy(statement, repo, folder, python=python, resume=resume)
    checkout = _confined(copy, unsafe_local, options.encoder)
    _say(f"the run is kept in {folder}")
    with _shown() as progress:
        solution = solve(
            checkout,
            folder=folder,
            options=options,
            regression=ExistingTests(),
            resume=resume,
            step=step,
            progress=progress,
            say=_say,
        )
    return solution, folder


def _confined(copy: WorkCopy, unsafe_local: bool, encoder: str | None = None) -> Any:
    from xlocal.swe_pipeline.sandbox import confine

    if unsafe_local:
        _say("warning: --unsafe-local: what the model writes runs with all that your user may do, network included")
        return confine(copy, unsafe_local=True)
    readable = [Path(encoder).absolute()] if encoder and Path(encoder).is_dir() else []
    return confine(copy, mount=copy.original, import_paths=copy.import_paths, readable=readable)


def _copy(
    statement: str, repo: Path, folder: Path | None, *, python: str | None, resume: bool
) -> tuple[WorkCopy, Path]:
    from xlocal.cli import _default_python
    from xlocal.swe_pipeline.workcopy import WorkCopy, find_work_tree, slug

    original = find_work_tree(repo)
    if folder is None:
        folder = _fresh(original / ".xlocal" / "runs", slug(original, statement))
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    # Neither git nor our own copy of the work tree shall see it, wherever it lies.
    (folder / ".gitignore").write_text("*\n", "utf-8")
    interpreter = python or _default_python()
    copy = WorkCopy(statement, repository=original, folder=folder / "work", python=interpreter)
    if resume:
        copy.reopen()
        return copy, folder
    copy.prepare()
    facts = {"repository": str(original), "statement": statement, "python": interpreter}
    (folder / "work.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    return copy, folder


def _fresh(parent: Path, name: str) -> Path:
    number = 1
    while (found := parent / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return found


def _statement(issue: str) -> str:
    from xlocal.question import read_issue
    from xlocal.swe_pipeline.github import fetch_issue, is_issue_address

    if is_issue_address(issue):
        return fetch_issue(issue)
    text, doubts = read_issue(issue)
    for doubt in doubts:
        _say(f"warning: {doubt.text}")
    if text is None:
        raise UsageError(f"{issue}: holds no text; describe the bug")
    return text


def _options(
    *,
    model: str | None,
    budget: Decimal | str | None,
    tokens: int,
    seconds: float,
    prices: Path | None,
    pair: tuple[Path, Path] | None,
    **given: Any,
) -> Options:
    from xlocal.swe_pipeline.limits import Limits
    from xlocal.swe_pipeline.models import parse_model, pricing_of
    from xlocal.swe_pipeline.prices import read_prices
    from xlocal.swe_pipeline.reproduce import ScriptPair, similarity
    from xlocal.swe_pipeline.solve import Options

    if not model:
        raise UsageError(f"name a model with --model or {MODEL_VARIABLE}; docs/agents.md tells how to reach each")
    known = read_prices(prices) if prices is not None else {}
    dollars: Decimal | None = budget if isinstance(budget, Decimal) else None
    if budget is None:
        if pricing_of(parse_model(model), known) is not None:
            dollars = Decimal(2)
        else:
            _say(f"warning: the price of {model} is not known: only tokens and time are limited (--prices gives one)")
    scripts = None
    if pair:
        buggy, reference = (file.read_text("utf-8") for file in pair)
        scripts = ScriptPair(buggy, (reference,), "", (), (round(similarity(buggy, reference), 3),))
    limits = Limits(dollars=dollars, tokens=tokens, seconds=seconds)
    return Options(model=model, limits=limits, prices=known, pair=scripts, **given)


@contextlib.contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """One live line on a terminal; else a line for each new phase or suspect and every tenth step, on stderr."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    if console.is_terminal:
        with console.status("starting") as status:
            yield lambda progress: status.update(progress.line())
        return
    told: set[tuple[str, str, int]] = set()

    def tell(progress: Progress) -> None:
        key = (progress.phase, progress.suspect, progress.step // 10)
        if key not in told:
            told.add(key)
            _say(progress.line())

    yield tell


def _tell(solution: Solution, folder: Path) -> None:
    """The verdict and the cost, for people."""
    from xlocal.swe_pipeline.limits import money

    spent = solution.spent
    found = solution.reproduction
    if found is not None and found.why_not:
        _say(f"localized without comparing runs: {found.why_not}")
    if found is not None:
        _say(f"suspects from {found.leads.how}")
    for dropped in solution.dropped:
        _say(f"test left out: {dropped.name}: {dropped.why}")
    if solution.patch is not None:
        before = solution.before.summary() if solution.before is not None else "?"
        _say(f"before: {before}\nafter:  {solution.patch.results.summary()}")
        if solution.patch.left_out:
            _say(f"left out of the patch: {', '.join(solution.patch.left_out)}")
    _say(f"ended: {solution.ended}")
    cached = f", {spent.cached_tokens} of them cached" if spent.cached_tokens else ""
    failed = f" and {spent.failed_calls} failed" if spent.failed_calls else ""
    _say(
        f"cost: ${money(spent.dollars)}, {spent.input_tokens} tokens in{cached}, {spent.output_tokens} out, "
        f"{spent.calls} calls{failed}, {spent.actions} actions, {spent.seconds:.0f} s; all steps are in {folder}"
    )


@click.group()
def trajectory() -> None:
    """Read what an agent did, or follow it again without a model."""


@trajectory.command()
@click.argument("run", type=click.Path(exists=True, path_type=Path))
@click.option("--phase", help="Only this phase: reproduce, judge, context, augment, repair, ...")
@click.option("--full", is_flag=True, help="Show requests and results whole.")
@click.option("--json", "as_json", is_flag=True, help="Print the steps as they are kept, one JSON object in a line.")
def show(run: Path, phase: str | None, full: bool, as_json: bool) -> None:
    """Print the steps of a run: its folder, or its trajectory.jsonl."""
    from xlocal.swe_pipeline.trajectory import FILE, read_trajectory

    record = read_trajectory(run / FILE if run.is_dir() else run)
    if not as_json:
        click.echo(" ".join(f"{key}={record.header[key]}" for key in ("issue", "model", "variant", "ranker", "base")))
    for step in record.steps:
        if phase is None or step.phase == phase:
            click.echo(json.dumps(step.as_json()) if as_json else _step_text(step, full))
    if record.cut:
        _say("the last line was cut off by a crash")


def _step_text(step: Step, full: bool) -> str:
    request, result = (_readable(value) for value in (step.request, step.result))
    if not full:
        request, result = (_brief(text) for text in (request, result))
    used = ""
    if step.used is not None:
        estimated = ", estimated" if step.used["estimated"] else ""
        used = f" ({step.used['input_tokens']}+{step.used['output_tokens']} tokens, ${step.used['dollars']}{estimated})"
    head = f"{step.number:4} {step.elapsed:8.1f} s  {step.phase}: {step.kind}{used}"
    return "\n".join([head, *(f"       {line}" for text in (request, result) for line in text.splitlines())])


def _readable(value: Any) -> str:
    """A model's answer as its texts and calls, a tool's answer as it is, anything else as JSON."""
    if isinstance(value, dict) and value.get("kind") == "response":
        parts = []
        for part in value["parts"]:
            if part["part_kind"] == "tool-call":
                arguments = part["args"] if isinstance(part["args"], str) else json.dumps(part["args"])
                parts.append(f"-> {part['tool_name']} {arguments}")
            else:
                parts.append(str(part.get("content", "")))
        return "\n".join(parts)
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _brief(text: str) -> str:
    lines = [line if len(line) <= 200 else line[:197] + "..." for line in text.splitlines()]
    return "\n".join(lines if len(lines) <= 8 else [*lines[:6], f"... ({len(lines) - 7} lines)", lines[-1]])


@trajectory.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--root", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="For an instance of a batch: the folder of the checkouts.")  # fmt: skip
@click.option("--dataset", default="lite", show_default=True, metavar="FILE|NAME", help="With --root: its dataset.")
@_UNSAFE
def replay(run: Path, root: Path | None, dataset: str, unsafe_local: bool) -> None:
    """Follow a run again without a model: its answers are taken from the record, its tools work anew.

    The new record is kept in RUN/replay. Prints the patch; exits with 1 when it is another patch, or something else
    came out otherwise, which is told.
    """
    from xlocal.swe_pipeline.existing import ExistingTests
    from xlocal.swe_pipeline.solve import PATCH
    from xlocal.swe_pipeline.solve import replay as follow

    checkout = _instance(run, root, dataset, unsafe_local) if root is not None else _own(run, unsafe_local)
    with _shown() as progress:
        solution = follow(
            checkout, source=run, folder=_fresh(run, "replay"), regression=ExistingTests(), progress=progress
        )
    former = (run / PATCH).read_text("utf-8") if (run / PATCH).exists() else ""
    for difference in solution.differences:
        _say(f"differs: {difference}")
    sys.stdout.write(solution.diff)
    same = solution.diff == former
    _say("the patch is the same" if same else "the patch is another one")
    sys.exit(0 if same and not solution.differences else NOT_GREEN)


def _own(run: Path, unsafe_local: bool) -> Any:
    from xlocal.swe_pipeline.workcopy import WorkCopy

    try:
        facts = json.loads((run / "work.json").read_text("utf-8"))
    except (OSError, ValueError):
        raise UsageError(f"{run}: is no run of xlocal fix; for one of a batch give --root") from None
    copy = WorkCopy(
        facts["statement"], repository=Path(facts["repository"]), folder=run.absolute() / "work", python=facts["python"]
    )
    copy.reopen()
    return _confined(copy, unsafe_local)


def _instance(run: Path, root: Path, dataset: str, unsafe_local: bool) -> Any:
    from xlocal.demo import cache_folder
    from xlocal.swe_pipeline.checkout import LocalCheckout, Workplace
    from xlocal.swe_pipeline.issue import load_dataset
    from xlocal.swe_pipeline.sandbox import confine
    from xlocal.swe_pipeline.trajectory import FILE, read_trajectory

    name = str(read_trajectory(run / FILE).header["issue"])
    (issue,) = load_dataset(dataset).select((name,))
    return confine(LocalCheckout(issue, Workplace(root, cache_folder() / "swe")), unsafe_local=unsafe_local)


@click.command("run")
@click.option("--dataset", default="lite", show_default=True, metavar="FILE|NAME",
              help="A JSONL or JSON file of issues, or a dataset of the hub (lite: SWE-bench Lite).")  # fmt: skip
@click.option("--instances", metavar="A,B,...|FILE", help="Which instances.  [default: all]")
@click.option("--mirrors", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
              help="Bare repositories to fetch from, named OWNER__NAME.git.")  # fmt: skip
@click.option("--root", type=click.Path(file_okay=False, path_type=Path), default=Path(".xlocal/swe"),
              show_default=True, help="The folder of the checkouts.")  # fmt: skip
@click.option("--cache", type=click.Path(file_okay=False, path_type=Path),
              help="Where environments are kept.  [default: swe in the cache folder of xlocal]")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True,
              help="The folder of the batch; an unfinished one is taken up.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="How many at a time.")
@click.option("--batch-budget", callback=_dollars, metavar="$N", help="US dollars that the whole batch may cost.")
@click.option("--batch-tokens", type=click.IntRange(min=1), metavar="N", help="Tokens that the whole batch may use.")
@click.option("--backend", type=click.Choice(("local", "docker")), default="local", show_default=True,
              help="Where commands run: in local sandboxes, or in containers of the official images.")  # fmt: skip
@_model_options
@_VARIANT
@_CANDIDATES
@_ranking_options
@_UNSAFE
@click.option("--again", is_flag=True, help="Do work again that failed in a former run.")
def run_batch_command(out: Path, unsafe_local: bool, again: bool, jobs: int, **given: Any) -> None:
    """Solve instances of SWE-bench, one recorded run for each.

    Leaves OUT/predictions.jsonl for `xlocal swe grade`, OUT/INSTANCE/agent with the trajectory, OUT/run.json with the
    costs, and OUT/report.json. A killed batch goes on where it was, each instance from its last step. Exits with 4
    when an instance ended in an error.
    """
    from rich.console import Console

    from xlocal.swe_pipeline import batch
    from xlocal.swe_pipeline.engines import LocalEngine
    from xlocal.swe_pipeline.issue import load_dataset, read_instances
    from xlocal.swe_pipeline.sandbox import sandbox_problem
    from xlocal.swe_pipeline.solving import write_report
    from xlocal.swe_progress import shown

    problem = sandbox_problem()
    if given["backend"] == "local" and not unsafe_local and problem is not None:
        raise UsageError(f"commands of a model need a sandbox, and {problem}: install it, or use --unsafe-local")
    issues = load_dataset(given.pop("dataset")).select(read_instances(given.pop("instances")))
    told = {"model": given["model"], "budget": str(given["budget"]), "variant": given["variant"]}
    told["batch_budget"] = str(given["batch_budget"])
    steps = _steps(unsafe_local=unsafe_local, **given)
    with shown(Console(stderr=True)) as (tell, progress):
        outcomes = batch.run_batch(
            issues,
            steps,
            folder=out,
            engine=LocalEngine(jobs),
            options=batch.Options(again=again),
            arguments=told,
            told=tell,
            progress=progress,
        )
    report = write_report(out, outcomes, model=str(given["model"]))
    click.echo(json.dumps(report, indent=1))
    sys.exit(4 if report["errors"] else 0)


def _steps(
    *,
    root: Path,
    cache: Path | None,
    mirrors: Path | None,
    backend: Any,
    batch_budget: Decimal | str | None,
    batch_tokens: int | None,
    unsafe_local: bool,
    **given: Any,
) -> list[Any]:
    from xlocal.demo import cache_folder
    from xlocal.swe_pipeline.checkout import Workplace
    from xlocal.swe_pipeline.solving import BatchLimits, SolveStep
    from xlocal.swe_pipeline.steps import PrepareStep

    workplace = Workplace(root, cache or cache_folder() / "swe", mirrors)
    limits = BatchLimits(batch_budget if isinstance(batch_budget, Decimal) else None, batch_tokens)
    solving = SolveStep(_options(pair=None, **given), workplace, limits, backend, unsafe_local)
    return [solving] if backend == "docker" else [PrepareStep(workplace), solving]


def _say(text: str) -> None:
    click.echo(text, err=True)


COMMANDS = (reproduce, fix, trajectory)
SWE_COMMANDS = (run_batch_command,)
