"""The options of `pytest --xlocal`. Everything else is imported only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

GROUP = "xlocal"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini values; the command line overrules the file."""
    group = parser.getgroup(GROUP, "localize failing tests (xlocal)")
    group.addoption(
        "--xlocal",
        action="store_true",
        default=None,
        help="Compare each failing test with its nearest passing relatives, and name the functions to blame.",
    )
    group.addoption("--xlocal-top", type=int, metavar="N", help="How many suspects to print for a test (default: 5).")
    group.addoption(
        "--xlocal-scope",
        action="append",
        metavar="DIR|PACKAGE",
        help="The code to observe; may be repeated (default: the project that the tests import).",
    )
    group.addoption(
        "--xlocal-references",
        type=int,
        metavar="N",
        help="How many passing tests to compare with at most (default: 2).",
    )
    group.addoption("--xlocal-max", type=int, metavar="N", help="How many failing tests to localize (default: 5).")
    group.addoption(
        "--xlocal-jobs",
        metavar="N|auto",
        help="How many failing tests to localize at once; auto: as many as there are cores "
        "(default: as many as xdist runs at once, else 1).",
    )
    group.addoption(
        "--xlocal-tests", action="store_true", default=None, help="Let the tests' own functions be suspects too."
    )
    group.addoption(
        "--xlocal-spectrum",
        action="store_true",
        default=None,
        help="Record what every test executes during the run, for evidence by Ochiai's coefficient; implies --xlocal.",
    )
    group.addoption("--xlocal-ranker", metavar="NAME", help="The ranker, as of `xlocal rank` (default: fused).")
    parser.addini("xlocal", "localize failing tests, as --xlocal does", type="bool", default=False)
    parser.addini("xlocal_top", "as --xlocal-top", default="5")
    parser.addini("xlocal_scope", "as --xlocal-scope, separated by spaces", type="args", default=[])
    parser.addini("xlocal_references", "as --xlocal-references", default="2")
    parser.addini("xlocal_max", "as --xlocal-max", default="5")
    parser.addini("xlocal_jobs", "as --xlocal-jobs", default="")
    parser.addini("xlocal_tests", "as --xlocal-tests", type="bool", default=False)
    parser.addini("xlocal_spectrum", "as --xlocal-spectrum", type="bool", default=False)
    parser.addini("xlocal_ranker", "as --xlocal-ranker", default="fused")


def pytest_configure(config: pytest.Config) -> None:
    """Register what works when it is on: in the process that reports, and for the spectrum in xdist's workers too."""
    option = config.option
    spectrum = option.xlocal_spectrum or (option.xlocal_spectrum is None and config.getini("xlocal_spectrum"))
    if not (spectrum or option.xlocal or config.getini("xlocal")) or option.collectonly:
        return
    from xlocal.pytest_session import register

    register(config, spectrum=bool(spectrum))
