"""What the commands of `xlocal swe` do: choose instances, and localize pairs of scripts inside prepared checkouts."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from xlocal.question import Question, investigate
from xlocal.swe_pipeline.checkout import LocalCheckout, Workplace
from xlocal.swe_pipeline.issue import Issue
from xlocal.tracer.errors import UsageError, XlocalError

TABLE = "localization.json"
SESSION = "session"
_LISTED = 10

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """The scripts of an instance: one that shows the bug, and one or more that do not."""

    buggy: Path
    references: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Localized:
    """What came of one instance: its first suspects as `path::qualname`, how many there are, or why there are none."""

    id: str
    suspects: tuple[str, ...]
    total: int
    seconds: float
    error: str | None


def find_pair(pairs: Path, name: str) -> Pair:
    """The pair in `pairs/NAME`: `buggy*.py`, and every `reference*.py` in the order of names.

    Raises UsageError when a script is missing or it is unclear which one is buggy.
    """
    folder = pairs / name
    if not folder.is_dir():
        raise UsageError(f"--pairs: {folder} does not exist")
    buggy = sorted(folder.glob("buggy*.py"))
    # `reference.py` comes before `reference_alt.py`, as the plain name sorts.
    references = sorted(folder.glob("reference*.py"), key=lambda file: file.stem)
    if len(buggy) != 1:
        raise UsageError(f"--pairs: {folder} needs one buggy*.py and has {len(buggy)}")
    if not references:
        raise UsageError(f"--pairs: {folder} has no reference*.py")
    return Pair(buggy[0].absolute(), tuple(file.absolute() for file in references))


def localize_all(
    issues: Sequence[Issue],
    *,
    pairs: Path,
    workplace: Workplace,
    ranker: str = "fused",
    timeout: float = 300.0,
    repeat: int = 2,
    jobs: int = 1,
    progress: Progress = lambda text: None,
) -> Iterator[Localized]:
    """Prepare, trace and rank each issue, yielding each as it is ready; its session stays beside its `repo`.

    When all are done, `localization.json` in the root lists them.
    """

    def localize(issue: Issue) -> Localized:
        started = time.monotonic()
        names: list[str] = []
        error = None
        try:
            pair = find_pair(pairs, issue.id)
            checkout = LocalCheckout(issue, workplace)
            progress(f"{issue.id}: preparing")
            checkout.prepare()
            question = _question(checkout, pair, timeout=timeout, repeat=repeat)
            found = investigate(
                question,
                session=checkout.folder / SESSION,
                ranker=ranker,
                progress=lambda text: progress(f"{issue.id}: {text}"),
            )
            names = [f"{item.suspect.function.path}::{item.suspect.function.qualname}" for item in found.suspects]
        except XlocalError as failure:
            error = str(failure)
        return Localized(issue.id, tuple(names[:_LISTED]), len(names), round(time.monotonic() - started, 2), error)

    with ThreadPoolExecutor(jobs) as pool:
        done: list[Localized] = []
        try:
            for future in as_completed([pool.submit(localize, issue) for issue in issues]):
                done.append(future.result())
                yield done[-1]
        except BaseException:
            # An interrupt ends what waits; what runs is a program of its own that gets the same signal.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    order = {issue.id: place for place, issue in enumerate(issues)}
    rows = [asdict(row) for row in sorted(done, key=lambda row: order[row.id])]
    workplace.root.mkdir(parents=True, exist_ok=True)
    file = workplace.root / TABLE
    new = file.with_name(f".{file.name}.new")
    new.write_text(json.dumps({"ranker": ranker, "instances": rows}, indent=1) + "\n", "utf-8")
    new.replace(file)


def _question(checkout: LocalCheckout, pair: Pair, *, timeout: float, repeat: int) -> Question:
    # The scripts run in an empty folder, so that the checkout is imported as installed and nothing is written there.
    empty = checkout.folder / "cwd"
    shutil.rmtree(empty, ignore_errors=True)
    empty.mkdir()
    return Question(
        buggy=_quoted(pair.buggy),
        references=tuple(map(_quoted, pair.references)),
        scope=checkout.packages(),
        python=checkout.python,
        cwd=empty,
        env=dict(checkout.spec.env),
        timeout=timeout,
        repeat=repeat,
        issue=checkout.issue.statement,
    )


def _quoted(script: Path) -> str:
    import shlex

    return shlex.quote(str(script))
