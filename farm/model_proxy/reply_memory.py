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

MOST_GROWTH, MOST_MORE_CHARS = 8, 1_000
"""Arguments that exceed their original by both are not parsed: another form of the same JSON is shorter."""

_Key = tuple[str, tuple[tuple[str, str], ...]]


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
        if known is not None and all(map(_is_same, _arguments(known), _arguments(message))):
            return known
        if self._keeps_thinking:
            return message
        return {name: value for name, value in message.items() if name != "reasoning_content"}


def _key(message: Message) -> _Key:
    """Return the text of a message and the ids and names of its calls. The ids are unique in an episode."""
    named = tuple((call["id"], call["function"]["name"]) for call in _calls(message))
    return str(message.get("content") or "").strip(), named


def _calls(message: Message) -> Sequence[Mapping[str, Any]]:
    return message.get("tool_calls") or ()


def _arguments(message: Message) -> list[str]:
    return [call["function"]["arguments"] for call in _calls(message)]


def _is_same(known: str, sent: str) -> bool:
    """Return True if an agent sent arguments in another form. An agent decides what it sends, so little is parsed."""
    if known == sent:
        return True
    return len(sent) <= MOST_GROWTH * len(known) + MOST_MORE_CHARS and _canonical(known) == _canonical(sent)


def _canonical(arguments: str) -> str:
    """Return arguments in one form. Text that is no object is equal to the object that wraps it."""
    try:
        value = read_json(arguments)
    except ValueError:
        value = None
    if isinstance(value, dict) and value.keys() == {"malformed"} and isinstance(value["malformed"], str):
        return value["malformed"]
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else arguments
