"""The tool by which a policy answers a code retrieval task."""

from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, Field

from sandboxes.interface import Sandbox
from sandboxes.tools.arguments import Arguments, Name
from sandboxes.tools.tool import ToolResult, Writes

MOST_FILES = 1000
MOST_RANGES = 1000
LAST_LINE = 1_000_000_000


def _in_order(lines: list[int]) -> list[int]:
    first, last = lines
    if first > last:
        raise ValueError(f"[{first}, {last}] ends before it begins")
    return lines


Line = Annotated[int, Field(ge=1, le=LAST_LINE)]
Range = Annotated[list[Line], Field(min_length=2, max_length=2), AfterValidator(_in_order)]


class FoundFile(Arguments):
    path: Annotated[Name, Field(description="Of a file; a relative one from the working directory.")]
    lines: Annotated[
        list[Range],
        Field(
            max_length=MOST_RANGES, description="Ranges [first, last], from 1, both ends included. None: worth nothing."
        ),
    ]


class AnswerInput(Arguments):
    files: Annotated[list[FoundFile], Field(max_length=MOST_FILES, description="The files, and the lines of each.")]


class Answer(Writes):
    name: ClassVar[str] = "answer"
    description: ClassVar[str] = (
        "Give the answer: files and ranges of lines. It is judged as it is, and ends the work, well formed or not."
    )
    Input: ClassVar[type[BaseModel]] = AnswerInput

    async def run(self, sandbox: Sandbox, args: AnswerInput, *, timeout_s: float) -> ToolResult:
        return ToolResult("Answered.", done=True)
