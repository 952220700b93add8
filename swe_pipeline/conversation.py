"""One conversation with a model: each request metered and asked again while it may help, each tool call recorded."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from xlocal.swe_pipeline import context
from xlocal.swe_pipeline.faults import is_no_api, may_be_billed, may_pass, reason
from xlocal.swe_pipeline.limits import LEAST_OUTPUT, MOST_OUTPUT, LimitReached, Permit, Used
from xlocal.swe_pipeline.models import redact
from xlocal.swe_pipeline.trajectory import Effect, digest
from xlocal.swe_pipeline.workspace import ToolError
from xlocal.tracer.errors import AgentError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings
    from xlocal.swe_pipeline.agent import Assistant

ATTEMPTS = 5  # of one call, when the provider is busy or does not answer
LONGEST_WAIT = 60.0  # seconds between two of them
CALL_SECONDS = 300.0
MALFORMED = 10  # calls of one tool in a row that do not parse, before the model is given up
_SAME = 3


class ModelUnreachableError(AgentError):
    """The model's server did not answer in several attempts; later it may."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function offered to a model, typed by its signature, told by its docstring. `writes`: it may change files."""

    function: Callable[..., str]
    writes: bool


@dataclass(frozen=True, slots=True)
class Task:
    """One conversation: what the model is told, what it must hand in, and how long it may take.

    `check` gets the answer and raises Rejected to send it back, at most `attempts` times. Without tools, the model
    answers at once.
    """

    phase: str
    instructions: str
    prompt: str
    answer: type[Any]
    submit: str
    submit_help: str
    temperature: float
    actions: int = MALFORMED
    tools: tuple[Tool, ...] = ()
    attempts: int = 2
    check: Callable[[Any], None] | None = None


class Conversation:
    """One run of pydantic-ai's loop: its requests and its tool calls pass through here."""

    def __init__(self, assistant: Assistant, task: Task, name: str) -> None:
        self.name = name
        self._assistant = assistant
        self._task = task
        self._turn = 0
        self._unanswered = 0  # calls of the last answer that no tool has taken yet
        self._compacted = context.Cut()
        self._sent: tuple[context.Cut, int, int] | None = None  # how it was cut, bytes sent, tokens they were
        self._calls: list[str] = []
        self._said: ModelResponse | None = None

    def metered(self, model: Model) -> Model:
        """The model with every request passing through `request`."""
        from pydantic_ai.models.wrapper import WrapperModel

        conversation = self

        class Metered(WrapperModel):
            async def request(
                self,
                messages: list[ModelMessage],
                model_settings: ModelSettings | None,
                model_request_parameters: ModelRequestParameters,
            ) -> ModelResponse:
                return await conversation.request(messages, model_settings, model_request_parameters, self.wrapped)

        return Metered(model)

    async def request(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
        model: Model,
    ) -> ModelResponse:
        """Answer one request, from the record or from the model."""
        from pydantic_ai.messages import ModelMessagesTypeAdapter

        assistant, task = self._assistant, self._task
        for _ in range(self._unanswered):
            assistant.meter.count_action(self.name)  # did not parse, or was mere talk
        assistant.meter.check_actions(self.name, task.actions)
        self._turn += 1
        fixed = context.request_bytes([], parameters) + context.instructions_bytes(messages)
        sent = self._fit(messages, fixed)
        asked = {"conversation": self.name, "turn": self._turn, "digest": _texts_digest(sent)}

        async def live(extra: Effect) -> Any:
            self._note_rejected(messages)
            assistant.show(f"asking {assistant.name.name} (turn {self._turn})")
            response = await self._call(model, messages, settings, parameters, extra)
            return ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]

        row = await assistant.trajectory.async_effect("model", asked, live)
        (response,) = ModelMessagesTypeAdapter.validate_python([row])
        if response.kind != "response":
            raise AgentError(f"{assistant.trajectory.file}: a recorded answer is not an answer")
        self._said = response
        submits = [part for part in response.parts if part.part_kind == "tool-call" and part.tool_name == task.submit]
        calls = sum(part.part_kind == "tool-call" for part in response.parts)
        self._unanswered = max(calls, 1) - len(submits)
        for _ in submits:
            assistant.meter.count_action(self.name)
        return response

    def _note_rejected(self, messages: Sequence[ModelMessage]) -> None:
        """Tell what of the last answer was sent back (an unknown tool, wrong arguments, a bad answer), and why."""
        for part in messages[-1].parts:
            # A prompt after the first one answers mere talk.
            talk = self._turn > 1 and part.part_kind in ("user-prompt", "retry-feedback")
            if talk or getattr(part, "outcome", None) == "retried":
                request = {"conversation": self.name, "turn": self._turn - 1, "tool": getattr(part, "tool_name", None)}
                content = getattr(part, "content", "")
                text = content if isinstance(content, str) else json.dumps(content, default=str)
                self._assistant.trajectory.note("sent-back", request, text)

    def last(self) -> str:
        """How the model ended a conversation that came to nothing, in its own words where it used any."""
        parts = self._said.parts if self._said is not None else ()
        said = " ".join(str(part.content) for part in parts if part.part_kind == "text").strip()
        if said:
            return f'it said: "{said[:300]}"'
        calls = [part for part in parts if part.part_kind == "tool-call"]
        return f"its last call does not fit: {calls[-1].tool_name} {calls[-1].args}" if calls else "it said nothing"

    def _fit(self, messages: list[ModelMessage], fixed: int) -> list[ModelMessage]:
        assistant = self._assistant
        if self._turn == 1:
            first = context.request_bytes(messages) + fixed
            context.check_window(assistant.window, first, model=assistant.name.text)
        sent, self._compacted = context.compact(messages, window=assistant.window, fixed=fixed, already=self._compacted)
        return sent

    async def _call(
        self,
        model: Model,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
        extra: Effect,
    ) -> ModelResponse:
        """One answer of the model, asked again while its server is busy; every attempt is metered and noted."""
        from pydantic_ai.exceptions import ModelAPIError, ModelContextWindowExceededError, UnexpectedModelBehavior

        meter = self._assistant.meter
        fixed = context.request_bytes([], parameters) + context.instructions_bytes(messages)
        failure = ""
        for attempt in range(1, ATTEMPTS + 1):
            sent = self._fit(messages, fixed)
            size = context.request_bytes(sent) + fixed
            try:
                permit = meter.permit(input_bound=self._bound(size), wanted_output=self._longest_answer())
            except LimitReached as reached:
                if not failure:
                    raise
                # The limit alone would hide that the model was never reached.
                raise LimitReached(reached.limit, f"{reached} (no answer from the model: {failure})") from None
            try:
                response = await model.request(sent, self._settings(settings, permit), parameters)
            except ModelContextWindowExceededError as error:
                self._failed(permit, error, attempt, billed=False)
                self._shrink_window(size, fixed, error)
            except ModelAPIError as error:
                self._failed(permit, error, attempt, billed=may_be_billed(error))
                failure = reason(error, self._assistant)
                if self._drops_temperature(error):
                    continue
                await self._wait(error, attempt)
            except UnexpectedModelBehavior as error:
                if is_no_api(error):
                    self._failed(permit, error, attempt, billed=False)
                    raise AgentError(
                        f"--model {self._assistant.name.text}: this URL does not speak the API: it answers with a "
                        "page, not with JSON. Such a URL often ends in /v1; see docs/agents.md"
                    ) from error
                # An answer came, and was billed, but it cannot be read.
                self._failed(permit, error, attempt, billed=True)
                failure = reason(error, self._assistant)
                await self._wait(error, attempt)
            except BaseException as error:
                # Interrupted: it may be billed, and what is set aside for it must not keep others waiting.
                self._failed(permit, error, attempt, billed=True)
                raise
            else:
                self._count(response, permit, size, extra)
                return response
        raise ModelUnreachableError(
            f"--model {self._assistant.name.text}: no answer in {ATTEMPTS} attempts; see the trajectory"
        )

    def _bound(self, size: int) -> int:
        """The most tokens that the request can be: each byte one, except those whose tokens were counted before."""
        if self._sent is not None and self._sent[0] == self._compacted and size >= self._sent[1]:
            return self._sent[2] + (size - self._sent[1]) + context.OVERHEAD // 10
        return size + context.OVERHEAD

    def _longest_answer(self) -> int:
        return min(MOST_OUTPUT, max(LEAST_OUTPUT, self._assistant.window // 4))

    def _settings(self, settings: ModelSettings | None, permit: Permit) -> ModelSettings:
        left = self._assistant.meter.time_left()
        timeout = CALL_SECONDS if left is None else max(1.0, min(CALL_SECONDS, left))
        wanted: dict[str, Any] = {
            **(settings or {}),
            "max_tokens": permit.output_tokens,
            "timeout": timeout,
            "max_retries": 0,
            "cache": True,
        }
        if self._assistant.temperature_refused:
            wanted.pop("temperature", None)
        found: ModelSettings = wanted  # type: ignore[assignment]
        return found

    def _count(self, response: ModelResponse, permit: Permit, size: int, extra: Effect) -> None:
        usage = response.usage
        measured = bool(usage.input_tokens or usage.output_tokens)
        used = self._assistant.meter.used(permit, usage, measured=measured)
        self._assistant.meter.settle(permit, used)
        extra.used = used.as_json()
        if measured:
            self._sent = (self._compacted, size, usage.input_tokens)
            self._check_whole(usage.input_tokens, size)

    def _check_whole(self, read: int, size: int) -> None:
        """Some local servers cut a long prompt and say nothing; what they count tells."""
        name = self._assistant.name
        if name.kind == "url" and size > 12_000 and read < context.tokens_of(size) // 4:
            raise AgentError(
                f"--model {name.text}: the server read {read} tokens of about {context.tokens_of(size)}: it cuts long "
                "prompts silently. Give it a longer context (Ollama: OLLAMA_CONTEXT_LENGTH; llama.cpp: --ctx-size)"
            )

    def _failed(self, permit: Permit, error: BaseException, attempt: int, *, billed: bool) -> None:
        used = Used(failed=True, dollars=None if permit.bound_dollars is None else Decimal(0))
        if billed:
            used = Used(
                input_tokens=permit.bound_tokens - permit.output_tokens,
                output_tokens=permit.output_tokens,
                dollars=permit.bound_dollars,
                failed=True,
                estimated=True,
            )
        self._assistant.meter.settle(permit, used)
        text = redact(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", self._assistant.hidden)
        request = {"conversation": self.name, "turn": self._turn, "attempt": attempt}
        self._assistant.trajectory.note("failed", request, text, used=used.as_json())

    def _shrink_window(self, size: int, fixed: int, error: Exception) -> None:
        """The window is shorter than we were told: half of what did not fit."""
        assistant = self._assistant
        assistant.window = min(assistant.window, context.tokens_of(size)) * 2 // 3
        if assistant.window < context.OVERHEAD * 2:
            raise AgentError(
                f"--model {assistant.name.text}: its window is too short for this task: {reason(error, assistant)}"
            ) from error

    def _drops_temperature(self, error: Exception) -> bool:
        """Models that think often refuse a temperature; asked again without it, they answer."""
        status, assistant = getattr(error, "status_code", None), self._assistant
        if status != 400 or "temperature" not in str(error).lower() or assistant.temperature_refused:
            return False
        assistant.temperature_refused = True
        assistant.show("the model takes no temperature; asking without one", notice=True)
        return True

    async def _wait(self, error: Exception, attempt: int) -> None:
        """Wait as the server asks, else longer each time; raises AgentError when asking again is of no use."""
        assistant = self._assistant
        status = getattr(error, "status_code", None)
        if not may_pass(error):
            raise AgentError(f"--model {assistant.name.text}: {reason(error, assistant)}") from error
        if attempt == ATTEMPTS:
            raise ModelUnreachableError(
                f"--model {assistant.name.text}: no answer in {ATTEMPTS} attempts: {reason(error, assistant)}"
            ) from error
        # Spread, so that parallel issues do not all come back at once.
        pause = getattr(error, "retry_after", None) or 2.0 ** (attempt - 1) * random.uniform(0.8, 1.2)
        left = assistant.meter.time_left()
        pause = min(pause, LONGEST_WAIT if left is None else min(LONGEST_WAIT, left))
        said = f"{status or reason(error, assistant)}"
        assistant.show(f"no answer from the model ({said}); asking again in {pause:.0f} s", notice=True)
        await asyncio.sleep(pause)

    def offered(self, tool: Tool) -> Any:
        """A tool as pydantic-ai takes it: recorded, counted, one at a time."""
        import pydantic_ai

        assistant, task = self._assistant, self._task

        @functools.wraps(tool.function)
        async def call(**arguments: Any) -> str:
            self._unanswered -= 1

            def live(extra: Effect) -> Any:
                assistant.meter.act(self.name, task.actions)
                assistant.show(f"{tool.function.__name__} {_first(arguments)}")
                try:
                    text = tool.function(**arguments)
                except ToolError as error:
                    text = f"Error: {error}"
                if tool.writes:
                    extra.state = assistant.keep_state()
                return redact(text, assistant.hidden)

            request = {"conversation": self.name, "tool": tool.function.__name__, "args": arguments}
            text: str = assistant.trajectory.effect("tool", request, live)
            return text + self._nudge(request, text)

        return pydantic_ai.Tool(call, name=tool.function.__name__, sequential=True)

    def _nudge(self, request: Mapping[str, Any], text: str) -> str:
        """A word to a model that goes in a circle."""
        self._calls.append(digest([request, text]))
        if self._calls[-_SAME:].count(self._calls[-1]) == _SAME:
            return f"\n[the same call gave the same answer {_SAME} times: do something else, or hand in your answer]"
        return ""


def _first(arguments: Mapping[str, Any]) -> str:
    return " ".join(str(next(iter(arguments.values()), "")).split())[:60]


def _texts_digest(messages: Sequence[ModelMessage]) -> str:
    """Equal for requests that say the same, whenever they were made."""
    rows = []
    for message in messages:
        for part in message.parts:
            arguments = getattr(part, "args", None)
            if isinstance(arguments, str):
                # Malformed by the model, the text itself is as good.
                with contextlib.suppress(ValueError):
                    arguments = json.loads(arguments)
            content = getattr(part, "content", None)
            rows.append([part.part_kind, content if isinstance(content, str) else repr(content), arguments])
    return digest(rows)
