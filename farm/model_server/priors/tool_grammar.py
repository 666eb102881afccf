"""The grammar of a tool call: which bytes may follow, for the tools that a prompt offers.

A grammar is a chain of symbols. ``Choice`` is one of several byte strings, each with the symbol that follows it;
``Text`` is a JSON string up to its closing quote; ``End`` ends the call. No option of a ``Choice`` is the start of
another one, so each byte leads to exactly one position.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_MAX_TOOLS_CACHED = 256
_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
_QUOTE, _BACKSLASH, _FIRST_PRINTABLE = 0x22, 0x5C, 0x20
_PLAIN_NAME = re.compile(r"[\w.:/-]{1,128}")

_HINTS: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    ("old", (b"return None", b"import os")),
    ("path|file|dir", (b"README.md", b"src/main.py", b"tests/test_main.py", b".")),
    ("command|cmd|script", (b"ls -la", b"git diff", b"python -m pytest -q", b"cat README.md")),
    ("pattern|query|regex|search", (b"def main", b"import", b"TODO")),
    ("content|text|new|code", (b"return 0", b"import json")),
)
"""Values that a string argument often has, by a pattern of its name."""

_INTEGERS = (b"1", b"20", b"5", b"300")
_NUMBERS = (b"0.5", b"1.0")
_BOOLEANS = (b"true", b"false")


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """The call is complete."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    options: tuple[tuple[bytes, "Symbol"], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """``hints`` are values that the string often has."""

    hints: tuple[bytes, ...]
    after: "Symbol"


Symbol = End | Choice | Text
END = End()


@dataclass(frozen=True, slots=True)
class Position:
    """``done`` are the bytes of ``symbol`` so far."""

    symbol: Symbol
    done: bytes = b""


def advance(position: Position, data: bytes) -> Position | None:
    """Return the position after more bytes, or None if the grammar does not allow them."""
    symbol, done = position.symbol, position.done
    for index in range(len(data)):
        done += data[index : index + 1]
        match symbol:
            case Choice(options):
                if not any(text.startswith(done) for text, _ in options):
                    return None
                after = next((after for text, after in options if text == done), None)
                if after is not None:
                    symbol, done = after, b""
            case Text(after=after):
                byte = data[index]
                if byte == _QUOTE:
                    symbol, done = after, b""
                elif byte < _FIRST_PRINTABLE or byte == _BACKSLASH:
                    return None
            case End():
                return None
    return Position(symbol, done)


def offered_tools(system: str) -> str:
    """Return the last tools block of a system message: one JSON object a line. Empty if there is none."""
    found = _TOOLS.findall(system)
    return str(found[-1]) if found else ""


@lru_cache(maxsize=_MAX_TOOLS_CACHED)
def call_grammar(tools: str) -> Symbol | None:
    """Return the grammar of a call to one of the tools, from the byte after ``<tool_call>`` to before the closing tag.

    Lines that describe no tool are left out. Return None if no line is left.
    """
    names: dict[bytes, Symbol] = {}
    for line in tools.splitlines():
        function = _function(line)
        if function is not None:
            name, parameters = function
            names[f'{name}", "arguments": {{'.encode()] = _arguments(parameters)
    if not names:
        return None
    return Choice(((b'\n{"name": "', Choice(tuple(names.items()))),))


def _function(line: str) -> tuple[str, Mapping[str, Any]] | None:
    try:
        function = json.loads(line)["function"]
        name, parameters = function["name"], function.get("parameters") or {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name) or not isinstance(parameters, dict):
        return None
    return name, parameters


def _arguments(parameters: Mapping[str, Any]) -> Symbol:
    """Return the grammar of the required arguments, in their order, up to the end of the call.

    A call with only optional arguments has the first of them.
    """
    properties, required = parameters.get("properties"), parameters.get("required")
    schemas = properties if isinstance(properties, dict) else {}
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    names = names or list(schemas)[:1]
    symbol: Symbol = Choice(((b"}}\n", END),))
    for index, name in reversed(list(enumerate(names))):
        start = f"{', ' if index else ''}{json.dumps(name)}: ".encode()
        symbol = _value(start, name, schemas.get(name), symbol)
    return symbol


def _value(start: bytes, name: str, schema: object, after: Symbol) -> Symbol:
    """Return ``start`` and then a value of a schema. Values that are no scalar are empty or have one item."""
    fields = _first_of_union(schema)
    kind = fields.get("type", "string")
    choices = fields.get("enum")
    if isinstance(choices, list) and choices:
        return _one_of(start, [json.dumps(choice).encode() for choice in choices], after)
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "integer":
            return _one_of(start, _INTEGERS, after)
        case "number":
            return _one_of(start, _NUMBERS, after)
        case "boolean":
            return _one_of(start, _BOOLEANS, after)
        case "object":
            return _one_of(start, (b"{}",), after)
        case "null":
            return _one_of(start, (b"null",), after)
        case "array":
            item = _first_of_union(fields.get("items"))
            if item.get("type") != "string" or "enum" in item:
                return _one_of(start, (b"[]",), after)
            return Choice(((start + b'["', Text(_hints(name), Choice(((b"]", after),)))),))
        case _:
            return Choice(((start + b'"', Text(_hints(name), after)),))


def _first_of_union(schema: object) -> Mapping[str, Any]:
    if not isinstance(schema, dict):
        return {}
    for key in ("anyOf", "oneOf"):
        union = schema.get(key)
        if isinstance(union, list) and union and isinstance(union[0], dict):
            return union[0]
    return schema


def _one_of(start: bytes, values: Sequence[bytes], after: Symbol) -> Symbol:
    """Return a choice of values. A value that starts with another one is left out."""
    kept: list[bytes] = []
    for value in sorted(set(values)):
        if not any(value.startswith(shorter) for shorter in kept):
            kept.append(value)
    return Choice(tuple((start + value, after) for value in kept))


def _hints(name: str) -> tuple[bytes, ...]:
    return next((values for pattern, values in _HINTS if re.search(pattern, name, re.IGNORECASE)), ())
