"""Methods to compare: what each submitted, resolved and used, from predictions, reports and run folders."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xlocal.swe_pipeline.batch import Outcome, read_outcome
from xlocal.swe_pipeline.engines import Key
from xlocal.swe_pipeline.issue import Dataset, Issue, load_dataset, read_instances
from xlocal.swe_pipeline.localized import reader_of
from xlocal.swe_pipeline.manifest import read_manifest
from xlocal.swe_pipeline.predictions import load_predictions
from xlocal.swe_pipeline.reports import read_run_report
from xlocal.swe_pipeline.touched import Touched, touched
from xlocal.tracer.errors import PatchError, UsageError, XlocalError


@dataclass(frozen=True, slots=True)
class Method:
    """One method by instance: its patches, and where they are known the resolved ones, dollars and tokens.

    `folder` is the run's folder, when there is one.
    """

    name: str
    patches: Mapping[str, str | None]
    resolved: frozenset[str] | None = None
    dollars: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    folder: Path | None = None


def named(text: str) -> tuple[str, Path]:
    """`NAME=PATH`, or a path that is named after its file. Raises UsageError when nothing is there."""
    name, equals, path = text.rpartition("=")
    file = Path(path if equals else text)
    if not file.exists():
        raise UsageError(f"{file}: does not exist")
    return (name if equals else file.stem), file


def load_method(text: str, reports: Mapping[str, Path]) -> Method:
    """A method from a predictions file or the folder of a run; its report, if any, tells what it resolved."""
    name, path = named(text)
    method = _from_folder(name, path) if path.is_dir() else _from_predictions(name, path)
    if name in reports:
        resolved = frozenset(read_run_report(reports[name])["resolved_ids"])
        return Method(name, method.patches, resolved, method.dollars, method.tokens, method.folder)
    return method


def _from_predictions(name: str, file: Path) -> Method:
    return Method(name, {row.id: row.patch for row in load_predictions(file).values()})


def _from_folder(name: str, folder: Path) -> Method:
    solved, graded = outcomes(folder, "solve"), outcomes(folder, "grade")
    if not solved and not graded:
        raise UsageError(f"{folder}: holds neither solved nor graded instances")
    costs = {one: dict((outcome.result or {}).get("cost") or {}) for one, outcome in solved.items()}
    return Method(
        name=name,
        patches={one: (outcome.result or {}).get("patch") for one, outcome in solved.items()},
        resolved=frozenset(one for one, outcome in graded.items() if (outcome.result or {}).get("resolved"))
        if graded
        else None,
        dollars={one: float(cost["dollars"]) for one, cost in costs.items() if cost.get("dollars") is not None},
        tokens={one: int(cost["tokens"]) for one, cost in costs.items() if cost.get("tokens") is not None},
        folder=folder,
    )


def outcomes(folder: Path, step: str) -> dict[str, Outcome]:
    """What a step came to, by instance. Raises UsageError when the folder holds no run."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise UsageError(f"{folder}: holds no run (it has no run.json)")
    found = ((name, read_outcome(folder, Key(name, step))) for name in manifest["instances"])
    return {name: outcome for name, outcome in found if outcome is not None}


@dataclass(frozen=True, slots=True)
class Study:
    """What every program of the experiments works on. `touched` of a patch is kept, since many ask for the same."""

    dataset: Dataset
    issues: tuple[Issue, ...]
    methods: tuple[Method, ...]
    mirrors: Path | None
    root: Path | None
    out: Path | None
    known: dict[tuple[str, str], Touched] = field(default_factory=dict)

    def touched(self, issue: Issue, patch: str | None) -> Touched:
        """What a patch touches; nothing, when there is none or it does not apply."""
        key = (issue.id, patch or "")
        if key not in self.known:
            try:
                read = reader_of(issue, mirrors=self.mirrors, root=self.root)
                self.known[key] = touched(patch or "", read) if (patch or "").strip() else Touched()
            except PatchError:
                self.known[key] = Touched()
        return self.known[key]

    def gold(self, issue: Issue) -> Touched:
        """What the gold patch touches."""
        return self.touched(issue, self.dataset.gold[issue.id].patch)

    def resolved(self, method: Method) -> frozenset[str]:
        """The chosen instances that a method resolved. Raises UsageError when it is not known."""
        if method.resolved is None:
            raise UsageError(f"{method.name}: what it resolved is not known; give --report {method.name}=FILE")
        return method.resolved & {issue.id for issue in self.issues}


def arguments(description: str, *, methods: bool = True) -> argparse.ArgumentParser:
    """The options that the programs share."""
    parser = argparse.ArgumentParser(description=description)
    if methods:
        parser.add_argument("methods", nargs="+", metavar="NAME=PATH", help="a predictions file or a run's folder")
        parser.add_argument("--report", action="append", default=[], metavar="NAME=FILE", help="a MODEL.RUN.json")
    parser.add_argument("--dataset", default="lite")
    parser.add_argument("--instances")
    parser.add_argument("--mirrors", type=Path, help="bare repositories, to read base files from")
    parser.add_argument("--root", type=Path, help="prepared checkouts, to read base files from instead")
    parser.add_argument("--out", type=Path, help="the folder that gets the table (.md) and the plot (.svg)")
    return parser


def study(given: argparse.Namespace) -> Study:
    """Read what the options name."""
    dataset = load_dataset(given.dataset)
    issues = dataset.select(read_instances(given.instances))
    told = [named(text) for text in getattr(given, "report", ())]
    _once([name for name, _ in told], "--report {0}: names two reports of one method")
    texts = getattr(given, "methods", ())
    _once([named(text)[0] for text in texts], "{0}: two methods have this name; give each its own, as in NAME=PATH")
    reports = dict(told)
    methods = tuple(load_method(text, reports) for text in texts)
    unknown = sorted(set(reports) - {method.name for method in methods})
    if unknown:
        raise UsageError(f"--report {unknown[0]}: no method has this name")
    return Study(dataset, issues, methods, given.mirrors, given.root, given.out)


def _once(names: Sequence[str], complaint: str) -> None:
    """Raise UsageError for a name that is there twice: one would stand for the other."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(complaint.format(name))


def publish(name: str, table: str, plot: str | None, out: Path | None) -> None:
    """Print the table, and put it and the plot into the folder `out`."""
    print(table)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.md").write_text(table + "\n", "utf-8")
        if plot is not None:
            (out / f"{name}.svg").write_text(plot, "utf-8")


def markdown(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def counted(number: int, what: str) -> str:
    """`1 issue`, `2 issues`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def percent(part: float, whole: float) -> str:
    """A share in %, with one digit; a dash of nothing."""
    return f"{100 * part / whole:.1f}" if whole else "-"


def run_program(work: Callable[[Sequence[str] | None], None], argv: Sequence[str] | None) -> int:
    """The exit status of a program: 2 with one line on stderr for what cannot be."""
    try:
        work(argv)
    except XlocalError as error:
        print(error, file=sys.stderr)
        return 2
    except json.JSONDecodeError as error:
        print(f"not JSON: {error}", file=sys.stderr)
        return 2
    return 0
