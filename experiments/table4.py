"""Table 4: how many functions there are to search, for each issue: the repository, the buggy run, the difference.

    python experiments/table4.py --root DIR

reads the sessions that `xlocal swe localize --root DIR` left in DIR/INSTANCE/session, and DIR/INSTANCE/repo.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from methods import counted, markdown, publish, run_program
from plots import bars
from xlocal.ranking.comparison import Comparison
from xlocal.ranking.source import SourceIndex
from xlocal.tracer.errors import UsageError

from xlocal.session import COMPARISON

STRATEGIES = ("the whole repository", "buggy run", "only in the buggy run", "deleted from the buggy run's tree")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit status is 2 for wrong input."""
    return run_program(_main, argv)


def _main(argv: Sequence[str] | None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="the folder of the localized checkouts")
    parser.add_argument("--out", type=Path, help="the folder that gets the table (.md) and the plot (.svg)")
    given = parser.parse_args(argv)
    folders = sorted(file.parent.parent for file in given.root.glob(f"*/session/{COMPARISON}"))
    if not folders:
        raise UsageError(f"{given.root}: holds no session; make some with: xlocal swe localize --root {given.root}")
    columns = list(zip(*map(sizes, folders), strict=True))
    base = columns[1]
    rows = [
        line(name, column, base if place > 1 else None)
        for place, (name, column) in enumerate(zip(STRATEGIES, columns, strict=True))
    ]
    table = markdown(("Strategy", "Max", "Min", "Avg", "Med"), rows) + f"\n\n{counted(len(folders), 'issue')}."
    series = {
        "median": [median(column) for column in columns[1:]],
        "average": [fmean(column) for column in columns[1:]],
    }
    publish("table4", table, bars("Functions to search", STRATEGIES[1:], series, unit=""), given.out)


def sizes(folder: Path) -> tuple[int, int, int, int]:
    """The four counts of one issue."""
    comparison = Comparison.load(folder / "session" / COMPARISON)
    executed = [suspect for suspect in comparison.suspects if suspect.executed]
    only = [suspect for suspect in executed if suspect.calls[1] == 0]
    deleted = [suspect for suspect in executed if any(evidence.kind == "deleted" for evidence in suspect.evidence)]
    return repository_size(folder / "repo"), len(executed), len(only), len(deleted)


def repository_size(folder: Path) -> int:
    """The number of functions in the Python files of a repository."""
    return sum(1 for _ in SourceIndex(_Everything(folder)).names())


class _Everything:
    """All Python files of a work tree."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def relative(self, filename: str) -> str | None:
        path = Path(filename)
        return path.relative_to(self._folder).as_posix() if path.is_relative_to(self._folder) else None

    def files(self) -> Iterator[str]:
        for file in sorted(self._folder.rglob("*.py")):
            if ".git" not in file.parts and file.is_file():
                yield str(file)


def line(name: str, column: Sequence[int], base: Sequence[int] | None) -> list[str]:
    """One row; against `base` where there is one, as the paper tells it."""
    values = [max(column), min(column), fmean(column), median(column)]
    before = [max(base), min(base), fmean(base), median(base)] if base else []
    cells = [f"{value:,.0f}" for value in values]
    for place in (0, 2, 3) if base else ():
        if before[place]:
            cells[place] += f" (↓{100 * (1 - values[place] / before[place]):.0f} %)"
    return [name, *cells]


if __name__ == "__main__":
    sys.exit(main())
