"""`xlocal fix` from an issue to a graded patch on real instances, with answers made from their pairs and gold patches.

python experiments/fix_cases.py --cases DIR --dataset FILE --root DIR --instances A,B,C --out DIR

No model is asked: what a model would have found is read from the data. Everything around it is the product's own:
scripts are written, run, judged and compared, a test is added, the repair is edited, tested, cut down and graded.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from methods import markdown, run_program
from xlocal.tracer.errors import UsageError

# Keeps what a script prints, so that its last line can compare it.
_TEE = """import io as _io, sys as _sys


class _Tee(_io.StringIO):
    def write(self, text):
        _sys.__stdout__.write(text)
        return super().write(text)


_sys.stdout = _Tee()
"""
_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*$", re.MULTILINE)
_PRICES = "[scripted]\ninput = 3\noutput = 15\n"  # US dollars for a million tokens


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one instance; `graded` is None where it was not graded."""

    instance: str
    verdict: str
    place: str
    calls: int
    actions: int
    dollars: str
    seconds: float
    graded: bool | None


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit status is 1 when a fix is not green or not resolved, 2 for wrong input."""
    return run_program(_main, argv)


def _main(argv: Sequence[str] | None) -> None:
    given = _parser().parse_args(argv)
    for name in ("cases", "dataset", "root", "out"):
        setattr(given, name, getattr(given, name).absolute())
    chosen = given.instances.split(",")
    issues = _issues(given.dataset, chosen)
    given.out.mkdir(parents=True, exist_ok=True)
    prices = given.out / "prices.toml"
    prices.write_text(_PRICES)
    solved = {name: solve(issues[name], given, prices) for name in chosen}
    file = given.out / "predictions.jsonl"
    rows = (
        {"instance_id": name, "model_name_or_path": "fix-cases", "model_patch": done["patch"]}
        for name, done in solved.items()
    )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    graded = None if given.no_grade else grade(file, given)
    table = [_row(name, done, true_functions(given.cases / name), graded) for name, done in solved.items()]
    print(shown(table))
    if not all(row.verdict == "green" and row.graded is not False for row in table):
        raise SystemExit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True, help="pairs of scripts: a folder for each instance")
    parser.add_argument("--dataset", type=Path, required=True, help="the benchmark's rows as JSONL")
    parser.add_argument("--root", type=Path, required=True, help="checkouts made by `xlocal swe prepare --root`")
    parser.add_argument("--instances", required=True, help="which, separated by commas")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for runs, predictions and logs")
    parser.add_argument("--grader", default=sys.executable, help="an interpreter with xlocal[swe]; default: this one")
    parser.add_argument("--mirrors", type=Path, help="bare repositories, for the grader")
    parser.add_argument("--no-grade", action="store_true", help="leave the grading out")
    return parser


def _issues(dataset: Path, wanted: Sequence[str]) -> dict[str, dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in dataset.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UsageError(f"--dataset {dataset}: cannot be read: {error}") from None
    found = {row["instance_id"]: row for row in rows if row["instance_id"] in wanted}
    missing = [name for name in wanted if name not in found]
    if missing:
        raise UsageError(f"--instances: {missing[0]} is not in {dataset}")
    return found


def solve(row: Mapping[str, Any], given: argparse.Namespace, prices: Path) -> dict[str, Any]:
    """Run `xlocal fix` on one instance as a user would; returns what it prints as JSON."""
    name = str(row["instance_id"])
    checkout, folder = given.root / name, given.out / name
    if folder.exists():
        raise UsageError(f"--out {given.out}: holds a run of {name} already; choose a new folder")
    try:
        python = (checkout / "python").read_text("utf-8").strip()
    except OSError:
        raise UsageError(f"{checkout}: holds no checkout; make it with xlocal swe prepare") from None
    folder.mkdir()
    (folder / "issue.md").write_text(row["problem_statement"], "utf-8")
    case = given.cases / name
    script = answers(row["patch"], checkout / "repo", true_functions(case), pair_of(case, python, folder))
    (folder / "model.json").write_text(json.dumps(script, indent=1), "utf-8")
    command = [sys.executable, "-m", "xlocal", "fix", str(folder / "issue.md"), "--repo", str(checkout / "repo")]
    command += ["--python", python, "--model", f"scripted:{folder / 'model.json'}", "--prices", str(prices)]
    command += ["--budget", "2", "--run", str(folder / "run"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (folder / "stderr.txt").write_text(done.stderr, "utf-8")
    if done.returncode not in (0, 1):
        raise UsageError(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def pair_of(case: Path, python: str, folder: Path) -> tuple[str, str]:
    """The case's scripts as a judge needs them: the buggy one fails, the reference passes.

    Cases that show the bug by what they print get a last line that compares it with what the bug prints.
    """
    try:
        buggy, reference = ((case / name).read_text("utf-8") for name in ("buggy.py", "reference.py"))
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    run = subprocess.run(
        [python, str(case / "buggy.py")], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    if run.returncode:
        return buggy, reference
    check = f"\nassert _sys.stdout.getvalue() != {run.stdout!r}, 'prints what the bug prints'\n"
    return _TEE + buggy + check, _TEE + reference + check


def answers(
    patch: str, repository: Path, functions: Sequence[str], scripts: tuple[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """A scripted model's turns by conversation: the pair, a kind judge, one more test, and the gold patch as edits."""
    buggy, reference = scripts
    submit = {
        "buggy": ".xlocal/buggy.py",
        "references": [".xlocal/reference.py"],
        "reported": "as the issue says",
        "suspicious_functions": list(functions),
    }
    files = sorted({path for path, _, _ in _hunks(patch)})
    return {
        "reproduce": [
            _call("view", path=files[0]),
            _call("create", path=".xlocal/buggy.py", text=buggy),
            _call("create", path=".xlocal/reference.py", text=reference),
            _call("submit_scripts", **submit),
        ],
        "judge": [
            _call("submit_judgement", buggy_shows_reported=True, reference_is_correct=True, reason="as reported")
        ],
        "localize": [_call("submit_functions", functions=list(functions))],
        "context": [_call("submit_context", files=files, functions=list(functions))],
        "augment": [
            _call("submit_test", source=reference, checks="the reference's behaviour", kind="behaviour to keep")
        ],
        "repair": [
            *(_call("view", path=path) for path in files),
            *edits(patch, repository),
            _call("run_tests"),
            _call("submit_patch", cause="as the gold patch says", function=[*functions, *files][0]),
        ],
    }


def _call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def edits(patch: str, repository: Path) -> Iterator[dict[str, Any]]:
    """Each hunk as a call of `edit`, its old text widened upwards until it stands in the file once."""
    texts: dict[str, str] = {}
    for path, _, body in _hunks(patch):
        text = texts.get(path)
        if text is None:
            file = repository / path
            text = file.read_text("utf-8") if file.is_file() else ""
        old = "".join(line[1:] for line in body if line[0] in " -")
        new = "".join(line[1:] for line in body if line[0] in " +")
        if not old:
            yield _call("create", path=path, text=new)
            texts[path] = new
            continue
        place = text.index(old)
        while text.count(old) > 1:
            before = text.rfind("\n", 0, max(0, place - 1)) + 1
            old, new, place = text[before:place] + old, text[before:place] + new, before
        yield _call("edit", path=path, old=old, new=new)
        texts[path] = text.replace(old, new)


def _hunks(patch: str) -> Iterator[tuple[str, int, list[str]]]:
    """The path, the first old line and the lines (with their first sign) of each hunk of a unified diff."""
    for piece in re.split(r"(?m)^(?=diff --git )", patch):
        found = re.search(r"(?m)^\+\+\+ b/(.*)$", piece)
        if found is None:
            continue
        starts = list(_HUNK.finditer(piece))
        for start, end in zip(starts, [*(each.start() for each in starts[1:]), len(piece)], strict=True):
            lines = piece[start.end() + 1 : end].splitlines(keepends=True)
            # An editor may have cut the blank of an empty line of context.
            yield (
                found[1],
                int(start[1]),
                [line if line[0] in " +-" else f" {line}" for line in lines if line[0] != "\\"],
            )


def true_functions(case: Path) -> list[str]:
    """The functions that the fix changed, as `path::qualname`."""
    try:
        return list(map(str, json.loads((case / "case.json").read_text("utf-8"))["true_functions"]))
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{case / 'case.json'}: cannot be read: {error}") from None


def grade(predictions: Path, given: argparse.Namespace) -> frozenset[str]:
    """Grade with `xlocal swe grade`; the instances that it calls resolved."""
    command = [
        given.grader,
        "-m",
        "xlocal",
        "swe",
        "grade",
        str(predictions),
        "--run-id",
        "fix",
        "--out",
        str(given.out),
    ]
    command += ["--dataset", str(given.dataset), "--root", str(given.root)]
    command += ["--mirrors", str(given.mirrors)] if given.mirrors else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    report = given.out / "fix-cases.fix.json"
    if not report.is_file():
        raise UsageError(f"xlocal swe grade left no {report.name} (exit status {done.returncode})")
    return frozenset(json.loads(report.read_text("utf-8"))["resolved_ids"])


def _row(name: str, done: Mapping[str, Any], wanted: Sequence[str], graded: frozenset[str] | None) -> Row:
    spent = done["spent"]
    return Row(
        instance=name,
        verdict=done["ended"],
        place=_place(done, wanted),
        calls=spent["calls"],
        actions=spent["actions"],
        dollars=spent["dollars"],
        seconds=spent["seconds"],
        graded=None if graded is None else name in graded,
    )


def _place(done: Mapping[str, Any], wanted: Sequence[str]) -> str:
    """Where the first true function stands in the list that the model got."""
    for number, suspect in enumerate((done["localization"] or {}).get("suspects", ()), 1):
        if f"{suspect['path']}::{suspect['qualname']}" in wanted:
            return str(number)
    return "-"


def shown(rows: Sequence[Row]) -> str:
    """The table, as markdown."""
    names = ("instance", "fix", "true function", "calls", "actions", "dollars", "s", "graded")
    words = {None: "-", True: "resolved", False: "not resolved"}
    body = [
        [row.instance, row.verdict, row.place, str(row.calls), str(row.actions), row.dollars, f"{row.seconds:.0f}",
         words[row.graded]]
        for row in rows
    ]  # fmt: skip
    return markdown(names, body)


if __name__ == "__main__":
    sys.exit(main())
