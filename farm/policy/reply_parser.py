"""Parse the text of a reply: reasoning, content and tool calls.

Engines parse the replies of ``/chat/completions`` themselves. The farm parses only a reply that an engine aborted and
that was continued by ``/completions``, which returns plain text. Two forms of calls inside ``<tool_call>`` are read:
JSON, as Hermes and Qwen write it, and the XML of Qwen3-Coder.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.core.nesting_limit import read_json
from farm.policy.base import ToolCall
from farm.policy.openai_response import MAX_CALLS, MAX_NAME_CHARS

_END = re.compile(r"(?:<\|[A-Za-z_]{1,32}\|>|</s>|\s+)\Z")
_END_CHARS = 36
"""The length of the longest end token."""
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"\s*+<function=([^>\n]{1,256})>")
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,256})>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedReply:
    content: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]


def parse_reply(text: str, tools: Sequence[Mapping[str, Any]]) -> ParsedReply:
    """Parse a whole reply, with or without its end token. ``tools`` are the schemas that the request offered.

    A reply with a call that cannot be read keeps its text as content, as engines do.
    """
    text = _without_end(text)
    reasoning, text = _split_reasoning(text)
    bodies = [found[1] for _, found in zip(range(MAX_CALLS), _CALL.finditer(text), strict=False)]
    calls = [_read_call(index, body, tools) for index, body in enumerate(bodies)]
    if not calls or any(call is None for call in calls):
        return ParsedReply(text, reasoning, ())
    content = text[: text.index("<tool_call>")].strip()
    return ParsedReply(content, reasoning, tuple(call for call in calls if call is not None))


def _without_end(text: str) -> str:
    """Return a text without the end tokens and blanks at its end. A policy may write any number of blanks before it."""
    end = len(text)
    while found := _END.search(text[max(0, end - _END_CHARS) : end]):
        end -= len(found[0])
    return text[:end]


def _split_reasoning(text: str) -> tuple[str | None, str]:
    """Split off the reasoning. Its opening tag may be missing, because some templates put it into the prompt."""
    reasoning, closing, rest = text.partition("</think>")
    opened = reasoning.lstrip().startswith("<think>")
    if not closing and not opened:
        return None, text
    return reasoning.lstrip().removeprefix("<think>").strip(), rest.lstrip("\n")


def _read_call(index: int, body: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall | None:
    function = _FUNCTION.match(body)
    if function is not None:
        name = function[1].strip()
        written = body[function.end() :].rstrip().removesuffix("</function>")
        given = {key: _value(value, _type_of(tools, name, key)) for key, value in _PARAMETER.findall(written)}
        return ToolCall(f"call_{index}", name[:MAX_NAME_CHARS], json.dumps(given, ensure_ascii=False))
    try:
        call = read_json(body.encode())
    except (ValueError, UnicodeEncodeError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(f"call_{index}", call["name"][:MAX_NAME_CHARS], written)


def _type_of(tools: Sequence[Mapping[str, Any]], name: str, parameter: str) -> Any:
    for tool in tools:
        function = tool.get("function", {})
        if function.get("name") == name:
            return function.get("parameters", {}).get("properties", {}).get(parameter, {}).get("type")
    return None


def _value(text: str, kind: Any) -> Any:
    """Return a parameter's value. Text stays text; everything else is read as JSON if it can be."""
    if kind == "string":
        return text
    try:
        return read_json(text.encode())
    except (ValueError, UnicodeEncodeError):
        return text
