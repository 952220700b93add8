"""The existing tests as a judge of patches: the files nearest to the suspects, run by the project's own runner."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xlocal.swe_pipeline.checkout import Checkout
from xlocal.swe_pipeline.covering import Choice, choose_by_coverage
from xlocal.swe_pipeline.regression import regression_command, run_tests
from xlocal.swe_pipeline.specs import Spec, spec_of
from xlocal.tracer.calltree import Function

# Lines of pytest's short summary (-rA).
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS) (\S+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ExistingTests:
    """At most `files` test files, run within `seconds`.

    A project with a runner of its own is run by it, and judged test by test where the package `swebench` reads its
    output, else file by file. Any other is run by pytest, which also runs unittest's tests.
    """

    files: int = 3
    seconds: float = 300.0

    def choose(self, checkout: Checkout, places: Sequence[tuple[str, str]]) -> Choice:
        """Test files for functions (path, qualname), the nearest first, by what their tests execute at the base."""
        return choose_by_coverage(checkout, [Function(*place) for place in places], limit=self.files)

    def run(self, checkout: Checkout, files: Sequence[str]) -> Mapping[str, bool]:
        """The tests in some files by name, and whether each passes; skipped ones are left out."""
        if not files:
            return {}
        if spec_of(checkout.issue).test != Spec().test:
            return self._by_own_runner(checkout, files)
        command = [checkout.python, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider"]
        run = checkout.run([*command, *files], timeout=self.seconds)
        return {name: outcome in ("PASSED", "XFAIL", "XPASS") for outcome, name in _OUTCOME.findall(run.log)}

    def _by_own_runner(self, checkout: Checkout, files: Sequence[str]) -> Mapping[str, bool]:
        if importlib.util.find_spec("swebench") is None:
            runs = {file: checkout.run(regression_command(checkout, [file]), timeout=self.seconds) for file in files}
            return {file: run.exit_status == 0 for file, run in runs.items()}
        outcome = run_tests(checkout, files, timeout=self.seconds)
        return {**dict.fromkeys(sorted(outcome.failed), False), **dict.fromkeys(sorted(outcome.passed), True)}
