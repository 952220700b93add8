"""Solving as a step of a batch: one recorded run for each instance, all within one account."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import astuple, dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from xlocal.swe_pipeline.batch import Outcome, read_outcome
from xlocal.swe_pipeline.checkout import Checkout, Workplace
from xlocal.swe_pipeline.conversation import ModelUnreachableError
from xlocal.swe_pipeline.engines import Key
from xlocal.swe_pipeline.existing import ExistingTests
from xlocal.swe_pipeline.grade import write_text
from xlocal.swe_pipeline.issue import Issue
from xlocal.swe_pipeline.limits import Ledger
from xlocal.swe_pipeline.mirror import Mirrored
from xlocal.swe_pipeline.options import Options
from xlocal.swe_pipeline.sandbox import confine
from xlocal.swe_pipeline.solve import RESULT, Solution, solve
from xlocal.swe_pipeline.steps import Backend, opened
from xlocal.swe_pipeline.trajectory import FILE

RUN = "agent"  # in an instance's folder
LEDGER = "account.json"  # in the batch's folder
DOING = "doing.txt"  # in an instance's run: one line, for whoever looks on
_STEPS = ("prepare", "solve")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a whole batch may use; None is no limit."""

    dollars: Decimal | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class SolveStep:
    """Solves each instance in its checkout under `workplace`; what it says is kept in INSTANCE/agent."""

    options: Options
    workplace: Workplace
    batch: BatchLimits = BatchLimits()
    backend: Backend = "local"
    unsafe_local: bool = False
    out: Path | None = None  # the batch's folder, whose runs may be taken up with higher limits
    name: str = "solve"
    faults: tuple[type[BaseException], ...] = (ModelUnreachableError,)

    @property
    def arguments(self) -> Mapping[str, Any]:
        """What must stay the same when a batch is resumed; limits may be raised."""
        options = self.options
        return {
            "model": options.model,
            "variant": options.variant,
            "ranker": options.ranker,
            "encoder": options.encoder,
            "top": options.top,
            "candidates": options.candidates,
        }

    def job(self, issue: Issue) -> SolveJob:
        """The work on one issue."""
        return SolveJob(self, issue)


@dataclass(frozen=True, slots=True)
class SolveJob:
    """One instance; takes up its own run where a killed process left it."""

    step: SolveStep
    issue: Issue

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the result rests on; of one that a limit ended, also the limits: with others the run goes on."""
        facts = {"base": self.issue.base_commit, "statement": self.issue.statement}
        return {**facts, "limits": self._limits()} if self._ended_by_limit() else facts

    def _limits(self) -> list[str]:
        own, batch = self.step.options.limits, self.step.batch
        return [str(value) for value in (*astuple(own), *astuple(batch))]

    def _ended_by_limit(self) -> bool:
        if self.step.out is None:
            return False
        try:
            result = json.loads((self.step.out / self.issue.id / RUN / RESULT).read_text("utf-8"))
            return str(result["ended"]).startswith("limit: ")
        except (OSError, ValueError, KeyError, TypeError):
            return False  # not begun, or cut off: it is done in any case

    def __call__(self, folder: Path, former: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Solve; returns the patch, how the work ended, and its cost."""
        step = self.step
        run = folder / RUN
        with opened(self.issue, step.workplace, step.backend) as checkout:
            solution = solve(
                self._confined(checkout, folder),
                folder=run,
                options=step.options,
                regression=ExistingTests(),
                ledger=Ledger(folder.parent / LEDGER, dollars=step.batch.dollars, tokens=step.batch.tokens),
                resume=(run / FILE).is_file(),
                progress=lambda now: write_text(run / DOING, now.line() + "\n"),
            )
        return self._result(solution)

    def _confined(self, checkout: Checkout, folder: Path) -> Checkout:
        if self.step.backend == "local":
            encoder = self.step.options.encoder
            readable = [Path(encoder).absolute()] if encoder and Path(encoder).is_dir() else []
            return confine(checkout, unsafe_local=self.step.unsafe_local, readable=readable)
        mirrored = Mirrored(checkout, folder=folder / "mirror", mirrors=self.step.workplace.mirrors)
        mirrored.prepare()
        return mirrored

    def _result(self, solution: Solution) -> Mapping[str, Any]:
        spent = solution.spent
        top = self.step.options.top
        leads = solution.reproduction.leads.leads[:top] if solution.reproduction is not None else ()
        return {
            "patch": solution.diff,
            "green": solution.green,
            "verdict": solution.verdict,
            "ended": solution.ended,
            "reproduced": solution.reproduction is not None and solution.reproduction.pair is not None,
            "cost": {**spent.as_json(), "tokens": spent.tokens},
            "suspects": [lead.name for lead in leads],
        }


def write_report(folder: Path, outcomes: Sequence[Outcome], *, model: str) -> dict[str, Any]:
    """Write `predictions.jsonl` and `report.json` of a batch into its folder; returns the report.

    Both tell of every instance of the folder: those of `outcomes` first, then those that former runs left there. The
    account's dollars hold what killed calls may have cost, too, and are exact as text.
    """
    now = [outcome for outcome in outcomes if outcome.step == "solve"]
    solved = [*now, *_former(folder, {outcome.instance for outcome in now})]
    rows = [
        {
            "instance_id": outcome.instance,
            "model_name_or_path": model_label(model),
            "model_patch": (outcome.result or {}).get("patch", ""),
        }
        for outcome in solved
    ]
    write_text(folder / "predictions.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    done = [outcome for outcome in solved if outcome.status == "done"]
    dollars, tokens = Ledger(folder / LEDGER).spent()
    report = {
        "model": model,
        "instances": len(solved),
        "patches": sum(bool((outcome.result or {}).get("patch")) for outcome in done),
        "green": sum(bool((outcome.result or {}).get("green")) for outcome in done),
        "unproven": sum((outcome.result or {}).get("verdict") == "unproven" for outcome in done),
        "reproduced": sum(bool((outcome.result or {}).get("reproduced")) for outcome in done),
        "errors": len(solved) - len(done),
        "dollars": str(dollars),
        "tokens": tokens,
        "ended": {outcome.instance: (outcome.result or {}).get("ended") or outcome.error for outcome in solved},
    }
    write_text(folder / "report.json", json.dumps(report, indent=1) + "\n")
    return report


def _former(folder: Path, known: Set[str]) -> list[Outcome]:
    """What former runs came to on other instances, by name."""
    found = []
    for name in sorted({file.parent.name for step in _STEPS for file in folder.glob(f"*/{step}.json")} - known):
        prepared, solved = (read_outcome(folder, Key(name, step)) for step in _STEPS)
        if solved is not None:
            found.append(solved)
        elif prepared is not None and prepared.status != "done":
            found.append(replace(prepared, step="solve"))
    return found


def doing(folder: Path, key: Key) -> str:
    """What the run of an instance is doing: step, tokens, dollars left and suspect; empty where that is not known."""
    if key.step != "solve":
        return ""
    try:
        return (folder / key.instance / RUN / DOING).read_text("utf-8").strip()
    except (OSError, ValueError):
        return ""  # not begun


def nothing_within_limits(outcomes: Sequence[Outcome]) -> bool:
    """Whether limits ended every instance, and none has a patch."""
    results = [dict(outcome.result or {}) for outcome in outcomes if outcome.step == "solve"]
    return all(str(row.get("ended", "")).startswith("limit: ") and not row["patch"] for row in results)


def model_label(model: str) -> str:
    """A model's text as a name for predictions: `scripted`, or the name without an address."""
    kind, _, rest = model.partition(":")
    return f"xlocal-{kind}" if kind == "scripted" else f"xlocal-{rest.rpartition('#')[2]}"
