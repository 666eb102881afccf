"""JSON schemas of tools in the forms that inference engines take."""

import copy
import functools
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from sandboxes.tools.tool import Tool

Form = Literal["openai", "json-schema", "anthropic"]


def described(kind: type[Tool], form: Form) -> dict[str, Any]:
    """Describe a tool as ``form`` wants it: name, description and JSON schema. The text is the same for every call."""
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
    """Return the JSON schema of ``model`` without titles, nulls and references. The caller may change the returned
    value.
    """
    schema: dict[str, Any] = json.loads(_schema_text(model))
    return schema


@functools.cache
def _schema_text(model: type[BaseModel]) -> str:
    """Build the schema of ``model`` once in a process: pydantic needs milliseconds, and every episode asks for all
    schemas.
    """
    schema = copy.deepcopy(model.model_json_schema(by_alias=True))
    return json.dumps(_plain_object(schema, schema.get("$defs", {})))


def _plain_object(schema: dict[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    properties = {name: _plain(value, named) for name, value in schema.get("properties", {}).items()}
    required = list(schema.get("required", ()))
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _plain(schema: dict[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Simplify the schema of one property: ``T | None = None`` becomes an optional T.

    ``named`` holds the schemas that ``$ref`` may refer to.
    """
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
