"""Run commands in a shell that lives on."""

import re
import shlex
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandboxes.sandbox import ExecResult, Sandbox
from sandboxes.tools.arguments import Command
from sandboxes.tools.rendering import captured, printed
from sandboxes.tools.serial import OneAtATime
from sandboxes.tools.tool import ToolErrorKind, ToolResult

_STATUS_CHARS = 1000
_BACKGROUND_S = 30.0


class BashInput(BaseModel):
    model_config = ConfigDict(extra="forbid")

    command: Annotated[Command | None, Field(description="What to run; may be left out with restart.")] = None
    restart: Annotated[
        bool, Field(description="Start a fresh shell first; the old one and all that runs in it are killed.")
    ] = False
    timeout_s: Annotated[
        float | None,
        Field(gt=0, le=86_400, allow_inf_nan=False, description="Seconds after which the command is killed."),
    ] = None
    background: Annotated[
        bool,
        Field(description="Do not wait: returns the pid and the file that takes the output; read it with cat."),
    ] = False

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if self.command is None and not self.restart:
            raise ValueError('"command" is missing (only with "restart": true may it be left out)')
        return self


class Bash:
    """One shell a sandbox; its calls take their turns."""

    name: ClassVar[str] = "bash"
    description: ClassVar[str] = (
        "Run a command in a bash that lives on: directory, variables, functions and jobs stay from call to call. "
        "Stdout and stderr come merged, and the exit code; stdin is empty. At the time-out the shell is killed with "
        "all that runs in it, background jobs too. Of long output the head and the tail are shown, and the path of the "
        "full text. Terminal sequences are taken out, other control characters shown by pictures (NUL as ␀)."
    )
    Input: ClassVar[type[BaseModel]] = BashInput

    def __init__(self, max_chars: int) -> None:
        self._output_limit = max_chars - _STATUS_CHARS
        self._serial = OneAtATime()

    async def run(self, sandbox: Sandbox, args: BashInput, *, timeout_s: float) -> ToolResult:
        async with self._serial.of(sandbox):
            if args.restart:
                await sandbox.restart_shell()
            if args.command is None:
                return ToolResult(f"[a fresh shell, in {sandbox.workdir}]")
            if args.background:
                return await self._start(sandbox, args.command, min(timeout_s, _BACKGROUND_S))
            limit_s = min(timeout_s, args.timeout_s or timeout_s)
            outcome = await sandbox.shell(args.command, timeout_s=limit_s, output_limit=self._output_limit)
            return _told(outcome, limit_s, sandbox.workdir)

    async def _start(self, sandbox: Sandbox, command: str, timeout_s: float) -> ToolResult:
        """Run it in a subshell of the session, so that it begins in the session's directory and variables."""
        detached = (
            "/.farm/bin/busybox mkdir -p /tmp; "
            '( exec >"/tmp/background-$BASHPID.log" 2>&1 </dev/null; '
            f"eval {shlex.quote(command)} ) & echo $!"
        )
        outcome = await sandbox.shell(detached, timeout_s=timeout_s, output_limit=self._output_limit)
        pid = printed(outcome.stdout.head).strip()
        if outcome.exit_code != 0 or not re.fullmatch(r"\d{1,9}", pid):
            return _told(outcome, timeout_s, sandbox.workdir)
        return ToolResult(f"[runs in the background: pid {pid}, output in /tmp/background-{pid}.log]", exit_code=0)


def _told(outcome: ExecResult, limit_s: float, workdir: str) -> ToolResult:
    took = f" after {outcome.duration_s:.1f} s" if outcome.duration_s >= 1 else ""
    notes = [f"[exit code {outcome.exit_code}{took}]"]
    if outcome.timed_out:
        notes = [f"[timed out after {limit_s:g} s: the shell's whole process tree was killed, background jobs too]"]
    if outcome.shell_lost:
        notes.append(f"[the shell ended with it; the next command starts in a fresh one, in {workdir}]")
    output = captured(outcome.stdout, outcome.spill)
    break_ = "" if not output or output.endswith("\n") else "\n"
    return ToolResult(
        output + break_ + "\n".join(notes),
        error_kind=ToolErrorKind.TIMEOUT if outcome.timed_out else None,
        exit_code=outcome.exit_code,
        timed_out=outcome.timed_out,
        truncated=not outcome.stdout.whole,
    )
