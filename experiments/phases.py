"""Section 7.3: how long each phase of solving an issue takes, from the trajectories of runs.

python experiments/phases.py runs/full
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from methods import counted, markdown, publish, run_program
from plots import bars
from xlocal.swe_pipeline.trajectory import FILE, read_trajectory
from xlocal.tracer.errors import UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit status is 2 for wrong input."""
    return run_program(_main, argv)


def _main(argv: Sequence[str] | None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of runs, or of single issues")
    parser.add_argument("--out", type=Path, help="the folder that gets the table (.md) and the plot (.svg)")
    given = parser.parse_args(argv)
    files = sorted({file for folder in given.folders for file in folder.rglob(FILE)})
    if not files:
        raise UsageError(f"{given.folders[0]}: holds no trajectory ({FILE})")
    taken = [phases(file) for file in files]
    names = list(dict.fromkeys(name for one in taken for name in one))
    means = {name: fmean(one.get(name, 0.0) for one in taken) for name in names}
    whole = sum(means.values())
    rows = [
        [
            name,
            f"{means[name]:.1f}",
            f"{median(one.get(name, 0.0) for one in taken):.1f}",
            f"{100 * means[name] / whole:.1f}" if whole else "-",
        ]
        for name in names
    ]
    table = markdown(("Phase", "mean s", "median s", "share %"), rows)
    note = f"\n\n{counted(len(taken), 'issue')}, {whole:.1f} s" + (" each in the mean." if len(taken) > 1 else ".")
    publish(
        "phases", table + note, bars("Seconds of an issue", names, {"mean": list(means.values())}, unit=" s"), given.out
    )


def phases(file: Path) -> dict[str, float]:
    """Seconds of each phase, in their order. What is recorded as `locate` (tracing, comparing, ranking) is one."""
    found: defaultdict[str, float] = defaultdict(float)
    for step in read_trajectory(file).steps:
        name = "localize" if step.kind == "locate" else step.phase
        if step.seconds:
            found[name] += step.seconds
    return dict(found)


if __name__ == "__main__":
    sys.exit(main())
