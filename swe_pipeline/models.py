"""Models by one text (`anthropic:NAME`, `http://host/v1#NAME`, `scripted:FILE`); keys come from the environment."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlocal.swe_pipeline.prices import FREE, FilePrice, Pricing, published_price
from xlocal.tracer.errors import AgentError, UsageError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model
    from pydantic_ai.models.function import AgentInfo

OWN_KEY = "XLOCAL_API_KEY"  # for URLs; a provider's key must not reach another server
_KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|_AUTH", re.IGNORECASE)
_ASK_SECONDS = 5


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model as the user named it: `kind` is scripted, url or a provider; `url` only for a URL."""

    text: str
    kind: str
    name: str
    url: str | None = None


def parse_model(text: str) -> ModelName:
    """Read a model's text. Raises UsageError for one that cannot mean anything."""
    kind, colon, rest = text.strip().partition(":")
    if kind in ("http", "https"):
        address, mark, name = text.strip().partition("#")
        host = urllib.parse.urlsplit(address)
        if not host.hostname or host.username or host.password:
            raise UsageError(f"--model {_without_login(text)}: is not a URL such as http://localhost:8080/v1#MODEL")
        if not mark or not name:
            raise UsageError(f"--model {text}: name the model after #, as in {address}#MODEL")
        return ModelName(text.strip(), "url", name, address.rstrip("/"))
    if not colon or not rest or not re.fullmatch(r"[a-z][a-z0-9-]*", kind):
        raise UsageError(
            f"--model {text}: is not of the form anthropic:NAME, openai:NAME, http://HOST/v1#NAME or scripted:FILE"
        )
    return ModelName(text.strip(), kind, rest)


def key_variable(model: ModelName) -> str | None:
    """The environment variable of a model's key, where it is known."""
    return OWN_KEY if model.url is not None else _KEYS.get(model.kind)


def _without_login(text: str) -> str:
    return re.sub(r"//[^/@]*@", "//...@", text)


def pricing_of(model: ModelName, prices: Mapping[str, FilePrice]) -> Pricing | None:
    """The price of a model: the price file's, else the published one, else None. A script costs nothing by itself."""
    for key in (model.text, "scripted" if model.kind == "scripted" else model.name):
        if key in prices:
            return prices[key]
    if model.kind == "scripted":
        return FREE
    return None if model.kind == "url" else published_price(model.kind, model.name)


def open_model(model: ModelName, *, issue_id: str = "", timeout: float = 300.0) -> Model:
    """A pydantic-ai model that tries each request once; `timeout` is in seconds.

    Raises AgentError when the packages or the key are missing, UsageError for a script that cannot be read.
    """
    try:
        import pydantic_ai.models  # noqa: F401
    except ImportError:
        raise AgentError("agents need more packages; install them with: pip install 'xlocal[agents]'") from None
    if model.kind == "scripted":
        return _scripted(Path(model.name), issue_id)
    try:
        if model.url is not None:
            return _at_url(model.name, model.url)
        return _at_provider(model)
    except ImportError as error:
        raise AgentError(f"--model {model.text}: needs another package: {error}") from None


def _at_url(name: str, url: str) -> Model:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    # Given explicitly: the client would otherwise send OPENAI_API_KEY, and its organisation, to any server.
    client = AsyncOpenAI(
        base_url=url, api_key=os.environ.get(OWN_KEY) or "none", organization="", project="", max_retries=0
    )
    return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))


def _at_provider(model: ModelName) -> Model:
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    key = _KEYS.get(model.kind)
    if key is not None and not os.environ.get(key):
        raise AgentError(f"--model {model.text}: set the environment variable {key}")
    try:
        return infer_model(model.text, provider_factory=_provider)
    except (UserError, ValueError) as error:
        raise AgentError(f"--model {model.text}: {' '.join(str(error).split())[:300]}") from None


def _provider(name: str) -> Any:
    """A provider with a client of its own: each conversation runs in an event loop of its own, and closes it."""
    from pydantic_ai.providers import infer_provider

    if name.startswith("openai"):
        from openai import AsyncOpenAI
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIProvider(openai_client=AsyncOpenAI(max_retries=0))
    if name == "anthropic":
        from anthropic import AsyncAnthropic
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicProvider(anthropic_client=AsyncAnthropic(max_retries=0))
    return infer_provider(name)


def context_window(model: ModelName, opened: Model) -> int | None:
    """Tokens that the model takes in one request, from what is published or what the server says; None when unknown."""
    if model.url is not None:
        return _window_at(model.url, model.name)
    window = opened.profile.get("context_window")
    return window if isinstance(window, int) else None


def _window_at(url: str, name: str) -> int | None:
    """vLLM tells `max_model_len`, llama.cpp `meta.n_ctx` (or what it was trained with); others tell nothing."""
    request = urllib.request.Request(
        f"{url}/models", headers={"Authorization": f"Bearer {os.environ.get(OWN_KEY, 'none')}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_ASK_SECONDS) as answer:
            rows = json.loads(answer.read(1 << 20)).get("data", [])
        chosen = next((row for row in rows if row.get("id") == name), rows[0] if len(rows) == 1 else {})
        meta = chosen.get("meta") or {}
        found = (
            chosen.get("max_model_len") or meta.get("n_ctx") or chosen.get("context_length") or meta.get("n_ctx_train")
        )
    except (OSError, ValueError, AttributeError, TypeError):
        # Many servers do not tell; one that is not there fails the first call, which says so.
        return None
    return found if isinstance(found, int) and found > 0 else None


def secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values of the environment that look like keys, the longest first; none may ever be written down."""
    found = {value for name, value in environment.items() if _SECRET_NAME.search(name) and len(value) >= 8}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def redact(text: str, hidden: Sequence[str]) -> str:
    """The text without the secrets, plain or as JSON writes them."""
    for secret in hidden:
        text = text.replace(json.dumps(secret)[1:-1], "[secret]").replace(secret, "[secret]")
    return text


def _scripted(file: Path, issue_id: str) -> Model:
    """A model that answers from a JSON file, for tests and demonstrations.

    The file maps the name of a conversation (`reproduce`, `judge-2`, `test-1`, `repair-1`; or without its number) to
    its turns. A turn is `{"tool": NAME, "args": {...}}`, `{"calls": [turns]}`, `{"text": ...}` or `{"status": 500}`,
    with `"usage"` to tell token counts and `"repeat": true` to answer so for ever. In a folder, each issue has its own
    file ID.json.
    """
    from pydantic_ai.models.function import FunctionModel

    path = file / f"{issue_id}.json" if file.is_dir() else file
    try:
        script = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"--model scripted:{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--model scripted:{path}: is not JSON: {error}") from None
    if not isinstance(script, dict):
        raise UsageError(f"--model scripted:{path}: is not an object of conversations")
    for conversation, turns in script.items():
        if not isinstance(turns, list) or not all(map(_is_turn, turns)):
            raise UsageError(
                f"--model scripted:{path}: {conversation} is not a list of turns (each has tool, calls, text or "
                "status; see docs/agents.md)"
            )

    def answer(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        name = next((m.conversation_id for m in messages if m.conversation_id), None) or ""
        return _turn(script, name, _answered(messages))

    return FunctionModel(answer, model_name="scripted")


def _is_turn(turn: object) -> bool:
    """Whether a turn of a script has a right shape."""
    kinds = {"tool": str, "calls": list, "text": str, "status": int}
    if not isinstance(turn, dict) or not kinds.keys() & turn.keys() or not isinstance(turn.get("usage", {}), dict):
        return False
    calls = turn.get("calls", [])
    return all(isinstance(turn[key], kind) for key, kind in kinds.items() if key in turn) and all(
        isinstance(call, dict) and isinstance(call.get("tool"), str) for call in calls
    )


def _answered(messages: Sequence[ModelMessage]) -> int:
    """How many turns were answered already, those that compaction left out included."""
    left_out = sum(int((m.metadata or {}).get("left_out", 0)) for m in messages if m.kind == "request")
    return left_out + sum(m.kind == "response" for m in messages)


def _turn(script: Mapping[str, Any], conversation: str, index: int) -> ModelResponse:
    from pydantic_ai.exceptions import ModelHTTPError
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.usage import RequestUsage

    turns = script.get(conversation) or script.get(re.sub(r"-\d+$", "", conversation)) or []
    if turns and index >= len(turns) and turns[-1].get("repeat"):
        index = len(turns) - 1
    turn: Mapping[str, Any] = turns[index] if index < len(turns) else {"text": "The script ends here."}
    if "status" in turn:
        raise ModelHTTPError(turn["status"], "scripted", {"scripted": True})
    calls = turn.get("calls") or ([turn] if "tool" in turn else [])
    parts: list[Any] = [
        # Named by their place, so that a run taken up again is the same to the letter.
        ToolCallPart(call["tool"], call.get("args", {}), tool_call_id=f"{conversation}.{index}.{number}")
        for number, call in enumerate(calls)
    ]
    if "text" in turn:
        parts.insert(0, TextPart(turn["text"]))
    usage = RequestUsage(**turn["usage"]) if "usage" in turn else RequestUsage()
    return ModelResponse(parts=parts, usage=usage)
