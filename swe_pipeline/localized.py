"""How well patches localize: the files and functions that they touch against those of the gold patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xlocal.swe_pipeline.clone import find_source
from xlocal.swe_pipeline.issue import Gold, Issue
from xlocal.swe_pipeline.metrics import Convention, Scores, score
from xlocal.swe_pipeline.steps import gold_of
from xlocal.swe_pipeline.touched import Counting, ReadFile, Touched, base_files, touched
from xlocal.tracer.errors import PatchError, UsageError


@dataclass(frozen=True, slots=True)
class LocalizationScores:
    """Scores over files and over functions.

    `missing` instances have no patch; `unapplied` have one that does not apply, by its reason. Both predict nothing.
    """

    files: Scores
    functions: Scores
    missing: int
    unapplied: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """For printing."""
        return asdict(self)


def reader_of(issue: Issue, *, mirrors: Path | None, root: Path | None = None) -> ReadFile:
    """Reads the base files of an issue from its mirror, or from a prepared checkout. Raises UsageError without both."""
    if mirrors is not None:
        return base_files(Path(find_source(issue.repository, mirrors)), issue.base_commit)
    tree = root / issue.id / "repo" if root is not None else None
    if tree is None or not tree.is_dir():
        raise UsageError(f"{issue.id}: its base files are read from --mirrors, or from a checkout in --root ({tree})")
    return base_files(tree, issue.base_commit)


def localization_scores(
    issues: Sequence[Issue],
    gold: Mapping[str, Gold],
    patches: Mapping[str, str | None],
    *,
    mirrors: Path | None,
    root: Path | None = None,
    convention: Convention = "paper",
    counting: Counting = "existing",
) -> LocalizationScores:
    """Score patches by instance against the gold patches of `issues`; an instance without a patch predicts nothing."""
    files, functions = [], []
    missing = 0
    unapplied: dict[str, str] = {}
    for issue in issues:
        read = reader_of(issue, mirrors=mirrors, root=root)
        true = touched(gold_of(gold, issue).patch, read)
        patch = patches.get(issue.id)
        predicted = Touched()
        if patch is None or not patch.strip():
            missing += 1
        else:
            try:
                predicted = touched(patch, read)
            except PatchError as error:
                unapplied[issue.id] = str(error)
        files.append((predicted.files, true.files))
        functions.append((predicted.functions(counting), true.functions(counting)))
    return LocalizationScores(
        score(files, convention=convention), score(functions, convention=convention), missing, unapplied
    )
