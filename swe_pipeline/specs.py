"""The facts of installing and testing a repository: the table specs.toml, and what an issue says of its own."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from xlocal.tracer.errors import UsageError

if TYPE_CHECKING:
    # A row's `setup` is checked while it is read, so that the reader of rows needs this module.
    from xlocal.swe_pipeline.issue import Issue

Install = Literal["editable", "develop", "overlay", "path"]
DEFAULT_PYTHON = "3.11"
# A fix of a dependency that the project needs often appears within days of the report.
_LATER = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Spec:
    """How one version of a repository is installed and tested; specs.toml explains each field.

    `until` is an ISO date. `test` runs tests when their names follow.
    """

    python: str = DEFAULT_PYTHON
    until: str = ""
    install: Install = "editable"
    isolated: bool = True
    requirements: tuple[str, ...] = ()
    requirement_files: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    project: bool = True
    extras: tuple[str, ...] = ()
    distribution: str = ""
    packages: tuple[str, ...] = ()
    source: str = "."
    wheels: tuple[tuple[str, str], ...] = ()
    generated: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    test: tuple[str, ...] = ("python", "-m", "pytest", "-rA")
    env: tuple[tuple[str, str], ...] = ()
    httpbin: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """All fields as plain values. One that came later is left out where it is empty: former results stand."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "httpbin" or self.httpbin}

    def installation(self) -> dict[str, Any]:
        """What the installation depends on, as plain values: two specs that agree here need no new one."""
        used_later = ("packages", "check", "test", "env")
        return {name: value for name, value in self.facts().items() if name not in used_later}

    def releases(self, moment: datetime) -> tuple[str, ...]:
        """The releases whose compiled files may fit a commit of that moment, the likeliest first.

        The table's choice by date, then those around it, later ones first.
        """
        day = moment.date().isoformat()
        later = [version for before, version in self.wheels if day < before]
        earlier = [version for before, version in reversed(self.wheels) if day >= before]
        pairs = itertools.zip_longest(later, earlier)
        return tuple(version for pair in pairs for version in pair if version is not None)


def spec_of(issue: Issue) -> Spec:
    """The facts for an issue's repository and version, overruled by the issue's own `setup`.

    A repository that is not in the table gets the defaults: an editable install with its own dependencies, resolved as
    of a month after the report. Raises UsageError for a version that the table lacks and for bad `setup`.
    """
    known = _table().entries.get(issue.repository, {})
    if known and issue.version not in known and not issue.setup:
        versions = ", ".join(known)
        raise UsageError(f"{issue.id}: version {issue.version!r} of {issue.repository} is unknown; known: {versions}")
    spec = known.get(issue.version, Spec(until=_month_after(issue.created)))
    if issue.setup:
        spec = replace(spec, **_checked(issue.setup, f"{issue.id}: setup"))
    return spec


def check_setup(setup: Mapping[str, Any], where: str) -> None:
    """Raise UsageError for a key that there is not, naming those there are, and for a value that cannot be."""
    _checked(setup, where)


def revision() -> int:
    """The table's revision; environments of another one are not used again."""
    return _table().revision


def _month_after(created: datetime | None) -> str:
    return ((created or datetime.now(UTC)) + _LATER).date().isoformat()


class _Table(NamedTuple):
    """`entries`: repository -> version -> Spec."""

    revision: int
    entries: dict[str, dict[str, Spec]]


@cache
def _table() -> _Table:
    with Path(__file__).with_name("specs.toml").open("rb") as file:
        document = tomllib.load(file)
    entries: dict[str, dict[str, Spec]] = {}
    for repository, facts in document.items():
        if isinstance(facts, Mapping):
            common = {key: value for key, value in facts.items() if key != "for"}
            for own in facts["for"]:
                merged = {**common, **own}
                versions = merged.pop("versions")
                spec = Spec(**_checked(merged, f"specs.toml: {repository}"))
                entries.setdefault(repository, {}).update(dict.fromkeys(versions, spec))
    return _Table(int(document["revision"]), entries)


def _checked(facts: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The facts with tuples for lists, each of the type that its field has."""
    defaults = {item.name: getattr(Spec(), item.name) for item in fields(Spec)}
    checked: dict[str, Any] = {}
    for key, value in facts.items():
        if key not in defaults:
            raise UsageError(f"{where}: unknown key {key!r}; known: {', '.join(defaults)}")
        if key in ("wheels", "env"):
            fits = isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values())
            checked[key] = tuple(value.items()) if fits else value
        elif isinstance(defaults[key], tuple):
            fits = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
            checked[key] = tuple(value) if fits else value
        else:
            fits = type(value) is type(defaults[key])
            checked[key] = value
        if not fits:
            raise UsageError(f"{where}: {key} has the wrong type: {value!r}")
    if checked.get("install", "editable") not in get_args(Install):
        raise UsageError(f"{where}: install is one of {', '.join(get_args(Install))}, not {checked['install']!r}")
    if checked.get("until"):
        try:
            date.fromisoformat(checked["until"])
        except ValueError:
            raise UsageError(f"{where}: until is not a date such as 2023-01-31: {checked['until']!r}") from None
    return checked
