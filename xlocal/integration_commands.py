"""Commands that put xlocal into other programs: `xlocal mcp`."""

from __future__ import annotations

from pathlib import Path

import click

from xlocal.tracer.errors import UsageError


@click.command()
@click.option(
    "--root",
    "roots",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="A folder in which programs may be run; may be repeated.  [default: the current one]",
)
@click.option(
    "--python",
    metavar="PATH",
    help="The interpreter that runs the programs.  [default: the active environment's, else xlocal's own]",
)
@click.option(
    "--http",
    "port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve streamable HTTP on this port of 127.0.0.1.  [default: standard input and output]",
)
def mcp(roots: tuple[Path, ...], python: str | None, port: int | None) -> None:
    """Serve coding agents over the Model Context Protocol.

    Tools: trace_pair, localize_test, localize, explain, show_source, diff_tree. docs/mcp.md shows how to add the server
    to an agent. Needs the extra: pip install 'xlocal[mcp]'.
    """
    from xlocal.cli import _default_python

    try:
        from xlocal.mcp_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "anyio"):
            raise
        raise UsageError("xlocal mcp needs the package mcp: pip install 'xlocal[mcp]'") from None
    serve(roots or (Path.cwd(),), python=python or _default_python(), port=port)


COMMANDS = (mcp,)
