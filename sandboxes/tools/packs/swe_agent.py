"""The tools of SWE-agent's default configuration."""

import hashlib
import posixpath
from collections import deque
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self
from weakref import WeakKeyDictionary

from pydantic import BaseModel, Field, model_validator

from sandboxes.interface import MIB, Sandbox
from sandboxes.tools.actions.files import FileActions
from sandboxes.tools.actions.terminal import SHELL, OnTerminal
from sandboxes.tools.actions.text_edits import EditedText, EditRefused, encode, insert, replace
from sandboxes.tools.arguments import Arguments, Command, Name
from sandboxes.tools.packs.default.edit import lines_in
from sandboxes.tools.tool import ToolResult, Writes

_NEEDS: dict[str, set[str]] = {
    "create": {"file_text"},
    "str_replace": {"old_str"},
    "insert": {"insert_line", "new_str"},
}
_MOST_REMEMBERED = 16


class SweBashInput(Arguments):
    command: Annotated[Command, Field(description="The bash command to execute.")]


class SweBash(OnTerminal, Writes):
    name: ClassVar[str] = "bash"
    description: ClassVar[str] = SHELL
    Input: ClassVar[type[BaseModel]] = SweBashInput

    async def run(self, sandbox: Sandbox, args: SweBashInput, *, timeout_s: float) -> ToolResult:
        return await self._terminal.run(sandbox, args.command, timeout_s=timeout_s)


class EditorInput(Arguments):
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


@dataclass(frozen=True, slots=True)
class _Undoable:
    """An edit that ``undo_edit`` can revert. ``left`` is the digest of the text after the edit."""

    path: str
    before: str
    left: bytes


class StrReplaceEditor:
    """SWE-agent's editor. Keeps the last edits in each sandbox for ``undo_edit``: 16 edits and one MiB at most."""

    name: ClassVar[str] = "str_replace_editor"
    description: ClassVar[str] = (
        "View, create and edit files. view: a file's lines numbered, or a directory two levels deep. create: a new "
        "file. str_replace: replace text that occurs exactly once. insert: put lines after a line. undo_edit: take "
        "back the last str_replace or insert in that file. Bytes and line ends that an edit does not name stay."
    )
    Input: ClassVar[type[BaseModel]] = EditorInput

    def __init__(self, files: FileActions) -> None:
        self._files = files
        self._edits: WeakKeyDictionary[Sandbox, deque[_Undoable]] = WeakKeyDictionary()

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
        done: list[_Undoable] = []
        full = posixpath.normpath(posixpath.join(sandbox.workdir, path))

        def change(text: str) -> EditedText:
            edited = _changed(text, args, full, edits)
            done.append(_Undoable(full, text, _digest(edited.text)))
            return edited

        result = await files.change(sandbox, path, change, timeout_s=timeout_s)
        if result.error_kind is None and args.command == "undo_edit":
            edits.remove(_last(full, edits))
        elif result.error_kind is None and done:
            edits.append(done[0])
            while sum(len(edit.before) for edit in edits) > MIB:
                edits.popleft()
        return result


def _changed(text: str, args: EditorInput, path: str, edits: deque[_Undoable]) -> EditedText:
    match args.command:
        case "str_replace":
            return replace(text, args.old_str or "", args.new_str or "")
        case "insert":
            return insert(text, args.insert_line or 0, args.new_str or "")
        case _:
            last = _last(path, edits)
            if _digest(text) != last.left:
                raise EditRefused("has been changed since its last edit, which undo_edit would take back as well")
            old = last.before
            return EditedText(old, 1, old.count("\n"), 0)


def _last(path: str, edits: deque[_Undoable]) -> _Undoable:
    found = next((edit for edit in reversed(edits) if edit.path == path), None)
    if found is None:
        raise EditRefused("no edit of it is remembered that could be taken back")
    return found


def _digest(text: str) -> bytes:
    return hashlib.sha256(encode(text)).digest()
