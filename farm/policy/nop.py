"""The policy that does nothing: what a task gives away for free shows in its reward."""

from collections.abc import Mapping, Sequence
from typing import Any

from farm.rollout.policy import Message, Reply, ToolCall


class NopPolicy:
    """Submits at once."""

    @property
    def outage(self) -> str | None:
        return None

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        return Reply(content="", tool_calls=(ToolCall("call_0", "submit", "{}"),), finish_reason="tool_calls")

    async def close(self) -> None:
        return None
