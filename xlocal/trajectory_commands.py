"""The commands that look at what an agent did: `xlocal trajectory show` and `replay`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlocal.agent_commands import FACTS, confined, fresh, reopened, resume_command
from xlocal.agent_options import NOT_GREEN, UNSAFE, limiting_option, say, shown
from xlocal.swe_solving_commands import batch_command
from xlocal.tracer.errors import UsageError

if TYPE_CHECKING:
    from xlocal.swe_pipeline.trajectory import Record, Step

_WIDTH, _LINES = 200, 8  # of a step's texts, unless they are shown whole


@click.group()
def trajectory() -> None:
    """Read what an agent did, or follow it again without a model."""


@trajectory.command()
@click.argument("run", type=click.Path(exists=True, path_type=Path))
@click.option("--phase", help="Only this phase: reproduce, judge, context, augment, repair, ...")
@click.option("--full", is_flag=True, help="Show requests and results whole.")
@click.option("--json", "as_json", is_flag=True, help="Print the steps as they are kept, one JSON object in a line.")
def show(run: Path, phase: str | None, full: bool, as_json: bool) -> None:
    """Print the steps of a run: its folder, or its trajectory.jsonl."""
    from xlocal.swe_pipeline.trajectory import read_trajectory

    record = read_trajectory(_file(run))
    phases = dict.fromkeys(step.phase for step in record.steps)
    if phase is not None and phase not in phases:
        raise UsageError(f"--phase {phase}: the run has no such phase; it has {', '.join(phases) or 'no steps'}")
    if not as_json:
        click.echo(" ".join(f"{key}={record.header[key]}" for key in ("issue", "model", "variant", "ranker", "base")))
    for step in record.steps:
        if phase is None or step.phase == phase:
            click.echo(json.dumps(step.as_json()) if as_json else _step_text(step, full))
    if record.cut:
        say("the last line was cut off by a crash")
    if not as_json:
        say(_standing(record, run if run.is_dir() else run.parent))


def _file(run: Path) -> Path:
    from xlocal.swe_pipeline.trajectory import FILE

    if not run.is_dir():
        return run
    if not (run / FILE).is_file():
        raise UsageError(f"{run}: holds no run ({FILE} is not in it)")
    return run / FILE


def _standing(record: Record, folder: Path) -> str:
    """How the run stands, and how to go on with it."""
    from xlocal.swe_pipeline.manifest import MANIFEST
    from xlocal.swe_pipeline.solve import PATCH

    last = record.steps[-1] if record.steps else None
    patch = folder / PATCH
    found = f"; the patch is in {patch}" if patch.is_file() and patch.stat().st_size else ""
    ended = str(last.result) if last is not None and last.kind == "end" else ""
    if (folder.parent.parent / MANIFEST).is_file() and not (folder / FACTS).is_file():
        return _standing_in_batch(ended, folder, found)
    more = f"`{resume_command(folder)}`"
    if last is None or last.kind != "end":
        return f"the run has not come to an end; {more} goes on with it"
    if last.result == "green":
        return f"the run ended with a patch that passes all tests{found}"
    if last.result == "reproduced":
        return f"the run ended with a pair of scripts in {folder / 'scripts'}; {more} goes on to a repair"
    if option := limiting_option(ended):
        return f"the run ended: {ended}{found}; {more} goes on with it, with a higher {option}"
    return f"the run ended: {ended}{found}; {more} goes on with it, `--step N` from an earlier step"


def _standing_in_batch(ended: str, folder: Path, found: str) -> str:
    """How an instance of a batch stands: the batch alone goes on with it."""
    option = limiting_option(ended)
    command = batch_command(folder.parent.parent, without=option)
    if command is None:
        return f"the run ended: {ended}{found}"
    if not ended or ended.startswith("error: "):
        return f"{ended or 'the run has not come to an end'}; `{command} --again` goes on with it"
    if option:
        return f"the run ended: {ended}{found}; `{command}` goes on with it, with a higher {option}"
    return f"the run ended: {ended}{found}; the batch keeps it so, and another --out does it anew"


def _step_text(step: Step, full: bool) -> str:
    used = ""
    if step.used is not None:
        estimated = ", estimated" if step.used["estimated"] else ""
        dollars = "" if step.used["dollars"] is None else f", ${step.used['dollars']}"
        used = f" ({step.used['input_tokens']}+{step.used['output_tokens']} tokens{dollars}{estimated})"
    what = "end" if step.kind == "end" else f"{step.phase}: {step.kind}{used}: {_asked(step)}"
    head = f"{step.number:4} {step.elapsed:8.1f} s  {what}"
    texts = (_arguments(step), _readable(step.result))
    shown_texts = texts if full else tuple(_brief(text) for text in texts)
    return "\n".join([head.rstrip(), *(f"       {line}" for text in shown_texts for line in text.splitlines())])


def _asked(step: Step) -> str:
    """What a step was about, on its first line."""
    request = step.request
    if step.kind == "model":
        return f"{request['conversation']}, turn {request['turn']}"
    if step.kind == "tool":
        return str(request["tool"])
    if step.kind == "sent-back":
        tool = f", tool {request['tool']}" if request["tool"] else ""
        return f"{request['conversation']}, turn {request['turn']}{tool}"
    if step.kind == "failed":
        return f"{request['conversation']}, turn {request['turn']}, attempt {request['attempt']}"
    about = {key: value for key, value in request.items() if key != "text"}
    return ", ".join(f"{key} {_words(value)}".strip() for key, value in about.items())


def _arguments(step: Step) -> str:
    """The arguments of a tool, each on lines of its own, since they may be whole files."""
    if step.kind != "tool":
        return ""
    rows = []
    for name, value in step.request["args"].items():
        text = value if isinstance(value, str) else json.dumps(value)
        rows.append(f"{name}: {text}" if "\n" not in text else f"{name}:\n" + _indented(text))
    return "\n".join(rows)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _readable(value: Any) -> str:
    """Texts as they are, names one in a line, records as `_record` tells them, the rest as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "\n".join(value)
    return (_record(value) if isinstance(value, dict) else None) or json.dumps(value, ensure_ascii=False)


def _record(value: dict[str, Any]) -> str | None:
    """A model's answer as its texts and calls, a run as its ending and output, suspects by name, tests as counts."""
    if value.get("kind") == "response":
        called = any(part["part_kind"] == "tool-call" for part in value["parts"])
        return "\n".join((*map(_part, value["parts"]), *([] if called else ["(no tool called; the model is told so)"])))
    if "exit_status" in value:
        ending = "timed out" if value["timed_out"] else f"exit status {value['exit_status']}"
        return f"{ending} after {value['seconds']} s\n{value['log']}".rstrip()
    if "suspects" in value:
        names = [f"{row['path']}::{row['qualname']}: {_first_reason(row)}" for row in value["suspects"]]
        warned = [f"warning: {row['text']}" for row in value.get("warnings", ())]
        return "\n".join((*names, *warned)) or "no function stands out"
    if value and all(isinstance(each, bool) for each in value.values()):
        failed = [f"fails: {name}" for name, passed in value.items() if not passed]
        return "\n".join((f"{sum(value.values())} of {len(value)} tests pass", *failed))
    return None


def _first_reason(row: dict[str, Any]) -> str:
    return str(row["evidence"][0]["detail"]) if row["evidence"] else "executed in the buggy run"


def _part(part: dict[str, Any]) -> str:
    if part["part_kind"] != "tool-call":
        return str(part.get("content", ""))
    arguments = part["args"] if isinstance(part["args"], str) else json.dumps(part["args"], ensure_ascii=False)
    return f"-> {part['tool_name']} {arguments}"


def _brief(text: str) -> str:
    lines = [line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..." for line in text.splitlines()]
    if len(lines) <= _LINES:
        return "\n".join(lines)
    # The start and the end: an error stands on the last line.
    return "\n".join([*lines[: _LINES - 3], f"... ({len(lines) - _LINES + 1} lines)", *lines[-2:]])


@trajectory.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--root", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="For an instance of a batch: the folder of the checkouts.")  # fmt: skip
@click.option("--dataset", default="lite", show_default=True, metavar="FILE|NAME", help="With --root: its dataset.")
@UNSAFE
def replay(run: Path, root: Path | None, dataset: str, unsafe_local: bool) -> None:
    """Follow a run again without a model: its answers are taken from the record, its tools work anew.

    The new record is kept in RUN/replay. Prints the patch; exits with 1 when it is another patch, or something else
    came out otherwise, which is told.
    """
    from xlocal.swe_pipeline.existing import ExistingTests
    from xlocal.swe_pipeline.solve import PATCH
    from xlocal.swe_pipeline.solve import replay as follow

    _file(run)
    checkout = _instance(run, root, dataset, unsafe_local) if root is not None else _own(run, unsafe_local)
    with shown() as progress:
        solution = follow(
            checkout, source=run, folder=fresh(run, "replay"), regression=ExistingTests(), progress=progress
        )
    former = (run / PATCH).read_text("utf-8") if (run / PATCH).exists() else ""
    for difference in solution.differences:
        say(f"differs: {difference}")
    sys.stdout.write(solution.diff)
    same = solution.diff == former
    say("the patch is the same" if same else "the patch is another one")
    sys.exit(0 if same and not solution.differences else NOT_GREEN)


def _own(run: Path, unsafe_local: bool) -> Any:
    try:
        return confined(reopened(run), unsafe_local)
    except UsageError as error:
        raise UsageError(f"{error}; for a run of a batch give --root") from None


def _instance(run: Path, root: Path, dataset: str, unsafe_local: bool) -> Any:
    from xlocal.demo import cache_folder
    from xlocal.swe_pipeline.checkout import LocalCheckout, Workplace
    from xlocal.swe_pipeline.issue import load_dataset
    from xlocal.swe_pipeline.sandbox import confine
    from xlocal.swe_pipeline.trajectory import read_trajectory

    name = str(read_trajectory(_file(run)).header["issue"])
    (issue,) = load_dataset(dataset).select((name,))
    return confine(LocalCheckout(issue, Workplace(root, cache_folder() / "swe")), unsafe_local=unsafe_local)


COMMANDS = (trajectory,)
