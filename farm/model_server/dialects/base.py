"""The interface of a dialect: how one kind of engine names what OpenAI's API does not have."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import APIRouter

from farm.model_server.exchange import Exchange
from farm.model_server.generation import Generation


@dataclass(frozen=True, slots=True)
class Wanted:
    """The optional parts of an answer that the request asks for."""

    logprobs: bool = False
    token_ids: bool = False
    weight_versions: bool = False
    meta_info: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """The place of one event in a stream. ``tokens`` are new since the event before."""

    tokens: Sequence[int]
    is_first: bool
    is_last: bool


class Dialect(Protocol):
    """One dialect. ``reasoning_field`` is the field of a message that holds its reasoning."""

    reasoning_field: str

    def unknown_fields(self, fields: Sequence[str]) -> Sequence[str]:
        """Return the request fields that this dialect refuses."""
        ...

    def error(self, status: int, message: str, field: str | None) -> dict[str, Any]:
        """Return the body of an error answer."""
        ...

    def add_to_answer(self, answer: dict[str, Any], generation: Generation, wanted: Wanted) -> None:
        """Add token ids and weight versions to a whole answer."""
        ...

    def add_to_chunk(self, answer: dict[str, Any], generation: Generation, wanted: Wanted, chunk: Chunk) -> None:
        """Add token ids and weight versions to one event of a stream."""
        ...

    def router(self, exchange: Exchange) -> APIRouter:
        """Return the routes that only this dialect has."""
        ...


def spans(generation: Generation) -> list[dict[str, Any]]:
    """Return the weight spans of a reply; both engines send versions as strings."""
    return [{"version": str(span.version), "start": span.start, "end": span.end} for span in generation.spans]
