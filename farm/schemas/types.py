"""Field types of the wire models: strict, finite, and encodable as both JSON and msgpack."""

import math
import sys
from array import array
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializationInfo,
    Strict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

if TYPE_CHECKING:
    IntArray = array[int]
    FloatArray = array[float]
else:  # array is generic for the type checker only
    IntArray = FloatArray = array

_BIG_ENDIAN = sys.byteorder == "big"


def _encodable(value: Any) -> Any:
    """Replace lone surrogates, which hostile output can hold, by ``?``: they have no UTF-8 form."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


Text = Annotated[str, Strict(), BeforeValidator(_encodable)]
Flag = Annotated[bool, Strict()]
Int = Annotated[int, Strict(), Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Strict(), Field(ge=0, lt=2**63)]
Real = Annotated[float, Strict(), Field(allow_inf_nan=False)]


def _scalar(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Return one error, because the union would report one for each of its members."""
    try:
        return handler(value)
    except ValidationError:
        raise ValueError("should be true, false, text, or a finite number of at most 64 bits") from None


Scalar = Annotated[Flag | Int | Real | Text, WrapValidator(_scalar)]


def _elements(typecode: str, value: Any) -> "array[Any]":
    """Return an array from its little-endian bytes, from a list of numbers, or from an array."""
    if isinstance(value, array):
        if value.typecode != typecode:
            raise ValueError(f"an array of typecode {value.typecode!r}, not {typecode!r}")
        return value
    found: array[Any] = array(typecode)
    if isinstance(value, bytes):
        if len(value) % found.itemsize:
            raise ValueError(f"{len(value)} bytes are no whole number of {found.itemsize}-byte elements")
        found.frombytes(value)
        if _BIG_ENDIAN:
            found.byteswap()
        return found
    if not isinstance(value, list) or any(isinstance(item, bool) for item in value):
        raise ValueError("not a list of numbers")
    try:
        found.extend(value)
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None
    return found


def _token_ids(value: Any) -> "array[int]":
    return _elements("i", value)


def _logprobs(value: Any) -> "array[float]":
    found = _elements("f", value)
    # A sum of float32 values cannot overflow a double, so it is finite exactly when every element is.
    if not math.isfinite(sum(found)):
        raise ValueError("holds a number that is not finite")
    return found


def _mask(value: Any) -> bytes:
    if isinstance(value, list):
        if any(type(item) is not int for item in value):
            raise ValueError("not a list of 0 and 1")
        try:
            value = bytes(value)
        except ValueError:
            raise ValueError("holds something else than 0 and 1") from None
    if not isinstance(value, bytes):
        raise ValueError("not a list of 0 and 1")
    if value.translate(None, b"\x00\x01"):
        raise ValueError("holds something else than 0 and 1")
    return value


def _dump_array(value: "array[Any]", info: SerializationInfo) -> Any:
    if info.mode == "json":
        return value.tolist()
    if _BIG_ENDIAN:
        value = value[:]
        value.byteswap()
    return value.tobytes()


def _dump_mask(value: bytes, info: SerializationInfo) -> Any:
    return list(value) if info.mode == "json" else value


def _schema(items: dict[str, Any], packed: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "array", "items": items, "description": f"In msgpack: {packed}."})


TokenIds = Annotated[
    IntArray,
    PlainValidator(_token_ids),
    PlainSerializer(_dump_array),
    _schema({"type": "integer"}, "a bin of little-endian int32"),
]
Logprobs = Annotated[
    FloatArray,
    PlainValidator(_logprobs),
    PlainSerializer(_dump_array),
    _schema({"type": "number"}, "a bin of little-endian float32"),
]
LossMask = Annotated[
    bytes,
    PlainValidator(_mask),
    PlainSerializer(_dump_mask),
    _schema({"type": "integer", "enum": [0, 1]}, "a bin of uint8"),
]
