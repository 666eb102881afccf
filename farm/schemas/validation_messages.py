"""The faults of a request, in words for its author."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from farm.schemas.problems import FieldProblem
from farm.schemas.request_body import MOST_FIELDS
from farm.schemas.requests import RULES

_LONGEST = 300
_SUBJECT = re.compile(r"^(?:Value error, |(?:Input|String|Dictionary|List|Tuple) (?=should))")
_COUNT = re.compile(r" after validation, not (?:more|\d+)$")


def complaints(errors: Sequence[Mapping[str, Any]]) -> tuple[FieldProblem, ...]:
    """Return pydantic's errors as field problems: the path of each field, and its expected value.

    The first element of an error's location names the part of the request: ``body``, ``query`` or ``path``.
    """
    return tuple(
        FieldProblem(field=_path(error["loc"][1:]), message=_message(error)[:_LONGEST])
        for error in errors[:MOST_FIELDS]
    )


def _path(location: Sequence[int | str]) -> str:
    return ".".join(str(part)[:100] for part in location if part != "[key]")


def _message(error: Mapping[str, Any]) -> str:
    match error["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "there is no such field; leave it out"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "should be a JSON object"
        case "string_pattern_mismatch":
            pattern = error["ctx"]["pattern"]
            return RULES.get(pattern, f"should match {pattern}")
    return _COUNT.sub("", _SUBJECT.sub("", str(error["msg"])))
