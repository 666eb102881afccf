"""The ``bash`` tool: run commands in persistent shells and as background jobs."""

from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, Field, StringConstraints, model_validator

from sandboxes.interface import MIB, Sandbox
from sandboxes.tools.actions.terminal import MAIN, JobRequest, OnTerminal
from sandboxes.tools.arguments import Arguments, Command
from sandboxes.tools.tool import ToolResult

SessionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,32}$")]
_OF_A_JOB = ("input", "wait_s", "kill")


class BashInput(Arguments):
    command: Annotated[Command | None, Field(description="What to run; may be left out with restart or job.")] = None
    restart: Annotated[
        bool, Field(description="Start a fresh shell first; the old one and all that runs in it are killed.")
    ] = False
    timeout_s: Annotated[
        float | None,
        Field(gt=0, le=86_400, allow_inf_nan=False, description="Seconds after which the command is killed."),
    ] = None
    background: Annotated[
        bool, Field(description="Run it as a job on a terminal of its own; do not wait, but for its first words.")
    ] = False
    session: Annotated[
        SessionName, Field(description="Run it in another shell than the usual one: the one of that name.")
    ] = MAIN
    job: Annotated[
        int | None,
        Field(ge=1, lt=2**32, description="A job: what it has said since it was last asked, and its end."),
    ] = None
    input: Annotated[
        str | None,
        Field(max_length=MIB, description="job: type this first; \\n is Return, \\u0003 Ctrl-C, \\u0004 Ctrl-D."),
    ] = None
    wait_s: Annotated[
        float | None,
        Field(ge=0, le=86_400, allow_inf_nan=False, description="job: wait so many seconds for its end."),
    ] = None
    kill: Annotated[bool, Field(description="job: kill it and all that it started.")] = False

    @model_validator(mode="after")
    def _asks_for_one_thing(self) -> Self:
        of_a_job = [name for name in _OF_A_JOB if getattr(self, name) not in (None, False)]
        if self.job is None:
            if of_a_job:
                raise ValueError(f"{' and '.join(of_a_job)}: only with job")
            if self.command is None and not self.restart:
                raise ValueError('"command" is missing (only with "restart": true or "job" may it be left out)')
        elif self.command is not None or self.restart or self.background:
            raise ValueError("job asks after a command that runs already: give no command, restart or background")
        elif self.kill and self.input:
            raise ValueError("give either input or kill")
        return self


class Bash(OnTerminal):
    """Named shells, each running one command at a time; and background jobs."""

    name: ClassVar[str] = "bash"
    description: ClassVar[str] = (
        "Run a command in a bash that lives on: directory, variables, functions stay from call to call. Stdout and "
        "stderr come merged, and the exit code; stdin is empty: start what asks questions in the background. At the "
        "time-out the shell is killed with all that runs in it; jobs go on. Of long output the head and the tail are "
        "shown, and the path of the full text. Terminal sequences are taken out, of what overwrites its line the last "
        "is shown, other control characters by pictures (NUL as ␀)."
    )
    Input: ClassVar[type[BaseModel]] = BashInput

    def reads_only(self, args: BashInput) -> bool:
        return args.job is not None and not args.input and not args.kill

    async def run(self, sandbox: Sandbox, args: BashInput, *, timeout_s: float) -> ToolResult:
        if args.job is not None:
            asked = JobRequest(args.input or "", args.wait_s, args.kill)
            return await self._terminal.job(sandbox, args.job, asked, timeout_s=timeout_s)
        if args.command is None:
            return await self._terminal.restart(sandbox, session=args.session)
        if args.background:
            if args.restart:
                await self._terminal.restart(sandbox, session=args.session)
            return await self._terminal.start(sandbox, args.command, session=args.session, timeout_s=timeout_s)
        limit_s = min(timeout_s, args.timeout_s or timeout_s)
        return await self._terminal.run(
            sandbox, args.command, session=args.session, restart=args.restart, timeout_s=limit_s
        )
