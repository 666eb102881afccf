"""Kinds of argument that several tools take."""

from typing import Annotated

from pydantic import AfterValidator, StringConstraints


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character, which the kernel takes in no path or argument")
    return text


Name = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_no_nul)]
"""A path, a pattern or the like."""

Command = Annotated[str, StringConstraints(min_length=1, max_length=4 * 1024 * 1024), AfterValidator(_no_nul)]

Word = Annotated[str, StringConstraints(max_length=1024 * 1024), AfterValidator(_no_nul)]
"""An argument of a program; may be empty."""
