"""The base of request bodies: an unknown field is refused with the nearest right name."""

from heapq import nsmallest
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from sandboxes.tools.parse_call import did_you_mean

MOST_FIELDS = 20
"""The number of faults that a refusal names."""

MOST_ITEMS = 64
NO_NUL = r"^[^\x00]*$"


class RequestBody(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        unknown = given.keys() - cls.model_fields.keys() if isinstance(given, dict) else set()
        if unknown:
            usable = [name for name, field in cls.model_fields.items() if field.annotation is not type(None)]
            known = ", ".join(usable) or "none"
            first = nsmallest(MOST_FIELDS, map(str, unknown))
            faults = [
                InitErrorDetails(type=_unknown_field(did_you_mean(name, usable), known), loc=(name,), input=None)
                for name in first
            ]
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return given


def _unknown_field(nearest: str, known: str) -> PydanticCustomError:
    words = "there is no such field{nearest}; there are: {known}"
    return PydanticCustomError("unknown_field", words, {"nearest": nearest, "known": known})


def few(value: Any) -> Any:
    """Refuse a long list or object at once, because pydantic would first describe each of its items."""
    if isinstance(value, list | tuple | dict) and len(value) > MOST_ITEMS:
        raise ValueError(f"should have at most {MOST_ITEMS} items")
    return value
