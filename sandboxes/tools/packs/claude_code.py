"""The tools of Claude Code: its names and arguments over the shared actions."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from sandboxes.interface import Sandbox
from sandboxes.tools.actions.edit_command import edit
from sandboxes.tools.actions.files import OnFiles, paged
from sandboxes.tools.actions.terminal import SHELL, JobRequest, OnTerminal
from sandboxes.tools.actions.text_edits import Replacement
from sandboxes.tools.arguments import Arguments, Command, Name, Unused, UnusedFlag
from sandboxes.tools.packs.default.glob import Glob
from sandboxes.tools.packs.default.grep import Context, Grep, GrepInput
from sandboxes.tools.rendering import shown_name
from sandboxes.tools.tool import Reads, ToolResult, Writes, refused

_MOST_LINES = 2000


class ClaudeBashInput(Arguments):
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
    unconfined: Annotated[UnusedFlag, Field(alias="dangerouslyDisableSandbox")] = None


class ClaudeBash(OnTerminal, Writes):
    name: ClassVar[str] = "Bash"
    description: ClassVar[str] = SHELL
    Input: ClassVar[type[BaseModel]] = ClaudeBashInput

    async def run(self, sandbox: Sandbox, args: ClaudeBashInput, *, timeout_s: float) -> ToolResult:
        if args.run_in_background:
            return await self._terminal.start(sandbox, args.command)
        limit_s = min(timeout_s, args.timeout / 1000) if args.timeout else timeout_s
        return await self._terminal.run(sandbox, args.command, timeout_s=limit_s)


JobNumber = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]


class BashOutputInput(Arguments):
    bash_id: Annotated[JobNumber, Field(description="The number of the job.")]
    filter: Unused = None


class BashOutput(OnTerminal, Writes):
    name: ClassVar[str] = "BashOutput"
    description: ClassVar[str] = "What a command in the background has said since it was last asked, and how it stands."
    Input: ClassVar[type[BaseModel]] = BashOutputInput

    async def run(self, sandbox: Sandbox, args: BashOutputInput, *, timeout_s: float) -> ToolResult:
        return await self._terminal.job(sandbox, int(args.bash_id), JobRequest(), timeout_s=timeout_s)


class KillShellInput(Arguments):
    shell_id: Annotated[JobNumber, Field(description="The number of the job.")]


class KillShell(OnTerminal, Writes):
    name: ClassVar[str] = "KillShell"
    description: ClassVar[str] = "Kill a command in the background and all that it started."
    Input: ClassVar[type[BaseModel]] = KillShellInput

    async def run(self, sandbox: Sandbox, args: KillShellInput, *, timeout_s: float) -> ToolResult:
        return await self._terminal.job(sandbox, int(args.shell_id), JobRequest(kill=True), timeout_s=timeout_s)


class ClaudeReadInput(Arguments):
    file_path: Annotated[Name, Field(description="The file; a relative path from the working directory.")]
    offset: Annotated[int | None, Field(ge=0, description="The line to begin with, from 1.")] = None
    limit: Annotated[int | None, Field(ge=1, description="How many lines.")] = None
    pages: SkipJsonSchema[str | None] = None


def _pages_of(path: str) -> str:
    if path.lower().endswith(".pdf"):
        return f"{shown_name(path)}: PDF files are not read here; make text of it with Bash (pdftotext)"
    return f"{shown_name(path)} is no PDF file, so it has no pages; give offset and limit, which are lines"


class ClaudeRead(OnFiles, Reads):
    name: ClassVar[str] = "Read"
    description: ClassVar[str] = (
        "Read a text file, its lines numbered as by cat -n: the first 2000, or those that offset and limit name. Of "
        "lines over 2000 characters the beginning is shown."
    )
    Input: ClassVar[type[BaseModel]] = ClaudeReadInput

    async def run(self, sandbox: Sandbox, args: ClaudeReadInput, *, timeout_s: float) -> ToolResult:
        if args.pages is not None:
            return refused(_pages_of(args.file_path))
        lines = replace(paged(args.offset, args.limit), most=_MOST_LINES)
        return await self._files.view(sandbox, args.file_path, lines, timeout_s=timeout_s)


class ClaudeWriteInput(Arguments):
    file_path: Annotated[Name, Field(description="The file; a relative path from the working directory.")]
    content: Annotated[str, Field(description="The whole content.")]


class ClaudeWrite(OnFiles, Writes):
    name: ClassVar[str] = "Write"
    description: ClassVar[str] = "Write a whole file, over an old one too; directories that are missing are made."
    Input: ClassVar[type[BaseModel]] = ClaudeWriteInput

    async def run(self, sandbox: Sandbox, args: ClaudeWriteInput, *, timeout_s: float) -> ToolResult:
        return await self._files.create(sandbox, args.file_path, args.content, timeout_s=timeout_s)


class EditItem(Arguments):
    old_string: Annotated[str, Field(description="The text to replace, white space and all.")]
    new_string: Annotated[str, Field(description="What to put in its place.")]
    replace_all: Annotated[bool, Field(description="Wherever it occurs; without it, it must occur once.")] = False

    def as_replacement(self) -> Replacement:
        return Replacement(self.old_string, self.new_string, self.replace_all)


class ClaudeEditInput(EditItem):
    file_path: Annotated[Name, Field(description="The file; a relative path from the working directory.")]


class ClaudeEdit(OnFiles, Writes):
    name: ClassVar[str] = "Edit"
    description: ClassVar[str] = (
        "Replace text in a file. old_string is there exactly once, unless replace_all; leave out Read's line numbers. "
        "Bytes, encoding and line ends that it does not name stay. An empty old_string makes a new file of new_string."
    )
    Input: ClassVar[type[BaseModel]] = ClaudeEditInput

    async def run(self, sandbox: Sandbox, args: ClaudeEditInput, *, timeout_s: float) -> ToolResult:
        return await edit(self._files, sandbox, args.file_path, [args.as_replacement()], timeout_s=timeout_s)


class MultiEditInput(Arguments):
    file_path: Annotated[Name, Field(description="The file; a relative path from the working directory.")]
    edits: Annotated[
        list[EditItem],
        Field(min_length=1, max_length=1000, description="The edits, each made in what the one before left."),
    ]


class MultiEdit(OnFiles, Writes):
    name: ClassVar[str] = "MultiEdit"
    description: ClassVar[str] = (
        "Several edits of one file, as by Edit, one after the other: all of them are made or none. To make a new file, "
        "let the first have an empty old_string."
    )
    Input: ClassVar[type[BaseModel]] = MultiEditInput

    async def run(self, sandbox: Sandbox, args: MultiEditInput, *, timeout_s: float) -> ToolResult:
        changes = [item.as_replacement() for item in args.edits]
        return await edit(self._files, sandbox, args.file_path, changes, timeout_s=timeout_s)


class ClaudeGrepInput(GrepInput):
    type: Annotated[
        Name | None, Field(description='Only files of that type, as ripgrep knows it, e.g. "py", "rust", "js".')
    ] = None
    context: Annotated[Context, Field(description="The same as -C.")] = 0
    head_limit: Annotated[int, Field(ge=0, le=10_000, description="At most so many lines of output; 0: 10000.")] = 250
    offset: Annotated[int, Field(ge=0, description="Leave out so many lines of output before the first.")] = 0
    multiline: Annotated[bool, Field(description="Let a match span lines, and . match line ends.")] = False

    @property
    def skipped(self) -> int:
        return self.offset

    def options(self) -> list[str]:
        self.around = max(self.around, self.context)
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


class LSInput(Arguments):
    path: Annotated[Name, Field(description="The directory; a relative path from the working directory.")]
    ignore: Annotated[list[Name] | None, Field(max_length=100, description="Globs of names to leave out.")] = None


class LS(OnFiles, Reads):
    name: ClassVar[str] = "LS"
    description: ClassVar[str] = (
        "List a directory two levels deep, without hidden names, node_modules and __pycache__; directories end with /."
    )
    Input: ClassVar[type[BaseModel]] = LSInput

    async def run(self, sandbox: Sandbox, args: LSInput, *, timeout_s: float) -> ToolResult:
        return await self._files.listing(sandbox, args.path, depth=2, ignore=args.ignore or (), timeout_s=timeout_s)


class Todo(Arguments):
    content: Annotated[str, Field(min_length=1, description="What is to be done.")]
    status: Annotated[Literal["pending", "in_progress", "completed"], Field(description="How far it is.")]
    active: Annotated[
        str | None,
        Field(alias="activeForm", min_length=1, description="The same as it goes on, e.g. Running the tests."),
    ] = None
    id: Unused = None
    priority: Unused = None


class TodoWriteInput(Arguments):
    todos: Annotated[list[Todo], Field(max_length=1000, description="The whole list, in order.")]


class TodoWrite(Writes):
    name: ClassVar[str] = "TodoWrite"
    description: ClassVar[str] = "Write down what is to be done and how far it is; the list replaces the one before."
    Input: ClassVar[type[BaseModel]] = TodoWriteInput

    async def run(self, sandbox: Sandbox, args: TodoWriteInput, *, timeout_s: float) -> ToolResult:
        left = sum(todo.status != "completed" for todo in args.todos)
        return ToolResult(f"Noted: {len(args.todos)} to do, {left} of them left.")
