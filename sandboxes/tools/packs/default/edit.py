"""The default pack's editor: view and edit files."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, Field, model_validator

from sandboxes.interface import Sandbox
from sandboxes.tools.actions.files import WHOLE, Lines, OnFiles
from sandboxes.tools.actions.text_edits import insert, replace
from sandboxes.tools.arguments import Arguments, Name
from sandboxes.tools.tool import ToolResult

_ARGUMENTS: dict[str, tuple[set[str], set[str]]] = {
    "view": (set(), {"view_range"}),
    "create": ({"file_text"}, set()),
    "str_replace": ({"old_str", "new_str"}, set()),
    "insert": ({"insert_line", "insert_text"}, set()),
}


class EditInput(Arguments):
    command: Annotated[Literal["view", "create", "str_replace", "insert"], Field(description="What to do.")]
    path: Annotated[Name, Field(description="File, or directory to view; a relative one from the working directory.")]
    view_range: Annotated[
        list[int] | None,
        Field(min_length=2, max_length=2, description="view: first and last line, from 1; -1 as last is the end."),
    ] = None
    file_text: Annotated[str | None, Field(description="create: the whole content.")] = None
    old_str: Annotated[
        str | None, Field(min_length=1, description="str_replace: text that occurs exactly once, white space and all.")
    ] = None
    new_str: Annotated[str | None, Field(description="str_replace: what to put in its place; may be empty.")] = None
    insert_line: Annotated[
        int | None, Field(ge=0, description="insert: the line after which the text goes; 0 is the beginning.")
    ] = None
    insert_text: Annotated[str | None, Field(min_length=1, description="insert: whole lines.")] = None

    @model_validator(mode="after")
    def _fits_the_command(self) -> Self:
        needed, allowed = _ARGUMENTS[self.command]
        present = {name for name in type(self).model_fields if getattr(self, name) is not None} - {"command", "path"}
        takes = ", ".join(sorted(needed) + [f"{name} (optional)" for name in sorted(allowed)])
        if missing := sorted(needed - present):
            raise ValueError(f"{self.command} needs {' and '.join(missing)}")
        if extra := sorted(present - needed - allowed):
            raise ValueError(f"{self.command} takes path, {takes}; not {' or '.join(extra)}")
        return self


class Edit(OnFiles):
    name: ClassVar[str] = "str_replace_based_edit_tool"
    description: ClassVar[str] = (
        "View and edit files. view: a file's lines numbered, or a directory two levels deep without hidden names, "
        "node_modules and __pycache__. create: write a whole file, over an old one too; parents are made. str_replace: "
        "replace text that occurs exactly once. insert: put lines after a line. Bytes, encoding and line ends that an "
        "edit does not name stay as they are. Text files up to 8 MiB."
    )
    Input: ClassVar[type[BaseModel]] = EditInput

    def reads_only(self, args: EditInput) -> bool:
        return args.command == "view"

    async def run(self, sandbox: Sandbox, args: EditInput, *, timeout_s: float) -> ToolResult:
        files, path = self._files, args.path
        match args.command:
            case "view":
                return await files.view(sandbox, path, lines_in(args.view_range), timeout_s=timeout_s)
            case "create":
                return await files.create(sandbox, path, args.file_text or "", timeout_s=timeout_s)
            case "insert":
                line, addition = args.insert_line or 0, args.insert_text or ""
                return await files.change(sandbox, path, lambda text: insert(text, line, addition), timeout_s=timeout_s)
            case "str_replace":
                old, new = args.old_str or "", args.new_str or ""
                return await files.change(sandbox, path, lambda text: replace(text, old, new), timeout_s=timeout_s)


def lines_in(view_range: list[int] | None) -> Lines:
    if view_range is None:
        return WHOLE
    first, last = view_range
    return Lines(first, last, requested=f"view_range is {view_range}")
