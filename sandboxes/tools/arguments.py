"""Argument types that several tools share."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints


class Arguments(BaseModel):
    """The arguments of one tool. Unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid")


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character, which the kernel takes in no path or argument")
    return text


Name = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_no_nul)]
"""A path, a pattern or another short text without NUL characters."""

Command = Annotated[str, StringConstraints(min_length=1, max_length=4 * 1024 * 1024), AfterValidator(_no_nul)]

Unused = Annotated[str | None, Field(description="Taken, and without effect here.")]
UnusedFlag = Annotated[bool | None, Field(description="Taken, and without effect here.")]
"""An argument for a product's permissions or approvals: accepted and ignored, so that a policy that sends it gets no
error.
"""

Word = Annotated[str, StringConstraints(max_length=1024 * 1024), AfterValidator(_no_nul)]
"""One argument of a program; may be empty."""
