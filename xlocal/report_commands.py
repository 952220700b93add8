"""The commands that show a session: `xlocal report`, `xlocal diff`, and `xlocal completion` for shells."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xlocal import completing
from xlocal.settings import RANKERS
from xlocal.tracer.errors import UsageError, Warned, XlocalError

if TYPE_CHECKING:
    from xlocal.diff_view import Compared
    from xlocal.ranking.comparison import Localization

# What `--format` of trace and rank takes beside text, json and markdown.
FORMATS = ("html", "sarif", "github")
SHELLS = ("bash", "zsh", "fish")
EQUAL = 1  # exit code: no difference to show
DEFAULT_NAMES = {"html": "report.html", "perfetto": "trace.json"}

_Command = TypeVar("_Command", bound=Callable[..., Any])
Progress = Callable[[str], None]


def render(
    found: Localization,
    output: str,
    *,
    session: Path,
    top: int,
    budget: float,
    insist: bool = False,
    progress: Progress,
) -> str:
    """A localization in one of FORMATS; runs nothing."""
    from xlocal.session import Session

    if output == "html":
        from xlocal.html_report import make_report

        return make_report(session, found, budget=budget, insist=insist, progress=progress, warn=_tell)
    scope = Session.load(session).scope
    if output == "sarif":
        from xlocal.sarif import as_sarif

        return as_sarif(found, scope, top=top)
    from xlocal.annotations import as_annotations

    return as_annotations(found, scope, top=top)


_SESSION = click.option(
    "--session",
    type=click.Path(path_type=Path),
    help="The folder that keeps the session.  [default: .xlocal/latest]",
)
QUIET = click.option("-q", "--quiet", is_flag=True, help="The result alone: no progress.")
_BUDGET = click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Seconds for the exact difference; beyond them it is a bound.  [default: 60]",
)


@click.command()
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE|-", help="Where to write; - is stdout.")
@click.option("--open", "opened", is_flag=True, help="Open the report in the browser.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("html", "markdown", "perfetto")),
    default="html",
    show_default=True,
    help="markdown to paste into an issue; perfetto for Perfetto, chrome://tracing and vizviewer.",
)
@click.option(
    "--ranker",
    metavar="NAME",
    shell_complete=completing.rankers,
    help=f"One of {', '.join(RANKERS)}.  [default: fused]",
)
@click.option("--issue", metavar="FILE|-", help="Text that describes the bug; - reads standard input.")
@_BUDGET
@_SESSION
@QUIET
def report(output: str | None, opened: bool, form: str, issue: str | None, quiet: bool, **given: Any) -> None:
    """Write a report of a session: one file that needs no network; runs nothing.

    It shows the suspects with their evidence, both call trees side by side with only the differences open, a flame
    view, and the source of each suspect with the lines and values that differ. Without --output the report lies in the
    session folder (markdown goes to stdout), and its name is printed.
    """
    from xlocal.cli import _exit, _progress, _settings
    from xlocal.question import other_issue, rerank, with_warnings

    settings = _settings(given)
    text, doubts = other_issue(issue)
    if opened and (form != "html" or output == "-"):
        raise click.UsageError("--open shows an HTML report that is in a file.")
    with _progress(quiet=quiet) as progress:
        progress("ranking")
        found = rerank(settings.session, issue=text, ranker=settings.ranker, model=settings.model)
        found = with_warnings(found, doubts)
        how: dict[str, Any] = {"budget": settings.budget, "insist": given["budget"] is not None, "progress": progress}
        written = _report(found, form, settings.session, top=settings.top, **how)
    if output == "-" or (output is None and form == "markdown"):
        sys.stdout.write(written)
    else:
        file = Path(output) if output else settings.session / DEFAULT_NAMES[form]
        _save(file, written)
        sys.stdout.write(f"{file}\n")
        if opened:
            _show(file)
    _exit(found)


def _report(
    found: Localization, form: str, session: Path, *, budget: float, insist: bool, top: int, progress: Progress
) -> str:
    if form == "html":
        return render(found, form, session=session, top=top, budget=budget, insist=insist, progress=progress)
    if form == "markdown":
        from xlocal.report import as_markdown

        return as_markdown(found, top=top)
    from xlocal.diff_view import read_again, roles_of
    from xlocal.perfetto import as_trace_events

    compared = read_again(session, roles_of(session), budget=budget, insist=insist, progress=progress)
    _warn(compared)
    written, left_out = as_trace_events(compared)
    if left_out:
        click.echo(
            f"{left_out:,} small calls without a difference are left out: viewers cannot hold them all", err=True
        )
    return written


def _warn(compared: Iterable[Compared]) -> None:
    """Tell on stderr what the traces leave in doubt, each once."""
    for warned in dict.fromkeys(warned for each in compared for warned in each.warnings):
        _tell(warned)


def _tell(warned: Warned) -> None:
    from xlocal.report import plain

    click.echo(f"warning: {warned.slug}: {plain(warned.text)}", err=True)


def _save(file: Path, text: str) -> None:
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        # As where stdout cannot be written: the command meant something.
        raise XlocalError(f"{file}: cannot write the output: {error.strerror}") from None


def _show(file: Path) -> None:
    import webbrowser

    if not webbrowser.open(file.resolve().as_uri()):
        click.echo("no browser was found here; open the file yourself", err=True)


@click.command("diff")
@click.option("--reference", type=int, default=1, show_default=True, metavar="N", help="Which of the references.")
@click.option("--lines", type=click.IntRange(min=1), default=400, show_default=True, help="How many lines at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_BUDGET
@_SESSION
@QUIET
def show_difference(reference: int, lines: int, as_json: bool, quiet: bool, **given: Any) -> None:
    """Print the call tree of only the differences; runs nothing.

    Calls of the buggy run alone are marked -, those of the reference alone +, and ~ those that ended otherwise. Calls
    alike in both runs are only counted. The exit code is 1 when the trees are equal.
    """
    from xlocal import diff_view
    from xlocal.cli import _progress, _settings, _stdout

    settings = _settings(given)
    role = diff_view.chosen_role(diff_view.roles_of(settings.session), reference)
    how: dict[str, Any] = {"budget": settings.budget, "insist": given["budget"] is not None}
    with _progress(quiet=quiet) as progress:
        [compared] = diff_view.read_again(settings.session, (role,), **how, progress=progress)
    if as_json:
        sys.stdout.write(diff_view.as_json(compared, most=lines))
        differs = bool(compared.rows.differs.any())
    else:
        differs = diff_view.print_diff(compared, _stdout(), most=lines)
    sys.stdout.flush()
    _warn([compared])
    sys.exit(0 if differs else EQUAL)


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes SHELL (bash, zsh or fish) complete commands, options and names.

    \b
    bash   eval "$(xlocal completion bash)"      in ~/.bashrc
    zsh    eval "$(xlocal completion zsh)"       in ~/.zshrc
    fish   xlocal completion fish | source       in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    from xlocal.cli import cli

    made = get_completion_class(shell)
    if made is None:
        raise UsageError(f"{shell}: this version of click completes nothing for it")
    # Not `source()`, which for bash runs the bash on the path to judge its version.
    words = made(cli, {}, "xlocal", "_XLOCAL_COMPLETE")
    sys.stdout.write(words.source_template % words.source_vars())


COMMANDS = (report, show_difference, completion)
