"""The command line: each command parses its arguments, calls one function and prints what comes back.

Only imports what `--help` needs; the work is imported by the commands.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from xlocal import completing
from xlocal.agent_commands import COMMANDS as AGENT_COMMANDS
from xlocal.ending import Group, told_what_stays
from xlocal.integration_commands import COMMANDS as INTEGRATION_COMMANDS
from xlocal.report_commands import COMMANDS as REPORT_COMMANDS
from xlocal.report_commands import FORMATS as REPORT_FORMATS
from xlocal.report_commands import QUIET, render
from xlocal.settings import BACKENDS, RANKERS, Settings, load_settings
from xlocal.swe_commands import swe
from xlocal.swe_grading_commands import COMMANDS as GRADING_COMMANDS
from xlocal.swe_solving_commands import COMMANDS as SOLVING_COMMANDS
from xlocal.trajectory_commands import COMMANDS as TRAJECTORY_COMMANDS

if TYPE_CHECKING:
    from xlocal.ranking.comparison import Localization

FORMATS = ("text", "json", "markdown", *REPORT_FORMATS)

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _ScriptsCommand(click.Command):
    """Lets an argument such as '-m pkg.tool x' be a script instead of an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "-m" in args[: args.index("--") if "--" in args else len(args)]:
            raise click.UsageError("Quote the whole command, as in '-m pkg.tool x'.", ctx)
        between = any(arg.startswith("--between") for arg in args)
        try:
            # A leading space hides the dash from click and means nothing in a command.
            return super().parse_args(ctx, [f" {arg}" if re.match(r"-m\s", arg) else arg for arg in args])
        except (click.MissingParameter, click.BadOptionUsage) as error:
            if not between or getattr(error, "option_name", "--between") != "--between":
                raise
            # Of two words after it, the second was meant to be the script.
            raise click.UsageError(
                "--between needs two revisions, GOOD and BAD, besides the script: --between v1.0 HEAD script.py", ctx
            ) from None


def _pairs(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`K=V` texts as a dictionary."""
    for text in values:
        if not text.partition("=")[0] or "=" not in text:
            raise click.BadParameter(f"{text!r} is not of the form K=V")
    return dict(text.split("=", 1) for text in values)


def main() -> NoReturn:
    """Run the command line and exit."""
    # Names and messages of the program under study may not fit the terminal's encoding.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # So that a terminated xlocal ends its child and leaves no half-written session.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    sys.exit(cli.main(prog_name="xlocal"))


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("xlocal"), message="xlocal %(version)s")
@click.option("--debug", is_flag=True, help="Show log messages and tracebacks on stderr (as XLOCAL_DEBUG=1 does).")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Find the function to blame.

    xlocal runs a script that shows a bug and one that does not, compares what happened inside, and ranks the
    functions of the project, each with a reason. Start with `xlocal demo`.

    \b
    Exit codes
      0  suspects were found
      1  none were found; the output says why
      2  wrong usage
      3  a script did not run, timed out, or wrote no trace
      4  another error, named in one line
    130  interrupted; 141 when the reader of the output went away
    """
    ctx.params["debug"] = debug = debug or os.environ.get("XLOCAL_DEBUG", "") not in ("", "0")
    if debug:
        _log_to_stderr()


def _log_to_stderr() -> None:
    """Our own messages alone: numba's and git's would drown them."""
    ours = logging.getLogger("xlocal")
    if not ours.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    ours.propagate = False


def _output_options(command: _Command) -> _Command:
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="The result alone: no progress, and not what to type next."),
        click.option("--json", "output", flag_value="json", help="Short for --format json."),
        click.option("--format", "output", type=click.Choice(FORMATS), default="text", show_default=True),
        click.option("--top", type=click.IntRange(min=1), help="How many suspects to print.  [default: 20]"),
    ):
        command = option(command)
    return command


_SESSION = click.option(
    "--session",
    type=click.Path(path_type=Path),
    help="The folder that keeps the session.  [default: .xlocal/latest]",
)
_RANKER = click.option(
    "--ranker",
    metavar="NAME",
    shell_complete=completing.rankers,
    help=f"One of {', '.join(RANKERS)}.  [default: fused]",
)
_ISSUE = click.option("--issue", metavar="FILE|-", help="Text that describes the bug; - reads standard input.")


@cli.command(cls=_ScriptsCommand)
@click.argument("buggy")
@click.argument("references", metavar="REFERENCE...", nargs=-1)
@click.option(
    "--between",
    nargs=2,
    metavar="GOOD BAD",
    shell_complete=completing.revisions,
    help="Run BUGGY at two revisions of its git repository instead of naming references.",
)
@click.option(
    "--scope",
    multiple=True,
    metavar="DIR|PACKAGE",
    help="The code to observe; may be repeated.  [default: the project that the scripts import]",
)
@click.option(
    "--python",
    metavar="PATH",
    help="The interpreter that runs the scripts.  [default: the active environment's, else xlocal's own]",
)
@click.option(
    "--cwd",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder to run the scripts in.  [default: the current one]",
)
@click.option(
    "--env",
    metavar="K=V",
    multiple=True,
    callback=_pairs,
    help="An environment variable for the scripts; may be repeated.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Seconds that one run may take.  [default: 300]",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs of each script, one more where they differ; what differs is noise and is left out.  [default: 2]",
)
@click.option("--no-values", is_flag=True, help="Leave out the second pass, which sees lines and values.")
@click.option("--backend", type=click.Choice(BACKENDS), help="How to record.  [default: auto, the fastest that works]")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Seconds for the exact difference; beyond them it is a bound.  [default: 60]",
)
@_SESSION
@_ISSUE
@_output_options
def trace(
    *,
    buggy: str,
    references: tuple[str, ...],
    between: tuple[str, str] | None,
    issue: str | None,
    output: str,
    quiet: bool,
    no_values: bool,
    **given: Any,
) -> None:
    """Record the scripts, compare them and print the suspects.

    BUGGY shows the bug, each REFERENCE does not and is best as similar as possible. Each is a script or a quoted
    command: 'script.py --flag', '-m pkg.tool x', 'pytest tests/test_a.py::test_b'. The results stay in the session
    folder for `xlocal rank`.

    With --between, the reference is the same script with the project as it was at GOOD; the interpreter and what is
    installed are the same for both. Changes that are not committed take no part. docs/between.md tells the rest.
    """
    from xlocal.question import Question, investigate, read_issue, with_warnings

    if bool(references) == bool(between):
        raise click.UsageError("Give either at least one REFERENCE or --between GOOD BAD.")
    settings = _settings(given)
    text, doubts = read_issue(issue) if issue else (None, ())
    question = Question(
        buggy=buggy,
        references=references,
        scope=settings.scope,
        python=settings.python or _default_python(),
        cwd=(settings.cwd or Path.cwd()).absolute(),
        env=settings.env,
        timeout=settings.timeout,
        repeat=settings.repeat,
        backend=settings.backend,
        budget=settings.budget,
        values=not no_values,
        issue=text,
    )
    with told_what_stays(settings.session), _progress(quiet=quiet) as progress:
        how: dict[str, Any] = {
            "session": settings.session,
            "ranker": settings.ranker,
            "model": settings.model,
            "progress": progress,
        }
        if between:
            from xlocal.between import investigate_between

            found = investigate_between(question, *between, **how)
        else:
            found = investigate(question, **how)
    next_steps = () if quiet else _after_trace(found, settings.session)
    _finish(with_warnings(found, doubts), output, settings, quiet=quiet, next_steps=next_steps)


@cli.command()
@_RANKER
@click.option(
    "--model",
    metavar="DIR|NAME",
    help="The encoder of paper and embedding: a folder, or a name on the hub.  [default: UniXcoder]",
)
@_SESSION
@_ISSUE
@_output_options
def rank(issue: str | None, output: str, quiet: bool, **given: Any) -> None:
    """Rank the suspects of a session again; runs nothing.

    Without --issue the text given to `xlocal trace` is used, when there was one.
    """
    from xlocal.question import other_issue, rerank, with_warnings

    settings = _settings(given)
    text, doubts = other_issue(issue)
    with _progress(quiet=quiet) as progress:
        progress("ranking")
        found = rerank(settings.session, issue=text, ranker=settings.ranker, model=settings.model)
    _finish(with_warnings(found, doubts), output, settings, quiet=quiet)


@cli.command()
@click.argument("function", shell_complete=completing.functions)
@_RANKER
@_SESSION
@_ISSUE
@QUIET
def explain(function: str, issue: str | None, quiet: bool, **given: Any) -> None:
    """Show why a function is suspected: its calls in both runs side by side, the lines they took, and the values.

    FUNCTION is a name as `xlocal rank` prints it, the end of one, or path::name.
    """
    from xlocal import explain as explaining
    from xlocal.question import other_issue

    settings = _settings(given)
    text, _ = other_issue(issue)
    with _progress(quiet=quiet) as progress:
        progress("ranking")
        explained = explaining.explain(
            settings.session, function, ranker=settings.ranker, issue=text, progress=progress
        )
    explaining.print_explanation(explained, _stdout())


@cli.command()
@click.option(
    "--session",
    type=click.Path(path_type=Path),
    default=Path(".xlocal/demo"),
    show_default=True,
    help="The folder that keeps the session.",
)
def demo(session: Path) -> None:
    """Find the culprit of a real bug in a real PyPI release.

    Installs werkzeug 2.2.0 into a cached environment (only once; needs the network for that), runs a script that
    fails and one that works, ranks the functions, and says which one the next release repaired.
    """
    from xlocal.demo import run_demo
    from xlocal.report import print_demo

    with _progress() as progress:
        shown = run_demo(session=session, progress=progress)
    print_demo(shown.found, _stdout(), explanation=shown.explanation, next_steps=shown.next_steps)
    _exit(shown.found)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Say what works on this machine and what to install for the rest."""
    from xlocal import doctor as examination
    from xlocal.report import print_checks

    with _progress() as progress:
        progress("looking around")
        checks = examination.examine()
    if as_json:
        _write(examination.as_json(checks))
    else:
        print_checks(checks, _stdout())


cli.add_command(swe)
for _command in (*GRADING_COMMANDS, *SOLVING_COMMANDS):
    swe.add_command(_command)
for _command in (*REPORT_COMMANDS, *AGENT_COMMANDS, *TRAJECTORY_COMMANDS, *INTEGRATION_COMMANDS):
    cli.add_command(_command)


def _settings(given: dict[str, Any]) -> Settings:
    """The project's settings, overruled by the options that were given."""
    settings = load_settings(Path.cwd())
    chosen = {name: value for name, value in given.items() if value not in (None, (), {})}
    if "env" in chosen:
        chosen["env"] = {**settings.env, **chosen["env"]}
    return dataclasses.replace(settings, **chosen)


def _finish(
    found: Localization, output: str, settings: Settings, *, quiet: bool, next_steps: tuple[str, ...] = ()
) -> None:
    """Print the result in the wanted format and exit with its code."""
    from xlocal import report

    if output == "json":
        _write(report.as_json(found, top=settings.top))
    elif output == "markdown":
        _write(report.as_markdown(found, top=settings.top))
    elif output in REPORT_FORMATS:
        with _progress(quiet=quiet) as progress:
            text = render(
                found, output, session=settings.session, top=settings.top, budget=settings.budget, progress=progress
            )
        _write(text)
    else:
        report.print_text(found, _stdout(), top=settings.top, next_steps=next_steps)
    _exit(found)


def _exit(found: Localization) -> None:
    sys.stdout.flush()
    sys.exit(0 if found.suspects else 1)


def _after_trace(found: Localization, session: Path) -> tuple[str, ...]:
    """What to type next: of what there is to look at, or what may help where there is nothing."""
    where = "" if session == Settings().session else f" --session {shlex.quote(str(session))}"
    by_text = (f"xlocal rank{where} --issue FILE", "ranks by the text of the bug report")
    if not any(run.functions for run in found.runs):
        steps = [("xlocal trace --scope DIR|PACKAGE ...", "observes other code")]
    elif not found.suspects:
        steps = [by_text] if found.issue is None else []
    else:
        steps = [
            (f"xlocal explain{where} {_name_of(found)}", "why: calls, lines and values side by side"),
            (f"xlocal diff{where}", "the tree of only the differences"),
            (f"xlocal report{where} --open", "one page with everything"),
            *([by_text] if found.issue is None else []),
        ]
    width = max((len(command) for command, _ in steps), default=0)
    return tuple(f"{command:{width}}   {meaning}" for command, meaning in steps)


def _name_of(found: Localization) -> str:
    """The first suspect as `xlocal explain` understands it."""
    first = found.suspects[0].suspect.function
    alike = [ranked for ranked in found.suspects if ranked.suspect.function.qualname == first.qualname]
    return shlex.quote(first.qualname if len(alike) == 1 else f"{first.path}::{first.qualname}")


def _default_python() -> str:
    """The python of the active environment, which is the one that runs the user's scripts, else our own."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        home = Path(os.environ.get(variable) or os.devnull)
        for python in (home / "bin" / "python", home / "python.exe", home / "Scripts" / "python.exe"):
            if python.is_file():
                return str(python)
    return sys.executable


def _write(text: str) -> None:
    sys.stdout.write(text)


def _stdout() -> Any:
    from xlocal.report import make_console

    return make_console(sys.stdout)


@contextlib.contextmanager
def _progress(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """One live line on stderr; nothing when stderr is not a terminal, or when `quiet`."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    if quiet or not console.is_terminal:
        yield logging.getLogger(__name__).debug
        return
    with console.status("starting") as status:
        yield status.update
