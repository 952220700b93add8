"""How a command ends when something went wrong: one line on stderr and an exit code, and no traceback unasked."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from xlocal.tracer.errors import XlocalError

INTERRUPTED = 130
BROKEN_PIPE = 141
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OF_AGENTS = {"anthropic", "genai_prices", "openai", "pydantic", "pydantic_ai"}


class Group(click.Group):
    """Turns every way in which a command can fail into one line and an exit code."""

    # The overloads of click's own differ from version to version.
    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override, unused-ignore]
        run: Callable[..., Any] = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        try:
            status = run(*args, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            _fail_usage(error)
        except click.Abort:
            _fail("interrupted", INTERRUPTED)
        except BrokenPipeError:
            _end_quietly()
        except OSError as error:
            _fail_output(error)
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except XlocalError as error:
            _show_traceback(ctx)
            _fail(str(error), error.exit_code)
        except KeyboardInterrupt as error:
            _show_traceback(ctx)
            # A command that knows how things stand raises it again with that.
            _fail("; ".join(("interrupted", *map(str, error.args))), INTERRUPTED)
        except BrokenPipeError:
            _end_quietly()
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # noqa: BLE001
            # The last place that can answer for a mistake of ours: one line, and where to find the rest.
            _show_traceback(ctx)
            if isinstance(error, OSError) and error.errno in _DISK_FULL:
                _fail_output(error)
            if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OF_AGENTS:
                line = f"agents need {error.name}; install what they need with: pip install 'xlocal[agents]'"
                _fail(line, XlocalError.exit_code)
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            line = f"unexpected {what} (this is a bug of xlocal; XLOCAL_DEBUG=1 or xlocal --debug shows where)"
            _fail(line, XlocalError.exit_code)


@contextlib.contextmanager
def told_what_stays(session: Path) -> Iterator[None]:
    """Let an interrupt say that the session in a folder is the former one, where there was one and it still is."""
    from xlocal.session import FILE

    former = _identity(session / FILE)
    try:
        yield
    except KeyboardInterrupt:
        if former is not None and _identity(session / FILE) == former:
            raise KeyboardInterrupt(f"the former session in {session} is as it was") from None
        raise


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"xlocal: {message}", err=True)
    sys.exit(code)


def _fail_usage(error: click.ClickException) -> NoReturn:
    """Click's own errors in one line; the bare `xlocal` is answered with its help."""
    context = getattr(error, "ctx", None)
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        sys.exit(error.exit_code)
    message = " ".join(error.format_message().split()).rstrip(".")
    hint = f"; see {context.command_path} --help" if context is not None else ""
    _fail(message + hint, error.exit_code)


def _fail_output(error: OSError) -> NoReturn:
    # What Python would still flush to a full disk has nowhere to go; a stream in memory has no number.
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    name = f"{error.filename}: " if error.filename else ""
    _fail(f"{name}cannot write the output: {error.strerror or error}", XlocalError.exit_code)


def _show_traceback(ctx: click.Context) -> None:
    if ctx.params.get("debug"):
        traceback.print_exc()


def _end_quietly() -> NoReturn:
    """The reader of stdout went away, as `head` does; what Python would still flush has nowhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(BROKEN_PIPE)
