"""Reports of grading in the harness's file layout, and rates over three denominators.

OUT/logs/run_evaluation/RUN/MODEL/INSTANCE/{report.json, test_output.txt, patch.diff, run_instance.log, local.json}
OUT/MODEL.RUN.json
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xlocal.swe_pipeline.grade import LOGS, Evaluation, Verdict, write_text
from xlocal.swe_pipeline.official import APPLIED, NOT_APPLIED
from xlocal.swe_pipeline.predictions import Prediction
from xlocal.tracer.errors import UsageError

LABELS = {
    "local": "local environments: not comparable with the leaderboard",
    "docker": "the benchmark's images, run by xlocal",
}
OWN = "local.json"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Rate:
    """`resolved` of `n` instances."""

    resolved: int
    n: int

    @property
    def percent(self) -> float | None:
        """In 0..100; None over no instance."""
        return 100 * self.resolved / self.n if self.n else None

    def __str__(self) -> str:
        return f"{self.resolved}/{self.n}" + (f" ({self.percent:.1f} %)" if self.n else "")


@dataclass(frozen=True, slots=True)
class Rates:
    """Resolved over three denominators.

    `official`: all instances asked for, the official rule. `valid`: those whose fail-to-pass tests all behave here,
    the official rule. `practical`: those with a fail-to-pass test that behaves here, judged by the tests that behave.
    """

    official: Rate
    valid: Rate
    practical: Rate


def rates(verdicts: Iterable[Verdict], *, instances: int) -> Rates:
    """Rates of the verdicts, of which there may be fewer than `instances`: what has no verdict is not resolved."""
    found = list(verdicts)
    valid = [verdict.resolved for verdict in found if verdict.valid]
    practical = [bool(verdict.practical) for verdict in found if verdict.practical is not None]
    return Rates(
        official=Rate(sum(verdict.resolved for verdict in found), instances),
        valid=Rate(sum(valid), len(valid)),
        practical=Rate(sum(practical), len(practical)),
    )


def check_run_id(run_id: str) -> str:
    """The name of a run, which names a folder. Raises UsageError when it cannot."""
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(f"--run-id {run_id!r}: consists of letters, digits and . _ -")
    return run_id


def instance_folder(out: Path, run_id: str, prediction: Prediction) -> Path:
    """Where the harness keeps what belongs to one prediction."""
    return out / LOGS / run_id / prediction.folder / prediction.id


def write_instance(
    out: Path, run_id: str, prediction: Prediction, verdict: Verdict, evaluation: Evaluation, *, label: str
) -> None:
    """Write one instance's files. As officially, report.json is there only when the tests ran to their end."""
    folder = instance_folder(out, run_id, prediction)
    write_text(folder / "patch.diff", prediction.patch or "")
    if evaluation.applied:
        write_text(folder / "test_output.txt", evaluation.log)
    write_text(folder / "run_instance.log", _story(prediction, verdict, evaluation, label))
    if verdict.completed:
        report = {
            "patch_is_None": prediction.patch is None,
            "patch_exists": verdict.patch_exists,
            "patch_successfully_applied": verdict.applied,
            "resolved": verdict.resolved,
            "tests_status": verdict.tests,
        }
        write_text(folder / "report.json", json.dumps({prediction.id: report}, indent=4))
    # Last: whoever finds it finds the rest.
    write_text(folder / OWN, json.dumps({"label": label, **asdict(verdict)}, indent=1) + "\n")


def _story(prediction: Prediction, verdict: Verdict, evaluation: Evaluation, label: str) -> str:
    """What happened, line by line, in the words that tools look for."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    lines = [f"{now} - grading {prediction.id} of {prediction.model} ({label})"]
    if verdict.patch_exists:
        lines.append(f"{now} - {APPLIED if evaluation.applied else NOT_APPLIED}")
    if evaluation.problem:
        lines.append(f"{now} - {evaluation.problem}")
    if evaluation.applied:
        lines.append(f"{now} - Test runtime: {evaluation.seconds:_.2f} seconds")
    lines.append(f"{now} - Result for {prediction.id}: resolved: {verdict.resolved}")
    return "\n".join(lines) + "\n"


def read_verdict(out: Path, run_id: str, prediction: Prediction) -> Verdict | None:
    """The stored verdict of a prediction; None when there is none for just this patch."""
    folder = instance_folder(out, run_id, prediction)
    try:
        document = json.loads((folder / OWN).read_text("utf-8"))
        stored = (folder / "patch.diff").read_text("utf-8", errors="surrogateescape")
        document.pop("label")
        verdict = Verdict(**document)
    except (OSError, ValueError, KeyError, TypeError):
        # Not there, or cut off by a crash: it is graded again.
        return None
    return verdict if stored == (prediction.patch or "") else None


def write_run_report(
    out: Path,
    run_id: str,
    predictions: Mapping[str, Prediction],
    verdicts: Mapping[str, Verdict],
    *,
    instances: Sequence[str],
    backend: str = "local",
    calibrated: bool = True,
) -> Path:
    """Write MODEL.RUN.json: the harness's keys, and beside them `xlocal` with the label and the three rates.

    Without calibration two of the rates are over nothing, since it is not known which tests behave here.
    """
    ids = set(instances)
    submitted = {name: prediction for name, prediction in predictions.items() if name in ids}
    empty = {name for name, prediction in submitted.items() if not prediction.patch}
    done = {name for name, verdict in verdicts.items() if name in ids - empty and verdict.completed}
    resolved = {name for name in done if verdicts[name].resolved}
    groups = {
        "completed": done,
        "incomplete": ids - set(submitted),
        "empty_patch": empty,
        "submitted": set(submitted),
        "resolved": resolved,
        "unresolved": done - resolved,
        "error": set(submitted) - empty - done,
    }
    document: dict[str, Any] = {"total_instances": len(ids)}
    for name in ("submitted", "completed", "resolved", "unresolved", "empty_patch", "error"):
        document[f"{name}_instances"] = len(groups[name])
    document |= {f"{name}_ids": sorted(group) for name, group in groups.items()}
    document |= {"unstopped_instances": 0, "unstopped_containers": [], "unremoved_images": [], "schema_version": 2}
    own = rates((verdicts[name] for name in verdicts if name in ids), instances=len(ids))
    document["xlocal"] = {"label": LABELS[backend], "comparable": backend == "docker"}
    document["xlocal"] |= {"calibrated": calibrated, "rates": asdict(own)}
    models = sorted({prediction.folder for prediction in predictions.values()})
    file = out / f"{models[0]}.{run_id}.json"
    write_text(file, json.dumps(document, indent=4) + "\n")
    return file


def read_run_report(file: Path) -> dict[str, Any]:
    """A MODEL.RUN.json, ours or the harness's. Raises UsageError when it is neither."""
    try:
        document = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: is not JSON: {error}") from None
    keys = ("resolved_ids", "submitted_ids", "total_instances")
    if not isinstance(document, dict) or any(key not in document for key in keys):
        raise UsageError(f"{file}: is not a report of a run (it has no {', '.join(keys)})")
    return document
