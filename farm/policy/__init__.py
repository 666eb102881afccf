"""The policies: ``oracle``, which knows the answer, ``nop``, which does nothing, and any OpenAI-compatible endpoint.

farm/docs/architecture/policy.md explains it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from farm.core.run import PolicySpec
from farm.policy.base import Message, Policy, PolicyError, Reply
from farm.policy.nop import NopPolicy
from farm.policy.openai import OpenAIPolicy
from farm.policy.openai_endpoint import EndpointPool
from farm.policy.oracle import OraclePolicy
from farm.tasks.bundle import TaskBundle

__all__ = ["EndpointPool", "make_policy"]

KINDS = ("oracle", "nop", "openai")


def make_policy(
    spec: PolicySpec,
    bundle: TaskBundle,
    *,
    seed: int,
    endpoints: EndpointPool | None = None,
) -> Policy:
    """The policy of one episode, to be closed by the caller. Raises PolicyError for a spec that names none.

    ``endpoints`` is what the episodes of a node share; without it the policy has an endpoint, without key, of its own.
    """
    match spec.kind:
        case "oracle":
            return OraclePolicy(bundle)
        case "nop":
            return NopPolicy()
        case "openai" if endpoints is not None:
            return OpenAIPolicy(spec, endpoints.at(spec.endpoint), seed=seed)
        case "openai":
            return _Alone(spec, seed=seed)
        case _:
            raise PolicyError(f"no policy of kind {spec.kind!r}; there are {', '.join(KINDS)}", retryable=False)


class _Alone:
    """An endpoint's policy that owns its endpoint."""

    def __init__(self, spec: PolicySpec, *, seed: int) -> None:
        self._endpoints = EndpointPool()
        self._policy = OpenAIPolicy(spec, self._endpoints.at(spec.endpoint), seed=seed)

    @property
    def unavailable_reason(self) -> str | None:
        return self._policy.unavailable_reason

    @property
    def silent_s(self) -> float:
        return self._policy.silent_s

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        return await self._policy.reply(messages, tools)

    async def replay(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        await self._policy.replay(messages, tools)

    async def close(self) -> None:
        await self._policy.close()
        await self._endpoints.close()
