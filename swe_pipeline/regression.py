"""Existing tests for a solver to keep passing, chosen from the repository at the base commit alone.

Nothing of what grades an issue is used: neither its test patch nor the names of its tests.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from xlocal.swe_pipeline.checkout import Checkout, Run
from xlocal.swe_pipeline.httpbin import served
from xlocal.swe_pipeline.official import official, passed
from xlocal.swe_pipeline.specs import spec_of
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import CheckoutError

LIMIT = 5
_TEST_FILE = re.compile(r"(?:^|/)(?:test_[^/]*|[^/]*_test|tests?|unittest_[^/]*)\.py$")
_SECONDS = 120.0
# A name in more test files than this says little about any of them.
_COMMON = 40


@dataclass(frozen=True, slots=True)
class Regression:
    """Names of the existing tests that passed and failed, as their runner prints them, and how the run ended."""

    passed: frozenset[str]
    failed: frozenset[str]
    run: Run


def choose_tests(checkout: Checkout, functions: Iterable[Function], *, limit: int = LIMIT) -> tuple[str, ...]:
    """The test files of the base commit that have most to do with some functions, the closest first.

    A file counts for the module it is named after (`test_nodes.py` or `nodes/tests.py` for `nodes.py`), for the
    folders it shares with it, and for each function, class and module of them that it mentions; a name counts by its
    rarity. Files that share nothing are left out. The order of `functions` does not matter. Raises CheckoutError when
    git cannot answer.
    """
    wanted = sorted(set(functions))
    tests = [path for path in _files(checkout) if is_test_file(path)]
    scores: defaultdict[str, float] = defaultdict(float)
    for module in sorted({function.path for function in wanted}):
        for test in tests:
            scores[test] += _kinship(test, module)
    for name in sorted({name for function in wanted for name in _names(function)}):
        mentioning = [path for path in _mentioning(checkout, name) if is_test_file(path)]
        if len(mentioning) <= _COMMON:
            for path in mentioning:
                scores[path] += 2.0 / len(mentioning) + 1.0
    ranked = sorted((path for path in scores if scores[path] >= 1), key=lambda path: (-scores[path], path))
    return tuple(ranked[:limit])


def importing(checkout: Checkout, functions: Iterable[Function]) -> tuple[str, ...]:
    """The test files of the base commit that write the dotted name of a module of some functions, such as an import.

    Those that write the most of them come first. Raises CheckoutError when git cannot answer.
    """
    counts: defaultdict[str, int] = defaultdict(int)
    for module in sorted({function.path for function in functions}):
        dotted = re.sub(r"^(?:src|lib)/|(?:/__init__)?\.py$", "", module).replace("/", ".")
        for path in _mentioning(checkout, dotted):
            counts[path] += is_test_file(path)
    return tuple(sorted((path for path in counts if counts[path]), key=lambda path: (-counts[path], path)))


def is_test_file(path: str) -> bool:
    """Whether a path names a Python file of tests by the usual customs."""
    parts = PurePosixPath(path).parts
    in_folder = any(part in ("tests", "test", "testing") for part in parts[:-1])
    return bool(_TEST_FILE.search(path)) or (in_folder and path.endswith("/tests.py"))


def run_tests(checkout: Checkout, files: Sequence[str], *, timeout: float) -> Regression:
    """Run test files in the checkout as it is now. Needs the package `swebench`, which reads the runners' logs."""
    repository = checkout.issue.repository
    with served(checkout) as variables:
        run = checkout.run(regression_command(checkout, files), timeout=timeout, env=variables)
    statuses = official().statuses(repository, run.log)
    ran = {name for name, status in statuses.items() if status != "SKIPPED"}
    good = frozenset(name for name in ran if passed(name, statuses))
    return Regression(good, frozenset(ran) - good, run)


def regression_command(checkout: Checkout, files: Sequence[str]) -> tuple[str, ...]:
    """The command that runs test files; Django's runner takes dotted names of modules."""
    names = [_label(path) for path in files] if checkout.issue.repository == "django/django" else list(files)
    return (*spec_of(checkout.issue).test, *names)


def _label(path: str) -> str:
    return path.removeprefix("tests/").removesuffix(".py").replace("/", ".")


def _files(checkout: Checkout) -> list[str]:
    return _lines(checkout, ["git", "ls-tree", "-r", "--name-only", "--full-tree", checkout.issue.base_commit])


def _mentioning(checkout: Checkout, name: str) -> list[str]:
    commit = checkout.issue.base_commit
    found = _lines(checkout, ["git", "grep", "-l", "-w", "-F", "-e", name, commit, "--", "*.py"], none=1)
    return [line.partition(":")[2] for line in found]


def _lines(checkout: Checkout, command: Sequence[str], *, none: int = 0) -> list[str]:
    """Lines that git prints; the exit status `none` means that there are none."""
    run = checkout.run(command, timeout=_SECONDS)
    if run.exit_status == none and none:
        return []
    if run.exit_status:
        raise CheckoutError(f"{checkout.issue.id}: {' '.join(command[:2])}: {run.log.strip()[-200:]}")
    return run.log.splitlines()


def _names(function: Function) -> Iterable[str]:
    """What a test would write to use the function; dunder methods go by their class."""
    parts = function.qualname.split(".")
    yield from (part for part in parts if not part.startswith("__") and len(part) > 3)


def _kinship(test: str, module: str) -> float:
    """How close a test file is to a module by their names: 3 for the module's own, up to 1 for its folder's."""
    own = PurePosixPath(module)
    name = own.parent.name if own.name == "__init__.py" else own.stem
    stem = re.sub(r"^(?:test|unittest)_|_tests?$", "", PurePosixPath(test).stem)
    folders = [
        part for part in PurePosixPath(test).parts[:-1] if part not in ("tests", "test", "testing", "src", "lib")
    ]
    around = [part for part in own.parts[:-1] if part not in ("src", "lib")]
    shared = len({*folders} & {*around}) / max(1, len(around))
    plain = name.lstrip("_")
    if stem.lstrip("_") == plain or (stem in ("tests", "test") and plain in folders):
        return 3.0 + shared
    if f"_{plain}_" in f"_{stem}_" or stem in around:
        return 1.5 + shared
    return 0.5 * shared if plain not in folders else 1.0 + 0.5 * shared
