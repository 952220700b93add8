"""What the pytest plugin costs when it is off: whole runs of pytest with it and without it, in turn.

Usage: python benchmarks/plugin_overhead.py [--pairs N] [--quick]

Prints CPU seconds (medians, of the process and its children) and the ratio with an interval from resampling pairs.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# As if it were not installed: pytest looks at what is installed either way, and then passes it over.
WITHOUT = ("-p", "no:xlocal")
SUITE = """
import pytest

@pytest.mark.parametrize("number", range(500))
def test_sums(number):
    assert sum(range(number)) == number * (number - 1) // 2
"""


def cpu_seconds(folder: Path, *options: str) -> float:
    """CPU time of one run of the suite, of user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    subprocess.run(program, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folder: Path, pairs: int) -> list[tuple[float, float]]:
    """(with, without) of each pair; which comes first changes from pair to pair."""
    found = []
    for number in range(pairs):
        runs: dict[str, float] = {}
        for name in ("with", "without") if number % 2 else ("without", "with"):
            runs[name] = cpu_seconds(folder, *(() if name == "with" else WITHOUT))
        found.append((runs["with"], runs["without"]))
    return found


def ratio(found: list[tuple[float, float]]) -> float:
    """Median over the pairs, since the load of a machine changes from pair to pair."""
    return statistics.median(a / b for a, b in found)


def interval(found: list[tuple[float, float]], resamples: int = 2000) -> tuple[float, float]:
    """95 % of the ratio over pairs drawn again with replacement."""
    source = random.Random(0)
    ratios = sorted(ratio(source.choices(found, k=len(found))) for _ in range(resamples))
    return ratios[resamples // 40], ratios[-resamples // 40]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="five pairs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_sums.py").write_text(SUITE, "utf-8")
        cpu_seconds(folder)  # compiles the suite
        cpu_seconds(folder, *WITHOUT)
        found = measure(folder, 5 if options.quick else options.pairs)
    low, high = interval(found)
    with_it, without = (statistics.median(side) for side in zip(*found, strict=True))
    print(f"500 tests, {len(found)} pairs: {with_it:.3f} s with the plugin off, {without:.3f} s without it")
    print(f"ratio {ratio(found):.3f} (95 % of resampled ratios: {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
