"""The body of a chat completion request: messages in a form that engines accept, and the fields of its options."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from farm.core.nesting_limit import MAX_DEPTH, read_json
from farm.policy.base import Message, ReplyOptions

MAX_CONVERSATION_CHARS = 16 * 1024 * 1024
"""The maximum text of all messages of a request: more than any context holds."""
INLINE_CHARS = 16 * 1024
MAX_BRACKETS = 50_000
"""Arguments with more lists and objects, also in texts, are wrapped like malformed ones instead of parsed."""


def is_too_long(messages: Sequence[Message]) -> bool:
    """Return True if a conversation holds more text than ``MAX_CONVERSATION_CHARS``."""
    return sum(map(_chars, messages)) > MAX_CONVERSATION_CHARS


def option_fields(options: ReplyOptions, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request body for ``options``. They replace those of the sampling parameters."""
    fields: dict[str, Any] = dict(options.fields)
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


def _chars(message: Message) -> int:
    texts = (message.get("content"), message.get("reasoning_content"))
    return sum(len(text or "") for text in texts) + _argument_chars(message)


def sendable(message: Message) -> Message:
    """Return a message in a form that engines accept.

    Chat templates parse the arguments of past calls and refuse arguments that are not a JSON object. The arguments of a
    malformed call are wrapped in an object, so that the policy still sees its own text.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


async def sendable_all(messages: Sequence[Message]) -> list[Message]:
    """Return ``sendable`` of all messages. Long arguments are checked in a thread: an agent decides their length."""
    if sum(map(_argument_chars, messages)) <= INLINE_CHARS:
        return list(map(sendable, messages))
    return await asyncio.to_thread(lambda: list(map(sendable, messages)))


def _argument_chars(message: Message) -> int:
    return sum(len(call["function"]["arguments"]) for call in message.get("tool_calls") or ())


def _with_object(call: Mapping[str, Any]) -> Mapping[str, Any]:
    written = call["function"]["arguments"]
    try:
        msgspec.json.decode(written, type=_AnyObject)
        brackets = written.count("[") + written.count("{")
        if MAX_DEPTH < brackets <= MAX_BRACKETS:
            read_json(written)
        fine = brackets <= MAX_BRACKETS
    except (msgspec.DecodeError, ValueError, RecursionError):
        fine = False
    if fine:
        return call
    return {
        **call,
        "function": {**call["function"], "arguments": json.dumps({"malformed": written} if written else {})},
    }
