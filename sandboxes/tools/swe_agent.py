"""The tools of SWE-agent's default configuration."""

from collections import deque
from typing import Annotated, ClassVar, Literal, Self
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandboxes.sandbox import MIB, Sandbox
from sandboxes.tools.arguments import Command, Name
from sandboxes.tools.edit import lines_in
from sandboxes.tools.editing import Edited, EditRefused, insert, replace
from sandboxes.tools.files import Files
from sandboxes.tools.terminal import Terminal
from sandboxes.tools.tool import ToolResult

_NEEDS: dict[str, set[str]] = {
    "create": {"file_text"},
    "str_replace": {"old_str"},
    "insert": {"insert_line", "new_str"},
}
_MOST_REMEMBERED = 16


class BashInput(BaseModel):
    model_config = ConfigDict(extra="forbid")

    command: Annotated[Command, Field(description="The bash command to execute.")]


class Bash:
    name: ClassVar[str] = "bash"
    description: ClassVar[str] = (
        "Run a command in a bash that lives on. Stdout and stderr come merged, and the exit code; stdin is empty. At "
        "the time-out the shell is killed with all that runs in it. Of long output the head and the tail are shown."
    )
    Input: ClassVar[type[BaseModel]] = BashInput

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def reads_only(self, args: BashInput) -> bool:
        return False

    async def run(self, sandbox: Sandbox, args: BashInput, *, timeout_s: float) -> ToolResult:
        return await self._terminal.run(sandbox, args.command, timeout_s=timeout_s)


class EditorInput(BaseModel):
    model_config = ConfigDict(extra="forbid")

    command: Annotated[
        Literal["view", "create", "str_replace", "insert", "undo_edit"], Field(description="What to do.")
    ]
    path: Annotated[Name, Field(description="File, or directory to view; a relative one from the working directory.")]
    file_text: Annotated[str | None, Field(description="create: the whole content.")] = None
    old_str: Annotated[
        str | None, Field(min_length=1, description="str_replace: text that occurs exactly once, white space and all.")
    ] = None
    new_str: Annotated[
        str | None, Field(description="str_replace: what to put in its place, nothing if left out; insert: the lines.")
    ] = None
    insert_line: Annotated[
        int | None, Field(ge=0, description="insert: the line after which new_str goes; 0 is the beginning.")
    ] = None
    view_range: Annotated[
        list[int] | None,
        Field(min_length=2, max_length=2, description="view: first and last line, from 1; -1 as last is the end."),
    ] = None

    @model_validator(mode="after")
    def _fits_the_command(self) -> Self:
        missing = [name for name in sorted(_NEEDS.get(self.command, ())) if getattr(self, name) is None]
        if missing:
            raise ValueError(f"{self.command} needs {' and '.join(missing)}")
        return self


class StrReplaceEditor:
    """Remembers the last edits in each sandbox, as many as a MiB holds."""

    name: ClassVar[str] = "str_replace_editor"
    description: ClassVar[str] = (
        "View, create and edit files. view: a file's lines numbered, or a directory two levels deep. create: a new "
        "file. str_replace: replace text that occurs exactly once. insert: put lines after a line. undo_edit: take "
        "back the last str_replace or insert in that file. Bytes and line ends that an edit does not name stay."
    )
    Input: ClassVar[type[BaseModel]] = EditorInput

    def __init__(self, files: Files) -> None:
        self._files = files
        self._edits: WeakKeyDictionary[Sandbox, deque[tuple[str, str]]] = WeakKeyDictionary()

    def reads_only(self, args: EditorInput) -> bool:
        return args.command == "view"

    async def run(self, sandbox: Sandbox, args: EditorInput, *, timeout_s: float) -> ToolResult:
        files, path = self._files, args.path
        match args.command:
            case "view":
                return await files.view(sandbox, path, lines_in(args.view_range), timeout_s=timeout_s)
            case "create":
                return await files.create(sandbox, path, args.file_text or "", over=False, timeout_s=timeout_s)
        edits = self._edits.setdefault(sandbox, deque(maxlen=_MOST_REMEMBERED))
        before: list[str] = []

        def change(text: str) -> Edited:
            before.append(text)
            return _changed(text, args, edits)

        result = await files.change(sandbox, path, change, timeout_s=timeout_s)
        if result.error_kind is None and args.command == "undo_edit":
            edits.remove(_last(path, edits))
        elif result.error_kind is None:
            edits.append((path, before[0]))
            while sum(len(text) for _, text in edits) > MIB:
                edits.popleft()
        return result


def _changed(text: str, args: EditorInput, edits: deque[tuple[str, str]]) -> Edited:
    match args.command:
        case "str_replace":
            return replace(text, args.old_str or "", args.new_str or "")
        case "insert":
            return insert(text, args.insert_line or 0, args.new_str or "")
        case _:
            _, old = _last(args.path, edits)
            return Edited(old, 1, old.count("\n"))


def _last(path: str, edits: deque[tuple[str, str]]) -> tuple[str, str]:
    found = next((edit for edit in reversed(edits) if edit[0] == path), None)
    if found is None:
        raise EditRefused("no edit of it is remembered that could be taken back")
    return found
