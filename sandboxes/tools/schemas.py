"""A tool's schema, as engines and policies like it."""

import copy
import functools
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from sandboxes.tools.tool import Tool

Form = Literal["openai", "json-schema", "anthropic"]


def described(kind: type[Tool], form: Form) -> dict[str, Any]:
    """A tool as engines take it: OpenAI's function, or name, description and JSON schema; the same text every time."""
    schema = schema_of(kind.Input)
    match form:
        case "openai":
            function = {"name": kind.name, "description": kind.description, "parameters": schema}
            return {"type": "function", "function": function}
        case "anthropic":
            return {"name": kind.name, "description": kind.description, "input_schema": schema}
        case "json-schema":
            return {"title": kind.name, "description": kind.description, **schema}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of ``model`` with no titles, no nulls, nothing by reference.

    The caller's own to change.
    """
    schema: dict[str, Any] = json.loads(_schema_text(model))
    return schema


@functools.cache
def _schema_text(model: type[BaseModel]) -> str:
    """Made once in a process: a model's schema takes pydantic milliseconds, and every episode asks for all."""
    schema = copy.deepcopy(model.model_json_schema(by_alias=True))
    return json.dumps(_plain_object(schema, schema.get("$defs", {})))


def _plain_object(schema: dict[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    properties = {name: _plain(value, named) for name, value in schema.get("properties", {}).items()}
    required = list(schema.get("required", ()))
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _plain(schema: dict[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """One property: ``T | None = None`` is T that may be left out. ``named`` are the schemas that it may refer to."""
    schema.pop("title", None)
    if schema.get("default", 0) is None:
        schema.pop("default")
    if "anyOf" in schema:
        (kept,) = (option for option in schema.pop("anyOf") if option.get("type") != "null")
        schema = kept | schema
    if "$ref" in schema:
        return _plain_object(named[schema["$ref"].rpartition("/")[2]], named)
    if "items" in schema:
        schema["items"] = _plain(schema["items"], named)
    return schema
