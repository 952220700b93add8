"""From an issue to a pair of scripts: one shows the bug, the other, as alike as possible, does not."""

from __future__ import annotations

import difflib
import io
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, Field
from xlocal.swe_pipeline.agent import Assistant, GaveUp, Rejected, as_data, as_json, as_run, prompt
from xlocal.swe_pipeline.checkout import Run
from xlocal.swe_pipeline.conversation import Task
from xlocal.swe_pipeline.leads import Leads, choose_by_model, compare_runs, with_highlighted
from xlocal.swe_pipeline.limits import LimitReached
from xlocal.swe_pipeline.tools import work_tools
from xlocal.swe_pipeline.trajectory import digest
from xlocal.swe_pipeline.workspace import SCRATCH, State, ToolError, describe, strip_noise
from xlocal.tracer.errors import UsageError

ALIKE = 0.5  # the least similarity of the first reference to the buggy script
NOISY = 0.5  # share of the functions that are called differently, above which a closer reference is asked for
ROUNDS = 6  # pairs that may be handed in
SCRIPT_SECONDS = 120.0
_ROLES = ("the buggy script", "the reference script")
_BROKEN = ("SyntaxError", "IndentationError", "TabError", "ModuleNotFoundError", "ImportError")


@dataclass(frozen=True, slots=True)
class ScriptPair:
    """Texts of the scripts: `buggy` fails while the bug is there, `references` pass; `similarity` is in 0..1."""

    buggy: str
    references: tuple[str, ...]
    reported: str = ""
    highlighted: tuple[str, ...] = ()
    similarity: tuple[float, ...] = ()

    def scripts(self) -> dict[str, str]:
        """File names in the scratch folder, and texts."""
        names = ["buggy.py", *(f"reference_{number}.py" for number in range(1, len(self.references) + 1))]
        return dict(zip(names, (self.buggy, *self.references), strict=True))


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What reproducing gave: the pair, or why there is none, the leads either way, and the `limit` that ended it."""

    pair: ScriptPair | None
    leads: Leads
    why_not: str | None = None
    limit: str | None = None


class Scripts(BaseModel):
    """The two scripts, written and run."""

    buggy: str = Field(description="the script that shows the bug, such as .xlocal/buggy.py")
    references: list[str] = Field(
        description="one or two scripts that show correct behaviour, the most similar first", min_length=1, max_length=2
    )
    reported: str = Field(description="in one sentence, what the issue reports and the buggy script shows")
    suspicious_functions: list[str] = Field(
        default_factory=list, description="functions that may hold the fault, as path::qualname, if you saw any"
    )


class Judgement(BaseModel):
    """Whether the outputs show what the issue reports."""

    buggy_shows_reported: bool = Field(description="the buggy script fails, and for the reason that the issue reports")
    reference_is_correct: bool = Field(description="the reference script uses the same feature and behaves correctly")
    reason: str = Field(description="one or two sentences; what to change when either is false")


def reproduce(
    assistant: Assistant,
    statement: str,
    *,
    actions: int = 100,
    ranker: str = "fused",
    encoder: str | None = None,
) -> Reproduction:
    """Write and check a pair of scripts for an issue, and compare their runs.

    Without a pair the model names functions from the text alone, and `why_not` says why. A limit of actions ends the
    writing and not the rest; other limits raise LimitReached.
    """
    checker = _Checker(assistant, statement, ranker=ranker, encoder=encoder)
    task = Task(
        phase="reproduce",
        instructions=prompt("reproduce", scratch=SCRATCH, python=assistant.workspace.checkout.python),
        prompt=as_data("issue", statement),
        answer=Scripts,
        submit="submit_scripts",
        submit_help="Hand in the scripts, when both were run and behave as they must.",
        temperature=0.0,
        actions=actions,
        tools=work_tools(assistant.workspace, may_edit=False),
        attempts=ROUNDS,
        check=checker.check,
    )
    limit = None
    try:
        assistant.ask(task)
    except GaveUp as error:
        why = str(error)
    except LimitReached as reached:
        if reached.limit != "actions":
            raise
        why, limit = str(reached), reached.limit
    else:
        why = ""
    # The repository as it was, whatever the agent tried in it.
    pair, leads = checker.best()
    _start_over(assistant, pair)
    if pair is not None and leads is not None and (leads.leads or not leads.blind):
        return Reproduction(pair, with_highlighted(leads, pair.highlighted, assistant.workspace), None, limit)
    reason = why or (
        leads.blind if leads and leads.blind else f"the runs could not be compared: {checker.incomparable}"
    )
    reason = reason if pair is not None else f"no pair of scripts: {reason}"
    return Reproduction(pair, choose_by_model(assistant, statement=statement, why=reason), reason, limit)


def compare_given(
    assistant: Assistant, statement: str, pair: ScriptPair, *, ranker: str = "fused", encoder: str | None = None
) -> Reproduction:
    """The same for scripts that the user gave: nothing is written, and they are taken as they are.

    Raises UsageError when the buggy script passes or a reference fails: they would judge every repair wrongly.
    """
    _start_over(assistant, pair)
    _require_usable(assistant, pair)
    names = [f"{SCRATCH}/{name}" for name in pair.scripts()]
    leads = compare_runs(
        assistant, buggy=names[0], references=names[1:], statement=statement, ranker=ranker, encoder=encoder
    )
    if isinstance(leads, Leads) and leads.leads:
        return Reproduction(pair, leads)
    why = leads if isinstance(leads, str) else leads.blind or "no function stands out"
    return Reproduction(pair, choose_by_model(assistant, statement=statement, why=why), why)


def _require_usable(assistant: Assistant, pair: ScriptPair) -> None:
    for number, (name, text) in enumerate(pair.scripts().items()):
        run = run_script(assistant, name, text)
        last = next((line.strip() for line in reversed(run.log.splitlines()) if line.strip()), "it printed nothing")
        if run.timed_out:
            raise UsageError(f"--pair: {_ROLES[number > 0]} did not end in {SCRIPT_SECONDS:.0f} s")
        if number == 0 and run.exit_status == 0:
            raise UsageError(
                "--pair: the buggy script exits with 0 before any repair; it must fail while the bug is there, as by "
                "an assertion"
            )
        if number > 0 and run.exit_status != 0:
            raise UsageError(f"--pair: the reference script fails before any repair, but must exit with 0: {last}")


def _start_over(assistant: Assistant, pair: ScriptPair | None) -> None:
    """The base commit with the pair's scripts, by their fixed names."""
    scratch = pair.scripts() if pair is not None else {}

    def work() -> Any:
        assistant.workspace.restore(State("", scratch))
        return sorted(scratch)

    assistant.execute({"start over with": sorted(scratch)}, work)


class _Checker:
    """Checks what is handed in: each fault is told once, with the outputs, and the best pair so far is kept."""

    def __init__(self, assistant: Assistant, statement: str, *, ranker: str, encoder: str | None) -> None:
        self._assistant = assistant
        self._statement = statement
        self._ranker = ranker
        self._encoder = encoder
        self._asked_for: set[str] = set()
        self._best: tuple[ScriptPair, Leads | None] | None = None
        self.incomparable = ""  # why two pairs in a row could not be compared

    def best(self) -> tuple[ScriptPair | None, Leads | None]:
        """The last pair that behaved as it must, with its comparison."""
        return self._best if self._best is not None else (None, None)

    def check(self, answer: Scripts) -> None:
        """Raise Rejected, with the outputs, when the pair must be written anew."""
        pair = self._read(answer)
        runs = self._run(pair)
        _require_behaviour(pair, runs)
        self._judge(pair, runs)
        self._best = (pair, None)
        names = [f"{SCRATCH}/{name}" for name in pair.scripts()]
        leads = compare_runs(
            self._assistant,
            buggy=names[0],
            references=names[1:],
            statement=self._statement,
            ranker=self._ranker,
            encoder=self._encoder,
        )
        if isinstance(leads, str):
            if leads in self._asked_for:
                self.incomparable = leads
                return  # other scripts would not help
            self._asked_for.add(leads)
            raise Rejected(f"The two runs could not be compared: {leads}. Write scripts that can.")
        self._best = (pair, leads)
        self._require_revealing(pair, leads)

    def _read(self, answer: Scripts) -> ScriptPair:
        workspace = self._assistant.workspace

        def work() -> Any:
            try:
                return [workspace.read(name) for name in (answer.buggy, *answer.references)]
            except ToolError as error:
                return str(error)

        texts = self._assistant.execute({"read": [answer.buggy, *answer.references]}, work, writes=False)
        if isinstance(texts, str):
            raise Rejected(f"{texts}. Write the scripts with `create`, then hand in their paths.")
        buggy, *references = texts
        alike = tuple(round(similarity(buggy, reference), 3) for reference in references)
        if alike[0] < ALIKE and "alike" not in self._asked_for:
            self._asked_for.add("alike")
            raise Rejected(
                f"The first reference is too different from the buggy script (similarity {alike[0]:.2f}, at least "
                f"{ALIKE} is wanted): what else differs hides the cause. Start from a copy of the buggy script and "
                "change as little of its input as you can."
            )
        if len(set(texts)) < len(texts):
            raise Rejected("Two of the scripts are the same text; they must differ in their input.")
        return ScriptPair(buggy, tuple(references), answer.reported, tuple(answer.suspicious_functions), alike)

    def _run(self, pair: ScriptPair) -> dict[str, list[Run]]:
        """Each script, twice, at the base commit: the agent's own changes to the repository do not count."""
        _start_over(self._assistant, pair)
        found = {}
        for name, text in pair.scripts().items():
            runs = [run_script(self._assistant, name, text, seed=seed) for seed in ("0", "1")]
            found[name] = runs
        return found

    def _judge(self, pair: ScriptPair, runs: dict[str, list[Run]]) -> None:
        shown = [f"{name}:\n{text}\n\nIts output:\n{describe(runs[name][0])}" for name, text in pair.scripts().items()]
        task = Task(
            phase="judge",
            instructions=prompt("judge"),
            prompt="\n\n".join([as_data("issue", self._statement), *(as_data("script", text) for text in shown)]),
            answer=Judgement,
            submit="submit_judgement",
            submit_help="Hand in the judgement.",
            temperature=0.0,
        )
        try:
            judgement: Judgement = self._assistant.ask(task)
        except GaveUp:
            return  # the outputs are as they must be; that nobody confirms it is no reason to throw them away
        if not judgement.buggy_shows_reported or not judgement.reference_is_correct:
            wrong = "buggy script does not show the reported bug"
            if judgement.buggy_shows_reported:
                wrong = "reference script does not show correct behaviour"
            raise Rejected(f"The {wrong}: {judgement.reason}\n\n" + "\n\n".join(shown))

    def _require_revealing(self, pair: ScriptPair, leads: Leads) -> None:
        if leads.blind and len(pair.references) == 1 and "second" not in self._asked_for:
            self._asked_for.add("second")
            raise Rejected(
                f"The comparison shows nothing: {leads.blind}. Write a second reference in which the feature is absent "
                "(do the same without it), or whose input is quite ordinary, and hand in both references."
            )
        if leads.noise is not None and leads.noise > NOISY and "closer" not in self._asked_for:
            self._asked_for.add("closer")
            raise Rejected(
                f"{leads.noise:.0%} of the functions are called differently in the two runs: too much noise to see the "
                "cause. Make the reference take the same path as the buggy script, with a smaller difference in input."
            )


def _require_behaviour(pair: ScriptPair, runs: dict[str, list[Run]]) -> None:
    problems = []
    for name, (first, second) in runs.items():
        broken = next((word for word in _BROKEN if f"\n{word}" in f"\n{first.log}"), None)
        if first.timed_out:
            problems.append(f"{name} did not end in {SCRIPT_SECONDS:.0f} s")
        elif broken and name != "buggy.py":
            problems.append(f"{name} does not run ({broken})")
        elif broken in _BROKEN[:3]:
            problems.append(f"{name} is not valid Python ({broken})")
        elif name == "buggy.py" and first.exit_status == 0:
            problems.append(
                "buggy.py exits with 0; it must fail (an assertion, or the error itself) while the bug is there"
            )
        elif name != "buggy.py" and first.exit_status != 0:
            problems.append(f"{name} fails; it must exit with 0")
        if (first.exit_status == 0) != (second.exit_status == 0):
            problems.append(f"{name} sometimes fails and sometimes not (PYTHONHASHSEED 0 and 1); make it deterministic")
    if problems:
        outputs = "\n\n".join(f"{name}:\n{describe(first)}" for name, (first, _) in runs.items())
        raise Rejected("; ".join(problems) + f".\n\nThe outputs:\n{outputs}")


def run_script(assistant: Assistant, name: str, text: str, *, seed: str = "0") -> Run:
    """Run a script of the scratch folder as a recorded step."""
    workspace = assistant.workspace

    def work() -> Any:
        run = workspace.python(f"{SCRATCH}/{name}", timeout=SCRIPT_SECONDS, env={"PYTHONHASHSEED": seed})
        return as_json(replace(run, log=strip_noise(run.log)))

    what = {"script": name, "text": digest(text), "seed": seed}
    return as_run(assistant.execute(what, work))


def similarity(first: str, second: str) -> float:
    """How alike two scripts are, 0..1: twice the common tokens over all, comments and layout left out."""
    return difflib.SequenceMatcher(None, _tokens(first), _tokens(second), autojunk=False).ratio()


def _tokens(source: str) -> Sequence[str]:
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    try:
        return [t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in skipped]
    except (tokenize.TokenError, SyntaxError):
        return source.split()  # not Python; its words are as good a measure
