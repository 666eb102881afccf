"""Describe the first error of a ``task.toml`` in one line."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError

from farm.tasks.errors import TaskError

_MAX_SHOWN_CHARS = 200


def first_error(path: Path, error: ValidationError, model: type[BaseModel]) -> TaskError:
    """Return the most informative error of a document of ``model``. For an unknown key it names the nearest one."""
    errors = error.errors(include_url=False, include_input=False)
    unknown = [item for item in errors if item["type"] == "extra_forbidden"]
    # For a value of two possible types, an error about its content says more than one about its type.
    informative = [item for item in errors if item["type"] not in ("tuple_type", "string_type")]
    first = [*unknown, *informative, *errors][0]
    key = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("tuple[", "function-", "str")))
    key = key if len(key) <= _MAX_SHOWN_CHARS else f"{key[:_MAX_SHOWN_CHARS]}…"
    if first["type"] == "extra_forbidden":
        known_keys = _keys_at(model, first["loc"][:-1])
        nearest = difflib.get_close_matches(str(first["loc"][-1])[:_MAX_SHOWN_CHARS], known_keys, n=1, cutoff=0.0)
        return TaskError(path, "unknown key", f"the nearest one is {nearest[0]!r}", key=key)
    if first["type"] == "missing":
        return TaskError(path, "missing", "add it", key=key)
    if first["type"] == "value_error":  # the farm's own message, which may begin with the name of a variable
        return TaskError(path, str(first["ctx"]["error"])[:1000], "correct the value", key=key)
    message = str(first["msg"])[:1000]
    return TaskError(path, message[0].lower() + message[1:], "correct the value", key=key)


def _keys_at(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        model = next(kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type))
    return list(model.model_fields)
