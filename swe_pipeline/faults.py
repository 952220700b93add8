"""What the errors of a model's provider mean: may it be billed, may it help to ask again, and what is there to say."""

from __future__ import annotations

import http
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from xlocal.swe_pipeline.models import ModelName, key_variable, redact

if TYPE_CHECKING:
    from xlocal.swe_pipeline.agent import Assistant

# A provider's servers failed or are too busy; asking again may help.
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


def may_be_billed(error: Exception) -> bool:
    """An answer that was lost on the way may have been made, and billed; one to a question never sent was not."""
    from pydantic_ai.exceptions import ModelConnectionError, ModelTimeoutError

    cause: BaseException | None = error
    while cause is not None:
        # By name: providers differ in the HTTP client they bring along.
        if type(cause).__name__ in ("ConnectError", "ConnectTimeout", "ConnectionRefusedError", "gaierror"):
            return False
        cause = cause.__cause__ or cause.__context__
    return isinstance(error, ModelTimeoutError | ModelConnectionError)


def may_pass(error: Exception) -> bool:
    """Whether asking again later may help."""
    from pydantic_ai.exceptions import ModelConnectionError, ModelRequestRejectedError, UnexpectedModelBehavior

    if isinstance(error, ModelRequestRejectedError):
        return False
    hopeful = isinstance(error, ModelConnectionError | UnexpectedModelBehavior)
    return hopeful or getattr(error, "status_code", None) in _TRANSIENT


def is_no_api(error: Exception) -> bool:
    """Whether an answer is no JSON at all, but a page or other text: some other server, which bills nothing."""
    text = f"{error} {getattr(error, 'body', None) or ''}".lower()
    return "<html" in text or "<!doctype" in text or "expected json data" in text


def reason(error: Exception, assistant: Assistant) -> str:
    """What the provider said and what to look at, with the error of the system below it where that says more."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        phrase = f" ({http.HTTPStatus(status).phrase})" if status in set(http.HTTPStatus) else ""
        message = " ".join(_message(getattr(error, "body", None)).split())[:300]
        said = f"the server answers {status}{phrase}{': ' if message else ''}{message}"
        return redact(said + _advice(status, assistant.name), assistant.hidden)
    said, deepest = str(error), ""
    cause: BaseException | None = error
    while cause is not None:
        deepest = str(cause) if isinstance(cause, OSError) else deepest
        cause = cause.__cause__ or cause.__context__
    more = f": {deepest}" if deepest not in said else ""
    return redact(" ".join(f"{said.rstrip('.')}{more}".split())[:300], assistant.hidden)


def _message(body: object) -> str:
    """The words of an error's body, which providers wrap in different ways."""
    while isinstance(body, Mapping):
        body = next((body[key] for key in ("error", "message", "detail") if body.get(key)), None) or json.dumps(body)
    return "" if body is None else str(body)


def _advice(status: int, name: ModelName) -> str:
    if status in (401, 403):
        variable = key_variable(name)
        return f"; check the key in {variable}" if variable else "; check the key of that provider"
    if status == 404:
        return "; check the name of the model" + (" and the URL" if name.url else "")
    if status == 429:
        return "; too much was asked of it, or the account is used up: wait, or look at the account"
    return ""
