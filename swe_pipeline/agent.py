"""The assistant: holds conversations about one work tree and does our own steps, all metered and recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlocal.swe_pipeline import context
from xlocal.swe_pipeline.checkout import Run
from xlocal.swe_pipeline.conversation import MALFORMED, Conversation, Task
from xlocal.swe_pipeline.limits import Meter, Used, money
from xlocal.swe_pipeline.models import ModelName, redact
from xlocal.swe_pipeline.trajectory import Effect, States, Step, Trajectory, digest, phase
from xlocal.swe_pipeline.workspace import State, Workspace, shorten

if TYPE_CHECKING:
    from pydantic_ai.models import Model


class GaveUp(Exception):  # noqa: N818 - an expected end
    """The model ended a conversation without a usable answer: it refused, talked on, or failed to call a tool."""


class Rejected(Exception):  # noqa: N818 - an expected turn
    """An answer is not accepted; the message tells the model why, so that it can try again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run is doing now: for the live line. A `notice` is worth a line of its own, such as a busy server."""

    phase: str
    step: int
    tokens: int
    spent: Decimal | None
    dollars_left: Decimal | None
    doing: str
    suspect: str = ""
    notice: bool = False

    def line(self) -> str:
        """One line for people."""
        left = "" if self.dollars_left is None else f", ${money(self.dollars_left)} left"
        suspect = f" [{self.suspect}]" if self.suspect else ""
        spent = "" if self.spent is None else f", ${money(self.spent)} spent"
        used = f"{self.tokens} tokens{spent}{left}"
        return f"{self.phase}: step {self.step}, {used}{suspect}: {self.doing}"


class Assistant:
    """Talks with one model about one work tree; everything it does goes through the trajectory and the meter."""

    def __init__(
        self,
        *,
        name: ModelName,
        opener: Callable[[], Model],
        trajectory: Trajectory,
        meter: Meter,
        workspace: Workspace,
        window: int | None = None,
        hidden: Sequence[str] = (),
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.name = name
        self.trajectory = trajectory
        self.meter = meter
        self.workspace = workspace
        self.window = window or context.UNKNOWN_WINDOW
        self.suspect = ""
        self._opener = opener
        self.hidden = tuple(hidden)
        self._progress = progress
        self._states = States(trajectory.folder)
        self._last_state: str | None = None
        self._conversations: dict[str, int] = {}
        self.temperature_refused = False
        trajectory.on_live = self._restore
        trajectory.on_served = self._served

    def count_recorded(self, steps: Sequence[Step]) -> None:
        """Count what the recorded part of a run used: it was billed."""
        for step in steps:
            for used in step.result if step.kind == "cut" else [step.used]:
                if used is not None:
                    self.meter.settle(None, Used.from_json(dict(used)))
        if steps:
            self.meter.at_least(steps[-1].elapsed)

    def _served(self, step: Step) -> None:
        if step.kind == "tool":
            self.meter.count_action(step.request["conversation"])
        self._last_state = step.state or self._last_state

    def _restore(self, state: str | None) -> None:
        """Bring the work tree to where the record ends."""
        if state is None:
            self.workspace.clean()
            return
        diff, scratch = self._states.load(state)
        self.workspace.restore(State(diff, scratch))

    def keep_state(self) -> str | None:
        """Save the work tree's state; its name when it is another than before."""
        state = self.workspace.snapshot()
        name = state.digest()
        if name == self._last_state:
            return None
        self._states.save(name, state.diff, state.scratch)
        self._last_state = name
        return name

    def state(self) -> State:
        """The work tree's state where the run stands, recorded or now."""
        if self._last_state is not None and not self.trajectory.live:
            return State(*self._states.load(self._last_state))
        return self.workspace.snapshot()

    def execute(
        self, what: Mapping[str, Any], work: Callable[[], Any], *, kind: str = "run", writes: bool = True
    ) -> Any:
        """A recorded step of ours, such as running the tests; `work` returns plain JSON."""

        def live(extra: Effect) -> Any:
            self.meter.check_time()
            self.show(_label(what))
            result = work()
            # What was cut short by the time limit tells nothing, and must not stand as a result.
            self.meter.check_time()
            if writes:
                extra.state = self.keep_state()
            return result

        return self.trajectory.effect(kind, what, live)

    def show(self, doing: str, *, notice: bool = False) -> None:
        """Tell the user what happens."""
        if self._progress is not None:
            spent = self.meter.spent()
            self._progress(
                Progress(
                    phase=self.trajectory.phase,
                    step=self.trajectory.upcoming,
                    tokens=spent.tokens,
                    spent=spent.dollars,
                    dollars_left=self.meter.dollars_left(),
                    doing=doing,
                    suspect=self.suspect,
                    notice=notice,
                )
            )

    def ask(self, task: Task) -> Any:
        """Have one conversation; returns the accepted answer.

        Raises GaveUp when the model hands in nothing usable, LimitReached before what would cross a limit, and
        AgentError when the model cannot be reached or its window is too short.
        """
        from pydantic_ai import Agent, ModelRetry, ToolOutput
        from pydantic_ai.exceptions import UnexpectedModelBehavior

        number = self._conversations[task.phase] = self._conversations.get(task.phase, 0) + 1
        conversation = Conversation(self, task, f"{task.phase}-{number}")
        model = self._opener()
        agent = Agent(
            conversation.metered(model),
            output_type=ToolOutput(task.answer, name=task.submit, description=task.submit_help),
            instructions=task.instructions,
            tools=[conversation.offered(tool) for tool in task.tools],
            retries={"tools": MALFORMED, "output": max(task.attempts, 2)},
            model_settings={"temperature": task.temperature},
        )

        rejected = ""

        @agent.output_validator
        def checked(answer: Any) -> Any:
            nonlocal rejected
            if task.check is not None:
                try:
                    task.check(answer)
                except Rejected as reason:
                    rejected = str(reason)
                    raise ModelRetry(shorten(rejected)) from None
            return answer

        with phase(self.trajectory, task.phase):
            try:
                # A loop of its own, with a client of its own: a check may hold another conversation meanwhile.
                return asyncio.run(_run(agent, model, task.prompt, conversation.name))
            except UnexpectedModelBehavior as error:
                last = f"what it last handed in was sent back: {rejected}" if rejected else conversation.last()
                reason = redact(" ".join(last.split())[:400], self.hidden)
                self.trajectory.note("gave-up", {"conversation": conversation.name}, reason)
                raise GaveUp(f"{task.phase}: the model gave no usable answer ({reason})") from error


async def _run(agent: Any, model: Model, text: str, conversation: str) -> Any:
    try:
        return (await agent.run(text, conversation_id=conversation)).output
    finally:
        client = getattr(model, "client", None)
        if client is not None:
            await client.close()


def _label(what: Mapping[str, Any]) -> str:
    """The first of what a step is about: `script buggy.py`."""
    name, value = next(iter(what.items()))
    listed = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{name} {listed}"[:80]


def as_json(run: Run) -> dict[str, Any]:
    """A run for the trajectory: how it ended and what it printed, shortened."""
    return {
        "exit_status": run.exit_status,
        "timed_out": run.timed_out,
        "seconds": round(run.seconds, 2),
        "log": shorten(run.log),
    }


def as_run(row: Mapping[str, Any]) -> Run:
    """What `as_json` wrote."""
    return Run(row["exit_status"], row["timed_out"], row["seconds"], row["log"])


def prompt(name: str, **values: str) -> str:
    """A prompt file with its `$names` filled in; what is filled in is not searched for names again."""
    from string import Template

    return Template((Path(__file__).parent / "prompts" / f"{name}.md").read_text("utf-8")).substitute(values)


def as_data(kind: str, text: str) -> str:
    """Text of others between marks that it cannot contain: something to read, never something to obey."""
    mark = f"{kind}-{digest(text)[:8]}"
    return f"<{mark}>\n{text.rstrip()}\n</{mark}>"
