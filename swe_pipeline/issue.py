"""Issues to solve: rows of SWE-bench from the hub or a file, or one hand-written for any repository.

What an agent may know (`Issue`) and what grades it (`Gold`) are two types that nothing joins again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xlocal.swe_pipeline.specs import check_setup
from xlocal.tracer.errors import UsageError

ALIASES = {
    "lite": "princeton-nlp/SWE-bench_Lite",
    "swe-bench-lite": "princeton-nlp/SWE-bench_Lite",
    "swe_bench_lite": "princeton-nlp/SWE-bench_Lite",
    "swe-bench/swe-bench_lite": "SWE-bench/SWE-bench_Lite",
    "princeton-nlp/swe-bench_lite": "princeton-nlp/SWE-bench_Lite",
}
# Of no use to a solver, but for grading: they never become part of an Issue.
GRADING_FIELDS = ("patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_HUB = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Issue:
    """A problem in a repository at a commit.

    `repository` is `owner/name`, a URL or a folder. `version` chooses the installation facts of a known repository;
    `setup` overrules or replaces them (the keys of specs.toml). `created` is the day of the report, UTC.
    """

    id: str
    repository: str
    base_commit: str
    statement: str
    version: str = ""
    created: datetime | None = None
    setup: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gold:
    """What grades an answer to the issue `id`: kept from agents. A hand-written issue may have none of it."""

    id: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Issues in the order of the source, and apart from them what grades those that can be graded."""

    name: str
    issues: tuple[Issue, ...]
    gold: Mapping[str, Gold]

    def select(self, ids: Sequence[str] | None) -> tuple[Issue, ...]:
        """The issues of these ids, in their order; all of them for None. Raises UsageError for an unknown id."""
        if ids is None:
            return self.issues
        known = {issue.id: issue for issue in self.issues}
        unknown = [name for name in ids if name not in known]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise UsageError(
                f"--instances: no instance {unknown[0]}{more} in {self.name} ({_example(known, unknown[0])})"
            )
        return tuple(known[name] for name in dict.fromkeys(ids))


def _example(known: Mapping[str, Issue], wanted: str) -> str:
    import difflib

    close = difflib.get_close_matches(wanted, known, n=1)
    return f"did you mean {close[0]}?" if close else f"it holds {len(known)}, such as {next(iter(known))}"


def load_dataset(source: str, *, split: str = "test") -> Dataset:
    """Read a JSONL or JSON file, or a dataset of the hub by its name or alias (needs the package `datasets`).

    Raises UsageError, one line, for a source that is not there and for each kind of fault in it.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        raise UsageError(f"--dataset {source}: is a folder; name a JSONL file or a dataset of the hub")
    if path.is_file():
        return _dataset(source, _read_file(path))
    name = ALIASES.get(source.lower(), source)
    if _HUB.fullmatch(name) and path.suffix not in (".jsonl", ".json"):
        return _dataset(name, ((f"row {number}", row) for number, row in enumerate(_from_hub(name, split), 1)))
    raise UsageError(f"--dataset {source}: no such file, and not the name of a dataset of the hub (owner/name or lite)")


def read_instances(given: str | None) -> tuple[str, ...] | None:
    """The ids of `A,B,...`, or of a file that lists them apart by commas or white space; None for all.

    In a file, a line that starts with # is a comment. Raises UsageError when nothing is named.
    """
    if given is None:
        return None
    path = Path(given).expanduser()
    text = given
    if "," not in given and path.is_file():
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--instances {given}: cannot be read: {error}") from None
        text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    ids = tuple(re.split(r"[\s,]+", text.strip(" \t\n,")))
    if ids == ("",):
        raise UsageError(f"--instances {given or repr(given)}: names no instance; leave the option out for all")
    return ids


def _dataset(name: str, rows: Iterable[tuple[str, Any]]) -> Dataset:
    issues: dict[str, Issue] = {}
    gold: dict[str, Gold] = {}
    for where, row in rows:
        issue = _issue(row, f"--dataset {name}: {where}")
        if issue.id in issues:
            raise UsageError(f"--dataset {name}: {where}: {issue.id} is there twice")
        issues[issue.id] = issue
        if row.get("test_patch"):
            gold[issue.id] = _gold(row, issue.id, f"--dataset {name}: {where}")
    if not issues:
        raise UsageError(f"--dataset {name}: holds no instance")
    return Dataset(name, tuple(issues.values()), gold)


def _read_file(path: Path) -> Iterator[tuple[str, Any]]:
    """One object per line, or one JSON document: an object, or a list of them."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--dataset {path}: cannot be read: {error}") from None
    if path.suffix == ".json" or text.lstrip().startswith("["):
        document = _parse(text, f"--dataset {path}")
        rows = document if isinstance(document, list) else [document]
        yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"line {number}", _parse(line, f"--dataset {path}: line {number}")


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: is not JSON: {error}") from None


def _from_hub(name: str, split: str) -> Iterable[Any]:
    try:
        import datasets
    except ImportError:
        raise UsageError(
            f"--dataset {name}: reading from the hub needs the package datasets (pip install 'xlocal[swe]'); "
            "a local JSONL file does not"
        ) from None
    try:
        with _without_retries_told("huggingface_hub", "datasets", "urllib3"):
            return list(datasets.load_dataset(name, split=split))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"--dataset {name}: cannot be had from the hub: {reason}") from None


@contextlib.contextmanager
def _without_retries_told(*names: str) -> Iterator[None]:
    """Libraries log each attempt to reach the hub; what came of them is one line of ours."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _issue(row: Any, where: str) -> Issue:
    if not isinstance(row, Mapping):
        raise UsageError(f"{where}: is not an object but {type(row).__name__}")
    name = _text(row, "instance_id", where)
    # It becomes the name of a folder.
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where}: instance_id {name!r} must consist of letters, digits and . _ + -")
    commit = _text(row, "base_commit", where)
    if not _COMMIT.fullmatch(commit):
        raise UsageError(f"{where}: base_commit {commit!r} is not a commit's hexadecimal name")
    setup = row.get("setup") or {}
    if not isinstance(setup, Mapping):
        raise UsageError(f"{where}: setup is not an object")
    check_setup(setup, f"{where}: setup")
    return Issue(
        id=name,
        repository=_text(row, "repo", where),
        base_commit=commit,
        statement=_text(row, "problem_statement", where),
        version=str(row.get("version") or ""),
        created=_created(row.get("created_at"), where),
        setup=dict(setup),
    )


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        what = "is missing" if value is None else f"is {'empty' if isinstance(value, str) else 'not text'}"
        raise UsageError(f"{where}: {key} {what}")
    return value


def _created(value: Any, where: str) -> datetime | None:
    if value in (None, ""):
        return None
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise UsageError(f"{where}: created_at {value!r} is not a date such as 2023-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _gold(row: Mapping[str, Any], name: str, where: str) -> Gold:
    return Gold(
        id=name,
        patch=_text(row, "patch", where),
        test_patch=_text(row, "test_patch", where),
        fail_to_pass=_tests(row, "FAIL_TO_PASS", where),
        pass_to_pass=_tests(row, "PASS_TO_PASS", where),
    )


def _tests(row: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """A list, or, as the benchmark has it, the JSON text of one."""
    value = row.get(key)
    tests = _parse(value, f"{where}: {key}") if isinstance(value, str) else value
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not all(isinstance(test, str) for test in tests):
        raise UsageError(f"{where}: {key} is not a list of test names")
    return tuple(tests)
