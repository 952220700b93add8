"""What comparing the runs gave, stored as JSON and read back whole, and the answer that ranking makes of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlocal.ranking.evidence import CallView, Evidence, FunctionView, RankedSuspect, Suspect
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import SessionError, Warned

VERSION = 2  # 2 added views


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What is told of one script: how it ended, how much it called, and how alike its repeats were.

    `exit_status` is the number of the signal, negated, where one ended the script. Of a reference, `differing` counts
    the functions that differ between it and the buggy run, and `alone` those of them that no other reference shows.
    """

    role: str
    command: str
    exit_status: int | None
    exception: str | None
    message: str | None
    calls: int
    functions: int
    seconds: float
    repeats: int
    identical_repeats: bool
    differing: int | None = None
    alone: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that comparing the runs gave; ranking needs no more.

    `cost` and `lower` bound the tree edit distance to the nearest reference (`exact`: they are equal). `blindness`
    says why nothing could be seen, when nothing could. `views` are the functions seen closely, for those who ask.
    """

    runs: tuple[RunSummary, ...]
    warnings: tuple[Warned, ...]
    suspects: tuple[Suspect, ...]
    cost: int
    lower: int
    exact: bool
    blindness: str | None
    views: tuple[FunctionView, ...] = ()

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps({"version": VERSION, **dataclasses.asdict(self)}, separators=(",", ":")), "utf-8")
        new.replace(path)

    @classmethod
    def load(cls, path: Path) -> Comparison:
        """Read what `save` wrote; SessionError when it is missing, damaged, or of a newer version."""
        try:
            document = json.loads(path.read_text("utf-8"))
            version = document.pop("version")
            if version != VERSION:
                age = "a newer" if version > VERSION else "an older"
                raise SessionError(
                    f"{path}: written by {age} xlocal (version {version}); record again with xlocal trace"
                )
            return cls(
                **{
                    **document,
                    "runs": tuple(RunSummary(**row) for row in document["runs"]),
                    "warnings": tuple(Warned(**row) for row in document["warnings"]),
                    "suspects": tuple(_suspect(row) for row in document["suspects"]),
                    "views": tuple(_view(row) for row in document["views"]),
                }
            )
        except FileNotFoundError:
            raise SessionError(f"{path.parent}: holds no comparison; record with xlocal trace") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SessionError(f"{path}: is damaged ({error}); record again with xlocal trace") from None


def _suspect(row: Mapping[str, Any]) -> Suspect:
    return Suspect(
        **{
            **row,
            "function": Function(*row["function"]),
            "calls": tuple(row["calls"]),
            "callees": tuple(Function(*callee) for callee in row["callees"]),
            "evidence": tuple(Evidence(**item) for item in row["evidence"]),
        }
    )


def _view(row: Mapping[str, Any]) -> FunctionView:
    return FunctionView(
        function=Function(*row["function"]),
        reference=row["reference"],
        lines=tuple(_tuples(counted) for counted in row["lines"]),  # type: ignore[arg-type]
        pairs=tuple(tuple(_call_view(call) for call in pair) for pair in row["pairs"]),  # type: ignore[misc]
    )


def _call_view(row: Mapping[str, Any]) -> CallView:
    pairs = {name: _tuples(row[name]) for name in ("given", "left", "lines")}
    return CallView(**{**row, **pairs, "hidden": tuple(row.get("hidden", ())), "unsure": tuple(row.get("unsure", ()))})


def _tuples(rows: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(tuple(row) for row in rows)


@dataclass(frozen=True, slots=True)
class Localization:
    """The answer: the suspects in order, and what they rest on."""

    ranker: str
    issue: str | None
    runs: tuple[RunSummary, ...]
    warnings: tuple[Warned, ...]
    suspects: tuple[RankedSuspect, ...]
    comparison: Comparison
