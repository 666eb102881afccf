"""The seam to a policy: messages in, one reply out."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from farm.core.rollout import StopReason, WeightSpan

Message = Mapping[str, Any]
"""A chat message in OpenAI's form: ``role``, ``content``, ``tool_calls``, ``tool_call_id``."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``arguments`` is the text the policy wrote, JSON or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Sampled:
    """The engine's own tokens of one reply: nothing here was re-tokenised.

    ``prompt_token_ids`` int32[P]; ``token_ids`` int32[T]; ``logprobs`` float32[T]; spans count from the first of T.
    """

    prompt_token_ids: array[int]
    token_ids: array[int]
    logprobs: array[float]
    weight_versions: tuple[WeightSpan, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """``stop`` is set where the policy cannot go on (context exhausted, garbage that no error turn can mend).

    Where then nothing was said either, the reply is no turn: no token was sampled for it.
    ``model`` is the name of the model that the request was for, if the policy has one.
    ``distrust`` says, in one line, why tokens that the engine gave are not in ``sampled``; it is empty where the
    engine gave none.
    """

    content: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    request_id: str = ""
    reasoning: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sampled: Sampled | None = None
    distrust: str = ""
    model: str = ""
    stop: StopReason | None = None

    @property
    def silent(self) -> bool:
        return self.stop is not None and not self.content and not self.tool_calls and self.sampled is None


class PolicyError(Exception):
    """The policy's endpoint failed for good; ``retryable`` says whether a fresh attempt may fare better."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class Policy(Protocol):
    """One policy in one episode."""

    @property
    def unavailable_reason(self) -> str | None:
        """Why the endpoint refuses to serve just now; None where it serves, or is merely thinking.

        An agent's deadline that passes during an outage is not the agent's: the episode fails, retryable.
        """
        ...

    @property
    def silent_s(self) -> float:
        """Seconds for which the endpoint has answered nobody while this policy waits for it."""
        ...

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """The next message. Raises PolicyError."""
        ...

    async def replay(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """It has replied to these already, in a process that is no more; the reply is known. Raises PolicyError."""
        ...

    async def close(self) -> None: ...
