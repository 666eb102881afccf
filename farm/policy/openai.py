"""A policy behind an OpenAI-compatible endpoint: requests, retries, and failures."""

import asyncio
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx
import msgspec

from farm.core.nesting_limit import MAX_DEPTH, read_json
from farm.core.rollout import StopReason
from farm.core.run import PolicySpec
from farm.policy.base import PLAIN, Message, PolicyError, Reply, ReplyOptions
from farm.policy.openai_endpoint import EndpointResponse, OpenAIEndpoint
from farm.policy.openai_response import MAX_NAME_CHARS, MalformedResponse, parse_completion, parse_models

RESERVED = frozenset({"messages", "tools", "model", "stream", "n"})
_BUSY = (429, 503)
_NO_ENTRY = (401, 403)
_SET_KEY = "set the endpoint's API key (FARM_POLICY_KEY with FARM_POLICY_URL, or policy_endpoints)"
_MEDIA_TYPE = re.compile(r"[a-z]{1,20}/[a-z0-9.+-]{1,40}")
_NAME_MODEL = "if that is the base address, ending in /v1, name the model (--model)"
MAX_CONVERSATION_CHARS = 16 * 1024 * 1024
"""The maximum text of all messages of a request: more than any context holds."""

Parsed = TypeVar("Parsed")
_CONTEXT = re.compile(r"context[_ ](length|window)|max_model_len|maximum.{0,40}tokens", re.IGNORECASE)


_FULL = Reply(content="", tool_calls=(), finish_reason="length", stop=StopReason.CONTEXT_LENGTH)


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """The number of failures in a row after which a policy fails. A busy endpoint (429, 503) is retried until the
    agent's deadline.

    ``timeout_tries`` counts requests without an answer in time, ``garbage_tries`` unreadable answers. ``longest_s``
    bounds each wait, also one that the endpoint requests.
    """

    tries: int = 6
    timeout_tries: int = 2
    garbage_tries: int = 3
    backoff_s: float = 0.5
    longest_s: float = 60.0


class OpenAIPolicy:
    """The conversation of one episode with an endpoint.

    A seed is sent only if the sampling parameters hold one. Each episode and turn adds its own number to the seed, so
    that the episodes of a group differ. ``close`` leaves the endpoint open, because it is shared.
    """

    def __init__(
        self, spec: PolicySpec, endpoint: OpenAIEndpoint, *, seed: int, patience: RetrySettings | None = None
    ) -> None:
        taken = RESERVED & spec.sampling_params.keys()
        if taken:
            raise PolicyError(f"sampling parameters may not set {', '.join(sorted(taken))}", retryable=False)
        self._spec = spec
        self._endpoint = endpoint
        self._seed = seed
        self._patience = patience or RetrySettings()
        self._jitter = random.Random(seed)
        self._turn = 0
        self._outage: str | None = None
        self._asked_at: float | None = None

    @property
    def unavailable_reason(self) -> str | None:
        return self._outage

    @property
    def silent_s(self) -> float:
        """Return the seconds for which a request waits while the endpoint sends nothing to any request of this node."""
        if self._asked_at is None or self._endpoint.answered_at > self._asked_at:
            return 0.0
        return time.monotonic() - self._asked_at

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], options: ReplyOptions = PLAIN
    ) -> Reply:
        if sum(map(_chars, messages)) > MAX_CONVERSATION_CHARS:
            return _FULL
        body = await self._body(messages, tools, options)
        garbage = 0
        while True:
            try:
                answer = await self._patiently(lambda: self._endpoint.chat(body, _parse, self._spec.timeouts))
            except MalformedResponse as error:
                self._outage = None
                garbage += 1
                if garbage >= self._patience.garbage_tries:
                    raise PolicyError(f"{self._endpoint.url} answers garbage: {error}", retryable=True) from None
                continue
            reply = answer.parsed
            if reply is None:
                return self._refused(answer)
            self._outage = None
            if reply.distrust:
                self._endpoint.distrust(reply.distrust)
            self._turn += 1
            return replace(reply, model=str(body["model"])[:MAX_NAME_CHARS])

    async def replay(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        self._turn += 1

    async def close(self) -> None:
        return None

    async def _body(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], options: ReplyOptions
    ) -> dict[str, Any]:
        params = dict(self._spec.sampling_params)
        if isinstance(params.get("seed"), int):
            params["seed"] = (int(params["seed"]) + self._seed + self._turn) % 2**31
        return {
            "model": self._spec.model or self._endpoint.model or await self._ask_model(),
            "messages": [_sendable(message) for message in messages],
            "tools": list(tools),
            **params,
            **_option_fields(options, params),
        }

    async def _ask_model(self) -> str:
        """Return the name of the one served model. Until the name is known, the endpoint counts as unavailable."""
        asked = f"{self._endpoint.url}/models"
        self._outage = f"{asked} has not said which model is served"
        try:
            answer = await self._patiently(lambda: self._endpoint.models(parse_models))
        except MalformedResponse as error:
            raise PolicyError(
                f"{asked} answers 200 but names no model: {error}; {_NAME_MODEL}", retryable=False
            ) from None
        if answer.parsed is None:
            remedy = f"{_SET_KEY}, or name the model (--model)" if answer.status in _NO_ENTRY else _NAME_MODEL
            raise PolicyError(f"{asked} refuses with {_status(answer)}; {remedy}", retryable=False)
        self._endpoint.model = answer.parsed
        self._outage = None
        return self._endpoint.model

    async def _patiently(self, ask: Callable[[], Awaitable[EndpointResponse[Parsed]]]) -> EndpointResponse[Parsed]:
        """Retry a request until the endpoint answers it for good. Raises PolicyError, MalformedResponse."""
        failures = waits = late = 0
        while True:
            self._asked_at = time.monotonic()
            try:
                answer = await ask()
            except httpx.ReadTimeout as error:
                late += 1
                await self._bear(_failure(error), late, self._patience.timeout_tries)
                continue
            except httpx.HTTPError as error:
                failures += 1
                await self._bear(_failure(error), failures, self._patience.tries)
                continue
            self._asked_at = None
            if answer.status in _BUSY:
                failures, late, waits = 0, 0, waits + 1
                asked_s = _seconds(answer.headers.get("retry-after", ""))
                self._outage = f"{self._endpoint.url} answers {answer.status}"
                if asked_s:
                    self._outage += f" (Retry-After: {min(asked_s, 86_400):.0f})"
                await asyncio.sleep(min(asked_s or self._pause_s(waits), self._patience.longest_s))
                continue
            if answer.status < httpx.codes.INTERNAL_SERVER_ERROR:
                return answer
            failures += 1
            await self._bear(_status(answer), failures, self._patience.tries)

    async def _bear(self, what: str, failures: int, most: int) -> None:
        """Wait before another try. Raises PolicyError after ``most`` failures."""
        self._outage = f"{self._endpoint.url}: {what}"
        if failures >= most:
            raise PolicyError(f"{self._outage} ({failures} tries); is the endpoint up?", retryable=True) from None
        await asyncio.sleep(self._pause_s(failures))

    def _pause_s(self, failures: int) -> float:
        """Return an exponential back-off with jitter: many episodes wait for the same endpoint."""
        longest = min(self._patience.longest_s, self._patience.backoff_s * 2.0 ** min(failures - 1, 16))
        return longest * self._jitter.uniform(0.5, 1.0)

    def _refused(self, answer: EndpointResponse[Reply]) -> Reply:
        said = _said(answer)
        if answer.status in (400, 413, 422) and _CONTEXT.search(said):
            return _FULL
        remedy = ""
        if answer.status in _NO_ENTRY:
            remedy = f"; {_SET_KEY}"
        elif answer.status == httpx.codes.NOT_FOUND:
            remedy = "; is it the base address, ending in /v1, and is the model served (--model)?"
        raise PolicyError(f"{self._endpoint.url} refuses with {_status(answer)}{remedy}", retryable=False)


def _option_fields(options: ReplyOptions, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request body for ``options``. They replace those of the sampling parameters."""
    fields: dict[str, Any] = {}
    if not options.parallel_calls:
        fields["parallel_tool_calls"] = False
    if not options.may_call_tools:
        fields["tool_choice"] = "none"
    if options.max_tokens is not None:
        name = "max_completion_tokens" if "max_completion_tokens" in params else "max_tokens"
        fields[name] = options.max_tokens
    return fields


class _AnyObject(msgspec.Struct):
    """Decodes a JSON object without building any of it."""


def _parse(body: bytes) -> Reply:
    reply = parse_completion(body)
    if reply.finish_reason == "abort":
        raise MalformedResponse("the engine aborted the request")
    return reply


def _chars(message: Message) -> int:
    calls = message.get("tool_calls") or ()
    texts = (message.get("content"), message.get("reasoning_content"))
    return sum(len(text or "") for text in texts) + sum(len(call["function"]["arguments"]) for call in calls)


def _sendable(message: Message) -> Message:
    """Return a message in a form that engines accept.

    Chat templates parse the arguments of past calls and refuse arguments that are not a JSON object. The arguments of a
    malformed call are wrapped in an object, so that the policy still sees its own text.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Mapping[str, Any]) -> Mapping[str, Any]:
    written = call["function"]["arguments"]
    try:
        msgspec.json.decode(written, type=_AnyObject)
        if written.count("[") + written.count("{") > MAX_DEPTH:
            read_json(written)
        fine = True
    except (msgspec.DecodeError, ValueError, RecursionError):
        fine = False
    if fine:
        return call
    return {
        **call,
        "function": {**call["function"], "arguments": json.dumps({"malformed": written} if written else {})},
    }


def _status(answer: EndpointResponse[Any]) -> str:
    """Return the status and the media type. An answer is never quoted: it may be an internal page, or hold a key."""
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    return f"{answer.status} ({kind})" if _MEDIA_TYPE.fullmatch(kind) else str(answer.status)


def _failure(error: httpx.HTTPError) -> str:
    """Return the name of a connection failure, without the parser's text, which quotes the answer."""
    kind = type(error).__name__
    if isinstance(error, httpx.LocalProtocolError):
        return f"{kind}: the request cannot be sent; is the key one line of plain characters?"
    if isinstance(error, httpx.ProtocolError):
        return f"{kind}: the answer is not HTTP"
    return f"{kind}: {error}".removesuffix(": ")


def _said(answer: EndpointResponse[Any]) -> str:
    """Return the text of an error answer on one line, only to search it for a full context, never for an error or a
    log.
    """
    text = answer.refusal[:4000].decode(errors="replace")
    try:
        found = read_json(answer.refusal)
    except ValueError:
        found = None
    if isinstance(found, dict):
        inner = found.get("error", found)
        text = str(inner.get("message", text)) if isinstance(inner, dict) else str(inner)
    return " ".join(text.split())[:300].encode(errors="replace").decode()


def _seconds(retry_after: str) -> float:
    """Return the seconds of ``Retry-After`` (seconds or a date), or 0 if it names no time in the future."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", retry_after):
        return float(retry_after)
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0.0
