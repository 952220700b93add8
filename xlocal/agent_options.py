"""Options that the commands with agents share, what they make of them, and how a run shows itself."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xlocal.settings import RANKERS
from xlocal.tracer.errors import UsageError

if TYPE_CHECKING:
    from xlocal.swe_pipeline.agent import Progress
    from xlocal.swe_pipeline.options import Options
    from xlocal.swe_pipeline.reproduce import ScriptPair

_Command = TypeVar("_Command", bound=Callable[..., Any])
MODEL_VARIABLE = "XLOCAL_MODEL"
NOT_GREEN = 1
# The spectrum is of a run of many tests, and two scripts are compared here.
AGENT_RANKERS = tuple(name for name in RANKERS if name != "spectrum")


def dollars(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Decimal | str | None:
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


def model_options(command: _Command) -> _Command:
    """The options that name a model and limit what it may use."""
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
        click.option("--budget", callback=dollars, metavar="$N|none",
                     help="US dollars that one issue may cost; nothing is asked that could cross it.  [default: $2 "
                     "where the model's price is known]"),
        click.option("--model", "model", envvar=MODEL_VARIABLE, show_envvar=True, metavar="M",
                     help="anthropic:NAME, openai:NAME, http://HOST/v1#NAME for any OpenAI-compatible server, or "
                     "scripted:FILE."),
    ):  # fmt: skip
        command = option(command)
    return command


def ranking_options(command: _Command) -> _Command:
    """The options that say how functions are ordered, and how many are shown."""
    for option in (
        click.option("--encoder", metavar="DIR",
                     help="The encoder of the rankers that need one (paper, embedding): a folder."),
        click.option("--ranker", type=click.Choice(AGENT_RANKERS), default="fused", show_default=True,
                     help="How functions are ordered."),
        click.option("--top", type=click.IntRange(min=1), default=20, show_default=True,
                     help="How many suspects the model is shown."),
    ):  # fmt: skip
        command = option(command)
    return command


VARIANT = click.option(
    "--variant",
    type=click.Choice(("vanilla", "localizer", "full")),
    default="full",
    show_default=True,
    help="vanilla: the issue alone; localizer: with ranked functions; full: with validation tests too.",
)
CANDIDATES = click.option(
    "--candidates",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Repairs to make independently, until one passes all tests; the tests choose.",
)
UNSAFE = click.option(
    "--unsafe-local",
    is_flag=True,
    help="Run what the model writes without a sandbox, with all that your user may do.",
)


def options(  # noqa: PLR0913 - the options of a command as they come
    *,
    model: str | None,
    budget: Decimal | str | None,
    tokens: int,
    seconds: float,
    prices: Path | None,
    pair: tuple[Path, Path] | None,
    encoder: str | None,
    scripts: ScriptPair | None = None,
    batch_dollars: Decimal | None = None,
    **given: Any,
) -> Options:
    """The options of a run from those of a command, checked as far as they can be without asking the model.

    Raises UsageError for wrong usage, AgentError for a missing key.
    """
    from xlocal.swe_pipeline.limits import Limits
    from xlocal.swe_pipeline.models import parse_model, pricing_of
    from xlocal.swe_pipeline.options import Options, check_options
    from xlocal.swe_pipeline.prices import read_prices
    from xlocal.swe_pipeline.reproduce import ScriptPair, similarity

    if not model:
        raise UsageError(
            f"name a model with --model or {MODEL_VARIABLE}: anthropic:NAME, openai:NAME or http://HOST/v1#NAME; "
            "docs/agents.md tells how to reach each"
        )
    if encoder and Path(encoder).is_dir():
        encoder = str(Path(encoder).absolute())  # a run may go on in another folder
    known = read_prices(prices) if prices is not None else {}
    limit: Decimal | None = budget if isinstance(budget, Decimal) else None
    if budget is None:
        if pricing_of(parse_model(model), known) is not None:
            limit = Decimal(2)
        else:
            say(f"warning: the price of {model} is not known: only tokens and time are limited (--prices gives one)")
    if pair:
        buggy, reference = (_script(file) for file in pair)
        scripts = ScriptPair(buggy, (reference,), "", (), (round(similarity(buggy, reference), 3),))
    limits = Limits(dollars=limit, tokens=tokens, seconds=seconds)
    found = Options(model=model, limits=limits, prices=known, pair=scripts, encoder=encoder, **given)
    check_options(found, batch_dollars=batch_dollars)
    return found


def _script(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--pair {file}: cannot be read as UTF-8 text: {error}") from None


def limiting_option(ended: str) -> str | None:
    """The option of the limit that ended a run; None where no option raises it, or none ended it."""
    if not ended.startswith("limit: "):
        return None
    kinds = {
        r"the batch's limit of \$": "--batch-budget",
        r"the batch's limit of \d+ tokens": "--batch-tokens",
        r"the limit of \$": "--budget",
        r"the limit of \d+ tokens": "--tokens",
        r"the time limit": "--time",
    }
    return next((option for text, option in kinds.items() if re.search(text, ended)), None)


@contextlib.contextmanager
def shown() -> Iterator[Callable[[Progress], None]]:
    """One live line on a terminal; else a line for each new phase or suspect and every tenth step, on stderr.

    What is worth notice, such as a server that does not answer, has a line of its own on both.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    if console.is_terminal:
        with console.status("starting") as status:

            def show(progress: Progress) -> None:
                status.update(progress.line())
                if progress.notice:
                    console.print(progress.line())

            yield show
        return
    told: set[tuple[str, str, int]] = set()

    def tell(progress: Progress) -> None:
        key = (progress.phase, progress.suspect, progress.step // 10)
        if progress.notice or key not in told:
            told.add(key)
            say(progress.line())

    yield tell


def say(text: str) -> None:
    """A line for people, on stderr."""
    click.echo(text, err=True)
