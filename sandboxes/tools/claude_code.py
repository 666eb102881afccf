"""The tools of Claude Code: its names and arguments over the same core."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandboxes.sandbox import Sandbox
from sandboxes.tools.arguments import Command, Name
from sandboxes.tools.editing import Edited, Replacement, replace, replace_each
from sandboxes.tools.files import Files, Lines
from sandboxes.tools.glob import Glob
from sandboxes.tools.grep import Grep, GrepInput
from sandboxes.tools.terminal import Asked, Terminal
from sandboxes.tools.tool import ToolResult

_MOST_LINES = 2000
_NAMES = ("old_string", "new_string")


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BashInput(_Input):
    command: Annotated[Command, Field(description="The command to run.")]
    timeout: Annotated[
        float | None,
        Field(
            gt=0, le=600_000, allow_inf_nan=False, description="Milliseconds after which it is killed, 600000 at most."
        ),
    ] = None
    description: Annotated[str | None, Field(description="What the command does, in five to ten words.")] = None
    run_in_background: Annotated[
        bool, Field(description="Do not wait: returns the number of a job, which BashOutput takes as bash_id.")
    ] = False


class Bash:
    name: ClassVar[str] = "Bash"
    description: ClassVar[str] = (
        "Run a command in a bash that lives on: directory, variables and functions stay from call to call. Stdout and "
        "stderr come merged, and the exit code; stdin is empty. At the time-out the shell is killed with all that runs "
        "in it. Of long output the head and the tail are shown, and the path of the full text."
    )
    Input: ClassVar[type[BaseModel]] = BashInput

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def reads_only(self, args: BashInput) -> bool:
        return False

    async def run(self, sandbox: Sandbox, args: BashInput, *, timeout_s: float) -> ToolResult:
        if args.run_in_background:
            return await self._terminal.start(sandbox, args.command)
        limit_s = min(timeout_s, args.timeout / 1000) if args.timeout else timeout_s
        return await self._terminal.run(sandbox, args.command, timeout_s=limit_s)


JobNumber = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]


class BashOutputInput(_Input):
    bash_id: Annotated[JobNumber, Field(description="The number of the job.")]


class BashOutput:
    name: ClassVar[str] = "BashOutput"
    description: ClassVar[str] = "What a command in the background has said since it was last asked, and how it stands."
    Input: ClassVar[type[BaseModel]] = BashOutputInput

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def reads_only(self, args: BashOutputInput) -> bool:
        return False

    async def run(self, sandbox: Sandbox, args: BashOutputInput, *, timeout_s: float) -> ToolResult:
        return await self._terminal.job(sandbox, int(args.bash_id), Asked(), timeout_s=timeout_s)


class KillShellInput(_Input):
    shell_id: Annotated[JobNumber, Field(description="The number of the job.")]


class KillShell:
    name: ClassVar[str] = "KillShell"
    description: ClassVar[str] = "Kill a command in the background and all that it started."
    Input: ClassVar[type[BaseModel]] = KillShellInput

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def reads_only(self, args: KillShellInput) -> bool:
        return False

    async def run(self, sandbox: Sandbox, args: KillShellInput, *, timeout_s: float) -> ToolResult:
        return await self._terminal.job(sandbox, int(args.shell_id), Asked(kill=True), timeout_s=timeout_s)


class ReadInput(_Input):
    file_path: Annotated[Name, Field(description="The file; a relative path from the working directory.")]
    offset: Annotated[int | None, Field(ge=0, description="The line to begin with, from 1.")] = None
    limit: Annotated[int | None, Field(ge=1, description="How many lines.")] = None


class Read:
    name: ClassVar[str] = "Read"
    description: ClassVar[str] = (
        "Read a text file, its lines numbered as by cat -n: the first 2000, or those that offset and limit name. Of "
        "lines over 2000 characters the beginning is shown."
    )
    Input: ClassVar[type[BaseModel]] = ReadInput

    def __init__(self, files: Files) -> None:
        self._files = files

    def reads_only(self, args: ReadInput) -> bool:
        return True

    async def run(self, sandbox: Sandbox, args: ReadInput, *, timeout_s: float) -> ToolResult:
        first = max(1, args.offset or 1)
        lines = Lines(
            first,
            -1 if args.limit is None else first - 1 + args.limit,
            asked="" if args.offset is None and args.limit is None else f"offset is {first}",
            rule="give a smaller offset",
            more="offset and limit",
            most=_MOST_LINES,
        )
        return await self._files.view(sandbox, args.file_path, lines, timeout_s=timeout_s)


class WriteInput(_Input):
    file_path: Annotated[Name, Field(description="The file; a relative path from the working directory.")]
    content: Annotated[str, Field(description="The whole content.")]


class Write:
    name: ClassVar[str] = "Write"
    description: ClassVar[str] = "Write a whole file, over an old one too; directories that are missing are made."
    Input: ClassVar[type[BaseModel]] = WriteInput

    def __init__(self, files: Files) -> None:
        self._files = files

    def reads_only(self, args: WriteInput) -> bool:
        return False

    async def run(self, sandbox: Sandbox, args: WriteInput, *, timeout_s: float) -> ToolResult:
        return await self._files.create(sandbox, args.file_path, args.content, timeout_s=timeout_s)


class EditItem(_Input):
    old_string: Annotated[str, Field(description="The text to replace, white space and all.")]
    new_string: Annotated[str, Field(description="What to put in its place.")]
    replace_all: Annotated[bool, Field(description="Wherever it occurs; without it, it must occur once.")] = False

    def as_replacement(self) -> Replacement:
        return Replacement(self.old_string, self.new_string, self.replace_all)


class EditInput(EditItem):
    file_path: Annotated[Name, Field(description="The file; a relative path from the working directory.")]


class Edit:
    name: ClassVar[str] = "Edit"
    description: ClassVar[str] = (
        "Replace text in a file. old_string is there exactly once, unless replace_all; leave out Read's line numbers. "
        "Bytes, encoding and line ends that it does not name stay. An empty old_string makes a new file of new_string."
    )
    Input: ClassVar[type[BaseModel]] = EditInput

    def __init__(self, files: Files) -> None:
        self._files = files

    def reads_only(self, args: EditInput) -> bool:
        return False

    async def run(self, sandbox: Sandbox, args: EditInput, *, timeout_s: float) -> ToolResult:
        return await edit(self._files, sandbox, args.file_path, [args.as_replacement()], timeout_s=timeout_s)


class MultiEditInput(_Input):
    file_path: Annotated[Name, Field(description="The file; a relative path from the working directory.")]
    edits: Annotated[
        list[EditItem],
        Field(min_length=1, max_length=1000, description="The edits, each made in what the one before left."),
    ]


class MultiEdit:
    name: ClassVar[str] = "MultiEdit"
    description: ClassVar[str] = (
        "Several edits of one file, as by Edit, one after the other: all of them are made or none. To make a new file, "
        "let the first have an empty old_string."
    )
    Input: ClassVar[type[BaseModel]] = MultiEditInput

    def __init__(self, files: Files) -> None:
        self._files = files

    def reads_only(self, args: MultiEditInput) -> bool:
        return False

    async def run(self, sandbox: Sandbox, args: MultiEditInput, *, timeout_s: float) -> ToolResult:
        changes = [item.as_replacement() for item in args.edits]
        return await edit(self._files, sandbox, args.file_path, changes, timeout_s=timeout_s)


async def edit(
    files: Files, sandbox: Sandbox, path: str, changes: list[Replacement], *, timeout_s: float
) -> ToolResult:
    """Make all of ``changes`` or none. Where the first has nothing to replace and there is no file, one is made."""

    def change(text: str) -> Edited:
        if len(changes) > 1:
            return replace_each(text, changes, names=_NAMES)
        (only,) = changes
        return replace(text, only.old, only.new, everywhere=only.everywhere, names=_NAMES)

    def make() -> str:
        first, *rest = changes
        return replace_each(first.new, rest, names=_NAMES).text if rest else first.new

    return await files.change(sandbox, path, change, absent=None if changes[0].old else make, timeout_s=timeout_s)


class ClaudeGrepInput(GrepInput):
    type: Annotated[
        Name | None, Field(description='Only files of that type, as ripgrep knows it, e.g. "py", "rust", "js".')
    ] = None
    multiline: Annotated[bool, Field(description="Let a match span lines, and . match line ends.")] = False

    def options(self) -> list[str]:
        options = super().options()
        if self.type is not None:
            options.append(f"--type={self.type}")
        if self.multiline:
            options += ["--multiline", "--multiline-dotall"]
        return options


class ClaudeGrep(Grep):
    name: ClassVar[str] = "Grep"
    Input: ClassVar[type[BaseModel]] = ClaudeGrepInput


class ClaudeGlob(Glob):
    name: ClassVar[str] = "Glob"


class LSInput(_Input):
    path: Annotated[Name, Field(description="The directory; a relative path from the working directory.")]
    ignore: Annotated[list[Name] | None, Field(max_length=100, description="Globs of names to leave out.")] = None


class LS:
    name: ClassVar[str] = "LS"
    description: ClassVar[str] = (
        "List a directory two levels deep, without hidden names, node_modules and __pycache__; directories end with /."
    )
    Input: ClassVar[type[BaseModel]] = LSInput

    def __init__(self, files: Files) -> None:
        self._files = files

    def reads_only(self, args: LSInput) -> bool:
        return True

    async def run(self, sandbox: Sandbox, args: LSInput, *, timeout_s: float) -> ToolResult:
        return await self._files.listing(sandbox, args.path, depth=2, ignore=args.ignore or (), timeout_s=timeout_s)


class Todo(_Input):
    content: Annotated[str, Field(min_length=1, description="What is to be done.")]
    status: Annotated[Literal["pending", "in_progress", "completed"], Field(description="How far it is.")]
    active: Annotated[
        str, Field(alias="activeForm", min_length=1, description="The same as it goes on, e.g. Running the tests.")
    ]


class TodoWriteInput(_Input):
    todos: Annotated[list[Todo], Field(max_length=1000, description="The whole list, in order.")]


class TodoWrite:
    name: ClassVar[str] = "TodoWrite"
    description: ClassVar[str] = "Write down what is to be done and how far it is; the list replaces the one before."
    Input: ClassVar[type[BaseModel]] = TodoWriteInput

    def reads_only(self, args: TodoWriteInput) -> bool:
        return True

    async def run(self, sandbox: Sandbox, args: TodoWriteInput, *, timeout_s: float) -> ToolResult:
        left = sum(todo.status != "completed" for todo in args.todos)
        return ToolResult(f"Noted: {len(args.todos)} to do, {left} of them left.")
