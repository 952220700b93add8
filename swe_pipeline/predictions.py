"""Predictions: patches by instance, in the files that the benchmark's own harness reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlocal.tracer.errors import UsageError


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's patch for the instance `id`; None or empty when it has none."""

    id: str
    model: str
    patch: str | None

    @property
    def folder(self) -> str:
        """The model's name as the harness names folders and files."""
        return self.model.replace("/", "__")


def load_predictions(path: Path) -> dict[str, Prediction]:
    """Read a .json file (a list, or an object by instance) or a .jsonl file; by instance, in their order.

    Raises UsageError, one line, for each kind of fault, and for predictions of more than one model in a file, since
    reports are named by the model.
    """
    found: dict[str, Prediction] = {}
    for where, row in _rows(path):
        prediction = _prediction(row, f"{path}: {where}")
        if prediction.id in found:
            raise UsageError(f"{path}: {where}: {prediction.id} is there twice")
        found[prediction.id] = prediction
    if not found:
        raise UsageError(f"{path}: holds no prediction")
    models = sorted({prediction.model for prediction in found.values()})
    if len(models) > 1:
        raise UsageError(f"{path}: holds predictions of {len(models)} models ({', '.join(models[:3])}); split the file")
    return found


def _rows(path: Path) -> Iterable[tuple[str, Any]]:
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text ({error})") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if path.suffix == ".jsonl":
        lines = ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
        return [(f"line {number}", _parsed(line, f"{path}: line {number}")) for number, line in lines]
    if path.suffix != ".json":
        raise UsageError(f"{path}: predictions are a .json or a .jsonl file")
    document = _parsed(text, str(path))
    if isinstance(document, Mapping):
        return [(str(name), row) for name, row in document.items()]
    if isinstance(document, list):
        return [(f"row {number}", row) for number, row in enumerate(document, 1)]
    raise UsageError(f"{path}: is neither a list of predictions nor an object of them by instance")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: is not JSON: {error}") from None


def _prediction(row: Any, where: str) -> Prediction:
    if not isinstance(row, Mapping):
        raise UsageError(f"{where}: is not an object but {type(row).__name__}")
    for key in ("instance_id", "model_name_or_path"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise UsageError(f"{where}: {key} is {'not text' if row.get(key) else 'missing'}")
    if "model_patch" not in row:
        raise UsageError(f"{where}: model_patch is missing (null or an empty text stands for no patch)")
    patch = row["model_patch"]
    if patch is not None and not isinstance(patch, str):
        raise UsageError(f"{where}: model_patch is not text but {type(patch).__name__}")
    if row["model_name_or_path"].strip(". ") == "":
        raise UsageError(f"{where}: model_name_or_path {row['model_name_or_path']!r} cannot name a folder")
    return Prediction(row["instance_id"], row["model_name_or_path"], patch)
