"""Keeping a conversation inside a model's window: old tool answers are left out first, then whole old turns."""

from __future__ import annotations

import bisect
import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from xlocal.swe_pipeline.limits import MOST_OUTPUT
from xlocal.tracer.errors import AgentError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import ModelRequestParameters

BYTES_PER_TOKEN = 3.0  # of source code and English, on the careful side
OVERHEAD = 1000  # tokens that a provider may add around the tools
FULL, AFTERWARDS = 0.8, 0.5  # shares of the window: when to compact, and down to what
UNKNOWN_WINDOW = 128_000
_STUB = 200  # characters of an old answer that stay
_RECENT = 6  # messages at the end that stay whole


def request_bytes(messages: Sequence[ModelMessage], parameters: ModelRequestParameters | None = None) -> int:
    """Bytes of a request's texts: no model makes more tokens of them."""
    size = sum(_message_bytes(message) for message in messages)
    if parameters is not None:
        for tool in (*parameters.function_tools, *parameters.output_tools):
            schema = json.dumps(tool.parameters_json_schema)
            size += len(f"{tool.name}{tool.description}{schema}".encode())
    return size


def _message_bytes(message: ModelMessage) -> int:
    size = 16
    for part in message.parts:
        size += 16 + len(_part_text(part).encode("utf-8", "surrogateescape"))
    return size


def instructions_bytes(messages: Sequence[ModelMessage]) -> int:
    """Bytes of the instructions, which go with each request."""
    for message in reversed(messages):
        if message.kind == "request" and message.instructions:
            return len(message.instructions.encode())
    return 0


def _part_text(part: Any) -> str:
    content = getattr(part, "content", None)
    if content is None and hasattr(part, "args"):
        arguments = part.args if isinstance(part.args, str) else json.dumps(part.args)
        return f"{part.tool_name}{arguments}"
    return content if isinstance(content, str) else json.dumps(content, default=str)


def tokens_of(size: int) -> int:
    """The likely number of tokens of so many bytes."""
    return int(size / BYTES_PER_TOKEN)


def room(window: int) -> int:
    """Tokens of a window that a request may take, the answer's share left free."""
    return window - min(MOST_OUTPUT, window // 4) - OVERHEAD


def check_window(window: int, size: int, *, model: str) -> None:
    """Raise AgentError when even the first request, of `size` bytes, leaves too little room to work in."""
    need = tokens_of(size)
    if need > FULL * room(window):
        raise AgentError(
            f"--model {model}: its window of {window} tokens is too short: the instructions, the issue and the "
            f"suspects alone need about {need}, and half of it must stay free to work in. Use a model with at least "
            f"{_round_up(int(need / 0.45))} tokens (Ollama: OLLAMA_CONTEXT_LENGTH; llama.cpp: --ctx-size; else "
            "--context-window), or a shorter list with --top"
        )


def _round_up(tokens: int) -> int:
    return -(-tokens // 1024) * 1024


class Cut(NamedTuple):
    """How a conversation was made shorter: before `short` long texts are cut, before `start` messages are gone."""

    short: int = 0
    start: int = 1


def compact(
    messages: Sequence[ModelMessage], *, window: int, fixed: int, already: Cut
) -> tuple[list[ModelMessage], Cut]:
    """The messages to send, and how they were made shorter.

    `fixed` is the size in bytes of instructions and tools. The first message, with the ranked list and the tests, and
    the newest ones always stay whole. Shortening goes on from `already` and in big steps, so that the text before stays
    the same from call to call and a provider's cache of it stays good.
    """
    most = room(window)

    def share(sent: Sequence[ModelMessage]) -> float:
        return tokens_of(request_bytes(sent) + fixed) / most

    sent = _apply(messages, already)
    if share(sent) <= FULL:
        return sent, already
    last = max(1, len(messages) - _RECENT)
    answers = [number for number in range(already.start + 1, len(messages)) if messages[number].kind == "response"]
    cuts = [Cut(upto, already.start) for upto in range(already.short + 1, last + 1)]
    cuts += [Cut(last, start) for start in answers]
    if not cuts:
        return sent, already
    # Each cut leaves less than the one before, so the first that is enough can be found by halving.
    enough = bisect.bisect_left(cuts, True, key=lambda cut: share(_apply(messages, cut)) <= AFTERWARDS)
    cut = cuts[min(enough, len(cuts) - 1)]
    return _apply(messages, cut), cut


def _apply(messages: Sequence[ModelMessage], cut: Cut) -> list[ModelMessage]:
    short = _shortened(messages, cut.short)
    gone = sum(message.kind == "response" for message in short[1 : cut.start])
    return [_with_note(short[0], gone), *short[cut.start :]]


def _shortened(messages: Sequence[ModelMessage], upto: int) -> list[ModelMessage]:
    """The messages with long tool answers and long arguments cut in all but the first, up to a position."""
    return [message if number == 0 or number >= upto else _cut(message) for number, message in enumerate(messages)]


def _cut(message: ModelMessage) -> ModelMessage:
    parts = [_cut_part(part) for part in message.parts]
    fields: Any = {"parts": parts}
    return dataclasses.replace(message, **fields)


def _cut_part(part: Any) -> Any:
    kind = part.part_kind
    if kind == "tool-return" and isinstance(part.content, str) and len(part.content) > 2 * _STUB:
        note = f"\n[{len(part.content) - _STUB} characters left out to save room; ask again if you need them]"
        return dataclasses.replace(part, content=part.content[:_STUB] + note)
    if kind == "tool-call" and isinstance(part.args, dict):
        short = {key: _cut_text(value) for key, value in part.args.items()}
        return dataclasses.replace(part, args=short)
    if kind == "text" and len(part.content) > 4 * _STUB:
        return dataclasses.replace(part, content=_cut_text(part.content))
    return part


def _cut_text(value: Any) -> Any:
    if isinstance(value, str) and len(value) > 2 * _STUB:
        return value[:_STUB] + f" [... {len(value) - _STUB} characters left out]"
    return value


def _with_note(first: ModelMessage, gone: int) -> ModelMessage:
    from pydantic_ai.messages import UserPromptPart

    if not gone or first.kind != "request":
        return first
    note = UserPromptPart(f"[{gone} earlier turns are left out to save room; the work tree keeps what they changed]")
    # A model that answers from a script finds its place by this number.
    return dataclasses.replace(first, parts=[*first.parts, note], metadata={"left_out": gone})
