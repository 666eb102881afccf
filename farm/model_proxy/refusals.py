"""Refusals of the proxy, and their form in each API: an error object of OpenAI or Anthropic, or a problem document."""

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

MESSAGE_CHARS = 500
JSON_TYPE, PROBLEM_TYPE = "application/json", "application/problem+json"

_OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error", 503: "server_error", 500: "server_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_PROBLEM_PREFIX = "urn:farm:problem:"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole response. ``closes``: the connection ends with it."""

    status: int
    content_type: str
    body: bytes
    closes: bool = False


class Refused(Exception):
    """A request that the proxy does not serve. ``code`` is the error code of OpenAI's API, ``param`` the field."""

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None, closes: bool = False) -> None:
        super().__init__(" ".join(message.split())[:MESSAGE_CHARS])
        self.status = status
        self.code = code
        self.param = param
        self.closes = closes


def invalid(message: str, param: str | None = None) -> Refused:
    """Return the refusal of a body that cannot be served."""
    return Refused(HTTPStatus.BAD_REQUEST, message, code="invalid_request", param=param)


def render(refused: Refused, path: str) -> HttpResponse:
    """Return the refusal as the API at ``path`` words errors."""
    kind = JSON_TYPE
    if path.startswith("/openai/"):
        document = _openai(refused)
    elif path.startswith("/anthropic/"):
        document = _anthropic(refused)
    else:
        kind, document = PROBLEM_TYPE, _problem(refused)
    return HttpResponse(refused.status, kind, json.dumps(document).encode(), refused.closes)


def _openai(refused: Refused) -> dict[str, Any]:
    return {
        "error": {
            "message": str(refused),
            "type": _OPENAI_TYPES.get(refused.status, "invalid_request_error"),
            "param": refused.param,
            "code": refused.code,
        }
    }


def _anthropic(refused: Refused) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(refused.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(refused)}}


def _problem(refused: Refused) -> dict[str, Any]:
    return {
        "type": f"{_PROBLEM_PREFIX}{refused.code.replace('_', '-')}",
        "title": HTTPStatus(refused.status).phrase,
        "status": refused.status,
        "detail": str(refused),
    }
