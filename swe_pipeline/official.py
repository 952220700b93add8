"""What is taken from the benchmark's own package `swebench` (extra `swe`): markers, log parsers, test names, verdicts.

Its import takes seconds and pulls in its Docker and cloud clients; so it happens on first use, in the processes that
grade. Nothing of it that needs Docker or the network is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from xlocal.tracer.errors import UsageError

# The same strings as in swebench.harness.constants, which a test compares; logs can be written without the package.
APPLIED = ">>>>> Applied Patch"
NOT_APPLIED = ">>>>> Patch Apply Failed"
TIMED_OUT = ">>>>> Tests Timed Out"
START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"


@dataclass(frozen=True, slots=True)
class Official:
    """The parts of `swebench` that grading needs.

    `statuses(repository, log)`: status of each test named in the text of a log. `directives(repository, test_patch)`:
    the arguments of the test command. `report(statuses, fail_to_pass, pass_to_pass)`: the lists of tests that
    succeeded and failed, as in a report.json. `resolved(report)`: the verdict.
    """

    version: str
    statuses: Callable[[str, str], dict[str, str]]
    directives: Callable[[str, str], list[str]]
    report: Callable[[Mapping[str, str], Sequence[str], Sequence[str]], dict[str, dict[str, list[str]]]]
    resolved: Callable[[Mapping[str, Any]], bool]


@cache
def official() -> Official:
    """Import `swebench`. Raises UsageError when it is not installed, or is a release without these parts."""
    try:
        from importlib.metadata import version

        from swebench.harness import grading
        from swebench.harness.log_parsers import MAP_REPO_TO_PARSER
        from swebench.harness.log_parsers.python import parse_log_pytest
        from swebench.harness.test_spec.python import get_test_directives
    except ImportError as error:
        raise UsageError(
            f"grading needs swebench 4, the benchmark's own package ({error}): pip install 'xlocal[swe]'"
        ) from None

    def statuses(repository: str, log: str) -> dict[str, str]:
        # A repository outside of the benchmark is read as pytest's summary; the parsers of Python ignore the spec.
        return dict(MAP_REPO_TO_PARSER.get(repository, parse_log_pytest)(log, None))

    def directives(repository: str, test_patch: str) -> list[str]:
        return list(get_test_directives({"repo": repository, "test_patch": test_patch}))

    def report(
        found: Mapping[str, str], fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]
    ) -> dict[str, dict[str, list[str]]]:
        wanted = {"FAIL_TO_PASS": list(fail_to_pass), "PASS_TO_PASS": list(pass_to_pass)}
        made: dict[str, dict[str, list[str]]] = grading.get_eval_tests_report(dict(found), wanted)
        return made

    def resolved(tests: Mapping[str, Any]) -> bool:
        return bool(grading.get_resolution_status(tests) == grading.ResolvedStatus.FULL.value)

    return Official(version("swebench"), statuses, directives, report, resolved)


def passed(test: str, statuses: Mapping[str, str]) -> bool:
    """Whether a test counts as passed, by the benchmark's rule: it passed, or failed as expected."""
    return statuses.get(test) in ("PASSED", "XFAIL")


def test_output(log: str) -> str | None:
    """The part of a log between the markers; None when it lacks one, for then nothing was tested."""
    before, start, rest = log.partition(START)
    output, end, _ = rest.partition(END)
    return output if start and end and NOT_APPLIED not in before else None
