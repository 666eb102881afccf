"""A policy behind an OpenAI-compatible endpoint: what is asked, what is waited for, and what is given up on."""

import asyncio
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from farm.core.orders import PolicySpec
from farm.core.rollout import StopReason
from farm.policy.completion import Garbage, parse_completion
from farm.policy.endpoint import Answer, Endpoint
from farm.rollout.policy import Message, PolicyError, Reply

RESERVED = frozenset({"messages", "tools", "model", "stream", "n"})
_BUSY = (429, 503)
_CONTEXT = re.compile(r"context[_ ](length|window)|max_model_len|maximum.{0,40}tokens", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long failures in a row are borne. A busy endpoint (429, 503) is waited for until the agent's deadline."""

    tries: int = 6
    garbage_tries: int = 3
    backoff_s: float = 0.5
    longest_s: float = 60.0


class OpenAIPolicy:
    """One episode's conversation with an endpoint.

    No seed is sent unless the sampling parameters hold one; then each episode and turn adds its own to it, so that a
    group's episodes differ. ``close`` leaves the endpoint open: it is shared.
    """

    def __init__(self, spec: PolicySpec, endpoint: Endpoint, *, seed: int, patience: Patience | None = None) -> None:
        taken = RESERVED & spec.sampling_params.keys()
        if taken:
            raise PolicyError(f"sampling parameters may not set {', '.join(sorted(taken))}", retryable=False)
        self._spec = spec
        self._endpoint = endpoint
        self._seed = seed
        self._patience = patience or Patience()
        self._jitter = random.Random(seed)
        self._turn = 0
        self._outage: str | None = None

    @property
    def outage(self) -> str | None:
        return self._outage

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        body = await self._body(messages, tools)
        failures = waits = garbage = 0
        while True:
            try:
                answer = await self._endpoint.chat(body)
            except httpx.HTTPError as error:
                failures += 1
                await self._bear(f"{type(error).__name__}: {error}".removesuffix(": "), failures)
                continue
            if answer.status in _BUSY:
                self._outage = f"{self._endpoint.url} answers {answer.status}"
                failures, waits = 0, waits + 1
                await asyncio.sleep(_retry_after_s(answer, self._pause_s(waits), self._patience.longest_s))
                continue
            if answer.status >= httpx.codes.INTERNAL_SERVER_ERROR:
                failures += 1
                await self._bear(f"{answer.status}: {_said(answer)}", failures)
                continue
            if answer.status != httpx.codes.OK:
                return self._refused(answer)
            self._outage = None
            try:
                reply = parse_completion(answer.body)
                if reply.finish_reason == "abort":
                    raise Garbage("the engine aborted the request")
            except Garbage as error:
                garbage += 1
                if garbage >= self._patience.garbage_tries:
                    raise PolicyError(f"{self._endpoint.url} answers garbage: {error}", retryable=False) from None
                continue
            self._turn += 1
            return reply

    async def close(self) -> None:
        return None

    async def _body(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        params = dict(self._spec.sampling_params)
        if isinstance(params.get("seed"), int):
            params["seed"] = (int(params["seed"]) + self._seed + self._turn) % 2**31
        return {
            "model": self._spec.model or await self._model(),
            "messages": [_sendable(message) for message in messages],
            "tools": list(tools),
            **params,
        }

    async def _model(self) -> str:
        failures = 0
        while True:
            try:
                return await self._endpoint.model()
            except httpx.HTTPError as error:
                failures += 1
                await self._bear(f"{type(error).__name__}: {error}".removesuffix(": "), failures)

    async def _bear(self, what: str, failures: int) -> None:
        """Wait before another try, or raise PolicyError where there were enough."""
        self._outage = f"{self._endpoint.url}: {what}"
        if failures >= self._patience.tries:
            raise PolicyError(f"{self._outage} ({failures} tries); is the endpoint up?", retryable=True) from None
        await asyncio.sleep(self._pause_s(failures))

    def _pause_s(self, failures: int) -> float:
        """Exponential, with jitter: many episodes wait for the same endpoint."""
        longest = min(self._patience.longest_s, self._patience.backoff_s * 2.0 ** min(failures - 1, 16))
        return longest * self._jitter.uniform(0.5, 1.0)

    def _refused(self, answer: Answer) -> Reply:
        said = _said(answer)
        if answer.status in (400, 413, 422) and _CONTEXT.search(said):
            return Reply(content="", tool_calls=(), finish_reason="length", stop=StopReason.CONTEXT_LENGTH)
        remedy = {
            401: "; set the endpoint's API key",
            403: "; set the endpoint's API key",
            404: "; is it the base address, ending in /v1, and is the model served?",
        }.get(answer.status, "")
        raise PolicyError(f"{self._endpoint.url} refuses with {answer.status}: {said}{remedy}", retryable=False)


def _sendable(message: Message) -> Message:
    """A message as engines take it back.

    Chat templates parse the arguments of past calls and refuse a conversation in which they are no JSON object; a
    malformed call is handed back wrapped in one, so that the policy still sees what it wrote.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Mapping[str, Any]) -> Mapping[str, Any]:
    written = call["function"]["arguments"]
    try:
        fine = isinstance(json.loads(written), dict)
    except (ValueError, RecursionError):
        fine = False
    if fine:
        return call
    return {
        **call,
        "function": {**call["function"], "arguments": json.dumps({"malformed": written} if written else {})},
    }


def _said(answer: Answer) -> str:
    """What an error answer says, on one line."""
    text = answer.body[:4000].decode(errors="replace")
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        inner = found.get("error", found)
        text = str(inner.get("message", text)) if isinstance(inner, dict) else str(inner)
    return " ".join(text.split())[:300]


def _retry_after_s(answer: Answer, otherwise_s: float, longest_s: float) -> float:
    """``Retry-After`` as seconds or as a date, never more than ``longest_s``."""
    value = answer.headers.get("retry-after", "")
    if re.fullmatch(r"\d{1,9}(\.\d+)?", value):
        return min(float(value), longest_s)
    try:
        wait_s = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return otherwise_s
    return min(max(wait_s, 0.0), longest_s)
