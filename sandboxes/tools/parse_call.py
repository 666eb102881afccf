"""Parse a tool call as the policy wrote it, or report what is wrong with it."""

import contextlib
import difflib
import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from sandboxes.tools.rendering import visible
from sandboxes.tools.schemas import schema_of
from sandboxes.tools.tool import ToolErrorKind

MOST_ARGUMENT_CHARS = 8 * 1024 * 1024
MOST_LEVELS = 100
"""Maximum nesting of lists and objects; checked here, because the parsers' own limits depend on their versions."""

MOST_ITEMS = 400_000
"""Maximum items of one argument that is a list or an object; each costs about a hundred bytes."""
MOST_KEYS = 32
"""Maximum keys of one JSON object; more than any tool takes."""

Input = TypeVar("Input", bound=BaseModel)


class MalformedCall(Exception):
    """A tool call that cannot run. The message tells the policy the error, or the rule that the call broke."""

    reads_only = True
    """True, because a call that does not run changes nothing."""

    def __init__(self, kind: ToolErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def unknown_tool(name: str, known: Sequence[str]) -> MalformedCall:
    return MalformedCall(
        ToolErrorKind.UNKNOWN_TOOL,
        f"there is no tool named {_quoted(name)}{did_you_mean(name, known)}; the tools are: {', '.join(known)}",
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean …?)`` with the closest name in ``known``, or an empty text if none is close."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(name[:100].casefold(), by_folded, n=1, cutoff=0.5)
    return f" (did you mean {by_folded[near[0]]}?)" if near else ""


def parse_arguments(model: type[Input], text: str) -> Input:
    """Parse JSON ``text`` as ``model``. Empty text means no arguments; null means that an argument is left out.

    Raises MalformedCall for any invalid text, and no other exception.
    """
    raw = _parse_json(text)
    if text.count("[") + text.count("{") > MOST_LEVELS:
        _check_depth(raw)
    if not isinstance(raw, dict):
        raise _bad_arguments(f"the arguments must be a JSON object, not {_json_kind(raw)}")
    _check_key_count(raw)
    arguments = {key: value for key, value in raw.items() if value is not None}
    for key, value in arguments.items():
        if isinstance(value, str) and (at := _surrogate(value)) is not None:
            raise _bad_arguments(f"{_quoted(key)}: character {at} is half of a surrogate pair: not valid text")
        if isinstance(value, list | dict) and _surrogate(json.dumps(value, ensure_ascii=False)) is not None:
            raise _bad_arguments(f"{_quoted(key)}: holds half of a surrogate pair: not valid text")
    try:
        return model.model_validate(arguments, strict=True)
    except ValidationError as error:
        keys = list(schema_of(model)["properties"])
        raise _bad_arguments(
            "; ".join(_describe_error(item, keys) for item in error.errors(include_url=False)[:5])
        ) from None


def _check_depth(raw: Any) -> None:
    """Reject lists and objects that are nested deeper than MOST_LEVELS."""
    level: list[Any] = [[raw]]
    for _ in range(MOST_LEVELS + 1):
        parts = (item.values() if isinstance(item, dict) else item for item in level)
        level = [part for items in parts for part in items if isinstance(part, list | dict)]
        if not level:
            return
    raise _bad_json("it is nested too deeply")


def _check_key_count(raw: dict[str, Any]) -> None:
    """Reject objects with too many keys before each key is validated: validation blocks the event loop."""
    objects = [raw, *(item for value in raw.values() if isinstance(value, list) for item in value)]
    many = max((len(item) for item in objects if isinstance(item, dict)), default=0)
    if many > MOST_KEYS:
        raise _bad_arguments(f"an object has {many:,} keys; none here takes more than {MOST_KEYS}")


def _parse_json(text: str) -> Any:
    if len(text) > MOST_ARGUMENT_CHARS:
        raise _bad_arguments(f"the arguments have {len(text):,} characters; at most {MOST_ARGUMENT_CHARS:,} are taken")
    if len(text) > MOST_ITEMS:
        _refuse_many_items(text)
    with contextlib.suppress(ValueError, TypeError):  # three times as fast; json decides what it rejects
        return from_json(text, allow_inf_nan=False)
    try:
        return json.loads(text, parse_constant=_no_constant) if text.strip() else {}
    except json.JSONDecodeError as error:
        near = visible(text[max(0, error.pos - 20) : error.pos + 20])
        where = f"line {error.lineno}, column {error.colno}"
        raise _bad_json(f"{error.msg} at {where}, near {_quoted(near)}") from None
    except RecursionError:
        raise _bad_json("it is nested too deeply") from None
    except ValueError as error:  # NaN and Infinity, integers of thousands of digits
        raise _bad_json(str(error).split(";")[0]) from None


def _refuse_many_items(text: str) -> None:
    """Refuse a list or an object that may hold more than ``MOST_ITEMS``, before anything of it is built."""
    try:
        values = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise _bad_arguments("the arguments must be a JSON object") from None
    except msgspec.DecodeError as error:
        raise _bad_json(str(error)) from None
    except RecursionError:
        raise _bad_json("it is nested too deeply") from None
    except UnicodeError:  # half of a surrogate pair, which json names
        return
    _check_key_count(values)
    for key, raw in values.items():
        value = bytes(raw)
        if value[:1] != b'"' and sum(map(value.count, (b",", b"[", b"{"))) > MOST_ITEMS:
            raise _bad_arguments(f"{_quoted(key)}: may hold more than {MOST_ITEMS:,} items")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _bad_json(message: str) -> MalformedCall:
    return MalformedCall(ToolErrorKind.BAD_JSON, f"the arguments are not valid JSON: {message}")


def _bad_arguments(message: str) -> MalformedCall:
    return MalformedCall(ToolErrorKind.BAD_ARGUMENTS, message)


def _json_kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case list():
            return "an array"
        case dict():
            return "an object"
        case str():
            return f"the string {_quoted(value)}"
        case _:
            return json.dumps(value)[:100]


def _surrogate(text: str) -> int | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start + 1
    return None


def _quoted(text: str) -> str:
    """Return ``text`` in quotes on one line: always valid Unicode, about 100 characters at most."""
    cut = text if len(text) <= 100 else f"{text[:100]}..."
    return f'"{visible(cut.encode("utf-8", "backslashreplace").decode())}"'.replace("\n", "␊")


def _describe_error(item: Any, keys: Sequence[str]) -> str:
    key = _quoted(".".join(str(part) for part in item["loc"]))
    match item["type"]:
        case "missing":
            return f"{key} is missing"
        case "extra_forbidden":
            if len(item["loc"]) > 1:
                return f"{key} is not known there"
            name = str(item["loc"][0])
            return f"{key} is not an argument of this tool{did_you_mean(name, keys)}; it takes: {', '.join(keys)}"
        case "value_error":
            message = str(item["ctx"]["error"])
            return f"{key}: {message}" if item["loc"] else message
        case _:
            message = item["msg"].removeprefix("Input should be ")
            expected = f"expected {message}" if message != item["msg"] else message[0].lower() + message[1:]
            return f"{key}: {expected}, got {_json_kind(item['input'])}"
