"""Table 3: rankers by the share of issues with a true function among the first 10 and the first 20.

    python experiments/table3.py localization.json

reads what `python experiments/localization.py --out FILE` wrote (one file or several, of other cases each).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from methods import markdown, percent, publish, run_program
from metrics import any_at
from plots import bars
from xlocal.tracer.errors import UsageError

PLACES = (10, 20)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit status is 2 for wrong input."""
    return run_program(_main, argv)


def _main(argv: Sequence[str] | None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what experiments/localization.py wrote with --out")
    parser.add_argument("--out", type=Path, help="the folder that gets the table (.md) and the plot (.svg)")
    given = parser.parse_args(argv)
    cases = [case for file in given.files for case in read_cases(file)]
    rankers = list(dict.fromkeys(name for case in cases for name in case["rankings"]))
    hits = {name: [hit_count(cases, name, k) for k in PLACES] for name in rankers}
    ranked = {name: sum(name in case["rankings"] for case in cases) for name in rankers}
    rows = [[name, *(percent(hit, ranked[name]) for hit in hits[name]), ranked[name]] for name in rankers]
    series = {f"Top-{k}": [100 * hits[name][i] / ranked[name] for name in rankers] for i, k in enumerate(PLACES)}
    table = markdown(("Ranker", *(f"Top-{k}" for k in PLACES), "issues"), rows)
    publish("table3", table, bars("Rankers", rankers, series), given.out)


def read_cases(file: Path) -> list[dict[str, Any]]:
    """The cases of one file. Raises UsageError when it is none of ours."""
    try:
        document = json.loads(file.read_text("utf-8"))
        if {"ranker", "instances"} <= set(document):
            raise UsageError(
                f"{file}: is what xlocal swe localize wrote: the first suspects of one ranker, without the true "
                "functions; this table needs those and all rankings, from: python experiments/localization.py "
                "--cases DIR --checkouts ROOT --out FILE"
            )
        cases = document["cases"]
        if all({"rankings", "true_functions"} <= set(case) for case in cases):
            return list(cases)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"{file}: is not what experiments/localization.py --out wrote")


def hit_count(cases: Sequence[dict[str, Any]], ranker: str, k: int) -> int:
    """How many cases have a true function among the first `k` of a ranker."""
    return sum(
        any_at(k, case["rankings"][ranker], case["true_functions"]) for case in cases if ranker in case["rankings"]
    )


if __name__ == "__main__":
    sys.exit(main())
