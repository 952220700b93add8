"""Preparing many checkouts: each on its own, so that one that fails keeps no other from being made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from xlocal.swe_pipeline.checkout import LocalCheckout, Workplace
from xlocal.swe_pipeline.issue import Issue
from xlocal.tracer.errors import XlocalError


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of one issue's checkout: made now, or there already; `error` says why it is not there."""

    id: str
    made: bool
    seconds: float
    error: str | None


def prepare_all(
    issues: Sequence[Issue],
    *,
    workplace: Workplace,
    jobs: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> Iterator[Prepared]:
    """Prepare the checkouts in `workplace`, `jobs` at a time, and yield each as it is ready."""

    def prepare(issue: Issue) -> Prepared:
        progress(f"preparing {issue.id}")
        started = time.monotonic()
        made, error = False, None
        try:
            made = LocalCheckout(issue, workplace).prepare()
        except XlocalError as failure:
            error = str(failure)
        return Prepared(issue.id, made, time.monotonic() - started, error)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for done in as_completed([pool.submit(prepare, issue) for issue in issues]):
                yield done.result()
        except BaseException:
            # An interrupt ends what waits; what runs is a program of its own that gets the same signal.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
