"""The commands that let an agent work on one issue: `xlocal reproduce` and `xlocal fix`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from xlocal.agent_options import (
    CANDIDATES,
    NOT_GREEN,
    UNSAFE,
    VARIANT,
    limiting_option,
    model_options,
    options,
    ranking_options,
    say,
    shown,
)
from xlocal.tracer.errors import UsageError

if TYPE_CHECKING:
    from xlocal.swe_pipeline.solve import Solution
    from xlocal.swe_pipeline.workcopy import WorkCopy

_LISTED = 6  # failing tests that are named
FACTS = "work.json"  # in a run's folder: the repository, the interpreter, the issue's text and options
# Options that a run keeps: there, and those that steer what is asked in the head of its record.
_KEPT = ("budget", "tokens", "seconds", "prices", "window")
_STEERING = ("model", "variant", "ranker", "encoder", "top", "candidates")

_REPO = click.option(
    "--repo",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The git work tree; it is copied with its uncommitted changes, and never written to.  [default: around the "
    "current folder]",
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
    "--resume",
    is_flag=True,
    help="Go on with the run in --run, whose issue and repository are known; what is recorded is not billed again.",
)
_STEP = click.option("--step", type=click.IntRange(min=0), metavar="N", help="With --resume: go on from this step.")
_PAIR = click.option(
    "--pair",
    nargs=2,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="BUGGY REFERENCE",
    help="Scripts that show the bug and correct behaviour, instead of having them written.",
)


@click.command()
@click.argument("issue", metavar="ISSUE", required=False)
@_REPO
@_PYTHON
@model_options
@ranking_options
@_RUN
@_RESUME
@_STEP
@UNSAFE
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reproduce(issue: str | None, as_json: bool, **given: Any) -> None:
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
@click.argument("issue", metavar="ISSUE", required=False)
@_REPO
@_PAIR
@_PYTHON
@model_options
@VARIANT
@CANDIDATES
@ranking_options
@_RUN
@_RESUME
@_STEP
@UNSAFE
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the patch.")
def fix(issue: str | None, as_json: bool, **given: Any) -> None:
    """Repair the bug that an issue describes; prints the patch.

    ISSUE is a file, - for standard input, or the address of a GitHub issue. The model works on a copy of the
    repository, in a sandbox without network; apply the patch yourself, with `git apply`. Everything is kept in the
    run's folder, after each step. Exits with 0 when the patch passes all tests and one of them failed without it, with
    1 when there is no such patch: none, one that fails a test, or one that is unproven, since no test shows the bug
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
    issue: str | None,
    *,
    repo: Path | None,
    python: str | None,
    folder: Path | None,
    resume: bool,
    step: int | None,
    unsafe_local: bool,
    **given: Any,
) -> tuple[Solution, Path]:
    from xlocal.swe_pipeline.existing import ExistingTests
    from xlocal.swe_pipeline.sandbox import require_sandbox
    from xlocal.swe_pipeline.solve import solve

    if (resume and folder is None) or (step is not None and not resume):
        raise UsageError("--resume needs the folder of the run (--run DIR), and --step needs --resume")
    if issue is None and not resume:
        raise UsageError("name the ISSUE: a file, - for standard input, or the address of a GitHub issue")
    if resume and folder is not None:
        given = _taken_up(folder, given)
    chosen = options(**given)
    statement = None if issue is None else _statement(issue)
    if resume and folder is not None:
        copy, folder = reopened(folder, statement=statement, repo=repo, python=python), folder.absolute()
        checkout = confined(copy, unsafe_local, chosen.encoder)
    else:
        if not unsafe_local:
            require_sandbox()
        kept = {**{name: given[name] for name in _KEPT}, "unsafe_local": unsafe_local}
        copy, folder = _copied(statement or "", repo or Path(), folder, python=python, kept=kept)
        checkout = confined(copy, unsafe_local, chosen.encoder)
    say(f"the run is kept in {folder}")
    kept_in = folder

    def told_failed(solution: Solution) -> None:
        _tell_cost(solution, kept_in)
        say(f"next: `{resume_command(kept_in)}` goes on when the cause is mended")

    with shown() as progress:
        try:
            solution = solve(
                checkout,
                folder=folder,
                options=chosen,
                regression=ExistingTests(),
                resume=resume,
                step=step,
                progress=progress,
                say=say,
                failed=told_failed,
            )
        except KeyboardInterrupt:
            # The last line on stderr tells how to go on.
            raise KeyboardInterrupt(f"what was done is kept; `{resume_command(folder)}` goes on from there") from None
    return solution, folder


def confined(copy: WorkCopy, unsafe_local: bool, encoder: str | None = None) -> Any:
    """The copy in its sandbox, at the place of the original; with `unsafe_local` as it is, and a warning."""
    from xlocal.swe_pipeline.sandbox import confine

    if unsafe_local:
        say("warning: --unsafe-local: what the model writes runs with all that your user may do, network included")
        return confine(copy, unsafe_local=True)
    readable = [Path(encoder).absolute()] if encoder and Path(encoder).is_dir() else []
    return confine(copy, mount=copy.original, import_paths=copy.import_paths, readable=readable)


def _taken_up(run: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a run that goes on: those given on the command line, all others as the run was made with."""
    from xlocal.swe_pipeline.options import scripts_of
    from xlocal.swe_pipeline.trajectory import FILE, read_trajectory

    kept = dict(_facts(run).get("options", {}))
    if kept.get("prices") is not None:
        kept["prices"] = Path(kept["prices"])
    if kept.get("budget") not in (None, "none"):
        kept["budget"] = Decimal(kept["budget"])
    header = read_trajectory(run / FILE).header if (run / FILE).is_file() else {}
    context = click.get_current_context()
    explicit = {name for name in given if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    found = {**kept, **{name: header[name] for name in _STEERING if name in header}}
    taken = {name: value if name in explicit else found.get(name, value) for name, value in given.items()}
    return taken if "pair" in explicit else {**taken, "scripts": scripts_of(header)}


def _facts(run: Path) -> dict[str, Any]:
    try:
        facts = json.loads((run / FACTS).read_text("utf-8"))
    except (OSError, ValueError):
        facts = None
    if not isinstance(facts, dict):
        raise UsageError(f"{run}: holds no run of xlocal fix or reproduce")
    return facts


def resume_command(run: Path) -> str:
    """The command that goes on with a run; its other options are known from the run."""
    unsafe = _facts(run).get("options", {}).get("unsafe_local") if (run / FACTS).is_file() else False
    return f"xlocal fix --resume --run {shlex.quote(str(run))}" + (" --unsafe-local" if unsafe else "")


def _copied(
    statement: str, repo: Path, folder: Path | None, *, python: str | None, kept: Mapping[str, Any]
) -> tuple[WorkCopy, Path]:
    """A copy of the user's repository in a new run's folder. Raises UsageError for a folder that holds something."""
    from xlocal.cli import _default_python
    from xlocal.swe_pipeline.trajectory import FILE
    from xlocal.swe_pipeline.workcopy import WorkCopy, find_work_tree, slug
    from xlocal.tracer.launch import find_python

    original = find_work_tree(repo)
    interpreter = python or _default_python()
    find_python(interpreter)
    if folder is None:
        folder = fresh(original / ".xlocal" / "runs", slug(original, statement))
    folder = folder.absolute()
    if (folder / FILE).is_file():
        raise UsageError(f"{folder}: holds a run already; go on with it (--resume) or choose another folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FACTS).is_file():
        raise UsageError(f"--run {folder}: holds something else; choose a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    # Neither git nor our own copy of the work tree shall see it, wherever it lies.
    (folder / ".gitignore").write_text("*\n", "utf-8")
    told = {name: str(v.absolute()) if isinstance(v, Path) else v for name, v in kept.items()}
    facts = {"repository": str(original), "statement": statement, "python": interpreter, "options": told}
    (folder / FACTS).write_text(json.dumps(facts, indent=1, default=str) + "\n", "utf-8")
    copy = WorkCopy(statement, repository=original, folder=folder / "work", python=interpreter)
    copy.prepare()
    return copy, folder


def reopened(
    run: Path, *, statement: str | None = None, repo: Path | None = None, python: str | None = None
) -> WorkCopy:
    """The copy that a run of `xlocal fix` works on, as it was made. What is given must be what the run is of."""
    from xlocal.swe_pipeline.workcopy import WorkCopy, find_work_tree

    facts = _facts(run)
    try:
        original = Path(facts["repository"])
        known = str(facts["statement"])
        interpreter = python or str(facts["python"])
    except (KeyError, TypeError):
        raise UsageError(f"{run}: holds no run of xlocal fix or reproduce") from None
    if statement is not None and statement != known:
        raise UsageError(f"{run}: is a run of another issue; leave ISSUE out to go on with its own")
    if repo is not None and find_work_tree(repo) != original:
        raise UsageError(f"--repo {repo}: {run} is a run of {original}; leave --repo out to go on with it")
    copy = WorkCopy(known, repository=original, folder=run.absolute() / "work", python=interpreter)
    copy.reopen()
    return copy


def fresh(parent: Path, name: str) -> Path:
    """A folder that is not there yet: NAME, NAME-2, NAME-3..."""
    number = 1
    while (found := parent / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return found


def _statement(issue: str) -> str:
    from xlocal.question import read_issue
    from xlocal.swe_pipeline.github import fetch_issue, is_issue_address

    if is_issue_address(issue):
        return fetch_issue(issue)
    text, doubts = read_issue(issue, option="ISSUE")
    name = "standard input" if issue == "-" else issue
    if any(doubt.slug == "issue-encoding" for doubt in doubts):
        # Worth a warning where nothing is paid for, as by `xlocal rank`.
        raise UsageError(f"ISSUE {name}: is not UTF-8 text; save it as UTF-8, or name the right file")
    if text is None:
        raise UsageError(f"ISSUE {name}: holds no text; describe the bug")
    for doubt in doubts:
        say(f"warning: {doubt.text}")
    return text


def _tell(solution: Solution, folder: Path) -> None:
    """The verdict and the cost, for people."""
    found = solution.reproduction
    if found is not None and found.why_not:
        say(f"localized without comparing runs: {found.why_not}")
    if found is not None:
        say(f"suspects from {found.leads.how}")
    for dropped in solution.dropped:
        say(f"test left out: {dropped.name}: {dropped.why}")
    if solution.chosen_how:
        say(f"existing tests: {', '.join(solution.existing) or 'none'} (chosen {solution.chosen_how})")
    if solution.patch is not None:
        before = solution.before.summary() if solution.before is not None else "?"
        say(f"before: {before}\nafter:  {solution.patch.results.summary()}")
        failing = [check for check in solution.patch.results.checks if not check.passed]
        for check in failing[:_LISTED]:
            say(f"fails: {check.kind} {check.name}")
        if len(failing) > _LISTED:
            say(f"... and {len(failing) - _LISTED} more fail")
        if solution.patch.new_files:
            say(f"new files in the patch: {', '.join(solution.patch.new_files)}")
        if solution.patch.left_out:
            say(f"left out of the patch: {', '.join(solution.patch.left_out)}")
    say(f"ended: {solution.ended}")
    if not solution.green and not (found is not None and solution.ended == "reproduced"):
        say(_advice(solution, folder))
    _tell_cost(solution, folder)


def _tell_cost(solution: Solution, folder: Path) -> None:
    from xlocal.swe_pipeline.limits import money

    spent = solution.spent
    cached = f", {spent.cached_tokens} of them cached" if spent.cached_tokens else ""
    failed = f" and {spent.failed_calls} failed" if spent.failed_calls else ""
    price = "of unknown price" if spent.dollars is None else f"${money(spent.dollars)}"
    if spent.estimated:
        what = "1 call told" if spent.estimated == 1 else f"{spent.estimated} calls told"
        price += f" (estimated: {what} no counts, the most they can have used is counted)"
    say(
        f"cost: {price}, {spent.input_tokens} tokens in{cached}, {spent.output_tokens} out, "
        f"{spent.calls} calls{failed}, {spent.actions} actions, {spent.seconds:.0f} s; all steps are in {folder}"
    )


def _advice(solution: Solution, folder: Path) -> str:
    """What to do about a run that did not end well."""
    run = shlex.quote(str(folder))
    more = resume_command(folder)
    look = f"`xlocal trajectory show {run}` tells what happened"
    if solution.verdict == "unproven":
        return (
            "next: look at the patch yourself: all tests pass with it, but none failed without it. Give scripts that "
            f"show the bug with --pair, in a new run; {look}"
        )
    if option := limiting_option(solution.ended):
        return f"next: `{more}` goes on, with a higher {option}; {look}"
    return f"next: {look}; `{more} --step N` goes on from a step, also with another --model"


COMMANDS = (reproduce, fix)
