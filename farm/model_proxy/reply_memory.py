"""Restore the exact text of earlier replies in the messages that an agent sends back.

APIs lose details: Anthropic's has arguments as objects, most agents leave reasoning out. A prompt with other text has
other tokens, and the segment would fork at each turn. A message that an agent changed on purpose stays as it is.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from farm.core.nesting_limit import read_json
from farm.model_proxy.model_request import assistant
from farm.policy.base import Message, Reply

_Key = tuple[str, tuple[tuple[str, str, str], ...]]


class ReplyMemory:
    """The replies of one episode. ``keeps_thinking``: restored messages have their reasoning; otherwise none has."""

    def __init__(self, *, keeps_thinking: bool) -> None:
        self._keeps_thinking = keeps_thinking
        self._replies: dict[_Key, Message] = {}

    def add(self, reply: Reply) -> Message:
        """Remember a reply with the call ids that the agent reads, and return it as a message of later requests."""
        message = assistant(reply.content, reply.tool_calls, reply.reasoning if self._keeps_thinking else None)
        self._replies[_key(message)] = message
        return message

    def restore(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages in which earlier replies are as the engine gave them."""
        return [self._restored(message) for message in messages]

    def _restored(self, message: Message) -> Message:
        if message.get("role") != "assistant":
            return message
        known = self._replies.get(_key(message))
        if known is not None:
            return known
        if self._keeps_thinking:
            return message
        return {name: value for name, value in message.items() if name != "reasoning_content"}


def _key(message: Message) -> _Key:
    calls: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
    named = tuple((call["id"], call["function"]["name"], _canonical(call["function"]["arguments"])) for call in calls)
    return str(message.get("content") or "").strip(), named


def _canonical(arguments: str) -> str:
    """Return arguments in one form. Text that is no object is equal to the object that wraps it."""
    try:
        value = read_json(arguments)
    except ValueError:
        value = None
    if isinstance(value, dict) and value.keys() == {"malformed"} and isinstance(value["malformed"], str):
        return value["malformed"]
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else arguments
