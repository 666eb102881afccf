"""Chat messages to a prompt in ChatML with Hermes tool calls, and a sampled text back to a message.

Special tokens that occur in the text of a system, user or tool message stay plain text. In an assistant's message the
tokens of reasoning and of tool calls are recognised, because they are the model's own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.core.nesting_limit import MAX_DEPTH, read_json
from farm.model_server.errors import RequestError
from farm.model_server.tokenizer import MARKUP, Tokenizer

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)
_CALL_START, _THINK, _THINK_END = "<tool_call>", "<think>", "</think>"
_ABOUT_TOOLS = """# Tools

You can call functions. Their signatures are the JSON objects between the next two tags:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and its arguments between the tags of a tool call:
<tool_call>
{{"name": <name>, "arguments": <object>}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of a reply; ``arguments`` is JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """``reasoning`` is None if the reply has none."""

    reasoning: str | None
    content: str
    calls: tuple[Call, ...]


class ChatTemplate:
    """The template over one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._start, self._end = tokenizer.special["<|im_start|>"], tokenizer.special["<|im_end|>"]

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return the token ids of a conversation up to the start of the assistant's reply. Raises RequestError."""
        if not messages:
            raise RequestError("messages: at least one message is required")
        ids: list[int] = []
        system, rest = _leading_system(messages)
        if tools:
            block = _ABOUT_TOOLS.format(tools="\n".join(_tool_line(*item) for item in enumerate(tools)))
            system = f"{system}\n\n{block}" if system else block
        if system is not None:
            ids += self._message("system", system)
        index = len(messages) - len(rest)
        while index < len(messages):
            role, text, number = _turn(messages, index)
            ids += self._message(role, text, MARKUP if role == "assistant" else ())
            index += number
        return [*ids, self._start, *self._tokenizer.encode("assistant\n")]

    def _message(self, role: str, text: str, allow: Sequence[str] = ()) -> list[int]:
        encode = self._tokenizer.encode
        return [self._start, *encode(f"{role}\n"), *encode(text, allow), self._end, *encode("\n")]


def _leading_system(messages: Sequence[Mapping[str, Any]]) -> tuple[str | None, Sequence[Mapping[str, Any]]]:
    if messages[0].get("role") in ("system", "developer"):
        return _content(messages[0], 0), messages[1:]
    return None, messages


def _turn(messages: Sequence[Mapping[str, Any]], index: int) -> tuple[str, str, int]:
    """Return role and text of the message at ``index``, and the number of messages that it covers.

    Results of tools that follow each other are one user message.
    """
    message = messages[index]
    match message.get("role"):
        case "assistant":
            return "assistant", _assistant_text(message, index), 1
        case "tool":
            end = index
            while end < len(messages) and messages[end].get("role") == "tool":
                end += 1
            results = (_content(messages[at], at) for at in range(index, end))
            text = "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)
            return "user", text, end - index
        case "user" | "system" | "developer" as role:
            return ("user" if role == "user" else "system"), _content(message, index), 1
        case role:
            raise RequestError(f"messages[{index}].role: {str(role)[:40]!r} is not system, user, assistant or tool")


def _assistant_text(message: Mapping[str, Any], index: int) -> str:
    """Return an assistant's message as the model writes it."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    text = _content(message, index)
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise RequestError(f"messages[{index}].tool_calls: a list is required")
    for number, call in enumerate(calls):
        separator = "\n" if text and not text.endswith("\n") else ""
        text += f"{separator}{_call_text(call, f'messages[{index}].tool_calls[{number}]')}"
    if isinstance(reasoning, str) and reasoning:
        return f"{_THINK}\n{reasoning}\n{_THINK_END}\n\n{text}"
    return text


def _call_text(call: object, where: str) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function.name: a string is required")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = _json(arguments)
    try:
        if not isinstance(read_json(arguments), dict):
            raise ValueError
    except ValueError:
        raise RequestError(f"{where}.function.arguments: a JSON object is required") from None
    return f'<tool_call>\n{{"name": {_json(function["name"])}, "arguments": {arguments}}}\n</tool_call>'


def _content(message: Mapping[str, Any], index: int) -> str:
    """Return the text of a message: a string, nothing, or a list of text parts."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "".join(str(text) for text in texts)
    raise RequestError(f"messages[{index}].content: a string or a list of text parts is required")


def _tool_line(index: int, tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"tools[{index}]: an object of type function with a function.name is required")
    return _json(tool)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def parse_reply(text: str, *, with_calls: bool = True) -> ParsedReply:
    """Return reasoning, content and tool calls of a sampled text. ``with_calls`` False leaves calls in the content.

    Text that follows a tool call is dropped. If one call is malformed, the whole text after the reasoning is content.
    """
    reasoning, rest = _split_reasoning(text)
    if not with_calls or _CALL_START not in rest:
        return ParsedReply(reasoning, rest, ())
    try:
        calls = tuple(_parsed_call(closed or unclosed) for closed, unclosed in _CALL.findall(rest))
    except ValueError:
        return ParsedReply(reasoning, rest, ())
    return ParsedReply(reasoning, rest[: rest.index(_CALL_START)], calls)


def _split_reasoning(text: str) -> tuple[str | None, str]:
    """Return the reasoning, without the line breaks around it, and the text after it.

    Reasoning that is not closed goes to the end of the text.
    """
    if not text.startswith(_THINK):
        return None, text
    reasoning, closed, rest = text.removeprefix(_THINK).partition(_THINK_END)
    if not closed:
        return reasoning.removeprefix("\n"), ""
    return reasoning.removeprefix("\n").removesuffix("\n"), rest.removeprefix("\n\n")


def _parsed_call(text: str) -> Call:
    """Return the call in the text between the tags. Raises ValueError if it is malformed."""
    if text.count("[") + text.count("{") > MAX_DEPTH * MAX_DEPTH:
        raise ValueError("too many brackets")
    call = read_json(text)
    if (
        not isinstance(call, dict)
        or not isinstance(call.get("name"), str)
        or not isinstance(call.get("arguments"), dict)
    ):
        raise ValueError("not a call")
    return Call(call["name"], _json(call["arguments"]))


def parse_growing(text: str, *, with_calls: bool = True) -> ParsedReply:
    """Return the start of a growing text's fields: more text can only make them longer, or add calls."""
    if _THINK.startswith(text):
        return ParsedReply(None, "", ())
    reasoning, rest = _split_reasoning(text)
    if reasoning is not None and _THINK_END not in text:
        held = reasoning[: len(reasoning) - _held(reasoning, ("\n" + _THINK_END, _THINK_END))]
        return ParsedReply(held, "", ())
    if reasoning is not None and "\n\n".startswith(text.partition(_THINK_END)[2]):
        return ParsedReply(reasoning, "", ())
    if not with_calls:
        return ParsedReply(reasoning, rest, ())
    if _CALL_START in rest:
        return ParsedReply(reasoning, rest[: rest.index(_CALL_START)], ())
    return ParsedReply(reasoning, rest[: len(rest) - _held(rest, (_CALL_START,))], ())


def _held(text: str, tags: Sequence[str]) -> int:
    """Return the length of the longest end of a text that may be the start of a tag."""
    sizes = (size for tag in tags for size in range(1, min(len(text), len(tag)) + 1) if text.endswith(tag[:size]))
    return max(sizes, default=0)
