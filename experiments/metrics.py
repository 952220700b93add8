"""The metrics of fault localization, which live in the package: `xlocal swe metrics` needs them too."""

from xlocal.swe_pipeline.metrics import (
    CONVENTIONS,
    Convention,
    Scores,
    all_at,
    any_at,
    f1,
    first_right,
    is_right,
    precision,
    recall,
    reciprocal_rank,
    score,
)

__all__ = [
    "CONVENTIONS",
    "Convention",
    "Scores",
    "all_at",
    "any_at",
    "f1",
    "first_right",
    "is_right",
    "precision",
    "recall",
    "reciprocal_rank",
    "score",
]
