"""`python -m xlocal` and the script `xlocal`: the command line, whose modules are imported within reach of Ctrl-C."""

from __future__ import annotations

import sys
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line and exit."""
    try:
        from xlocal.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("xlocal: interrupted\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
