"""Spectrum-based evidence: functions that failing tests execute and passing tests do not, by Ochiai's coefficient.

R. Abreu, P. Zoeteweij, A. van Gemund: An evaluation of similarity coefficients for software fault localization (2006).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray
from xlocal.ranking.evidence import Evidence, Suspect
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import UsageError

KIND = "spectrum"


def ochiai(failing: Sequence[Set[Function]], passing: Sequence[Set[Function]]) -> Mapping[Function, Evidence]:
    """Evidence for each function that a failing test executed, given what each test executed.

    The weight is Ochiai's coefficient, e_f / sqrt(failing * (e_f + e_p)), where e_f and e_p count the failing and
    passing tests that execute the function; 1 for what all failing tests and no other execute.
    """
    failed, passed = _counted(failing), _counted(passing)
    return {
        function: _evidence(count, passed[function], len(failing), len(passing)) for function, count in failed.items()
    }


def _counted(tests: Iterable[Set[Function]]) -> Counter[Function]:
    return Counter(function for executed in tests for function in executed)


def _evidence(failed: int, passed: int, failing: int, passing: int) -> Evidence:
    weight = round(failed / math.sqrt(failing * (failed + passed)), 4)
    detail = f"runs in {failed} of {failing} failing and {passed} of {passing} passing tests"
    return Evidence(KIND, weight, detail)


def spectrum_scores(suspects: Sequence[Suspect], _context: object) -> NDArray[np.float64]:
    """Ochiai's coefficient of each suspect, shape (n,); UsageError for a session that did not record the tests."""
    scores = [max((item.weight for item in suspect.evidence if item.kind == KIND), default=0.0) for suspect in suspects]
    if not any(scores):
        raise UsageError(
            "the ranker 'spectrum' needs what each test of a run executed; record it with pytest --xlocal-spectrum"
        )
    return np.array(scores)
