"""Run commands in persistent shells or as background jobs; shared by the tools of every pack."""

from dataclasses import dataclass

from sandboxes.errors import JobError
from sandboxes.interface import Capture, ExecResult, JobOutput, Sandbox
from sandboxes.tools.locks import SandboxLocks
from sandboxes.tools.rendering import captured
from sandboxes.tools.tool import ToolErrorKind, ToolResult

MAIN = "main"
SHELL = (
    "Run a command in a bash that lives on: directory, variables and functions stay from call to call. Stdout and "
    "stderr come merged, and the exit code; stdin is empty. At the time-out the shell is killed with all that runs "
    "in it. Of long output the head and the tail are shown, and the path of the full text."
)
"""The description of a plain shell tool, shared by several packs."""
FIRST_OUTPUT_S = 1.0
_STATUS_CHARS = 1000
_QUIET_S = 0.3
_ANSWER_WAIT_S = 10.0
_KILL_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A request to a background job: type ``typed`` or kill the job, then return its new output.

    ``wait_s`` is the time to wait for the end of the job. None: do not wait; after typing, wait until the job has
    answered and its output has paused.
    """

    typed: str = ""
    wait_s: float | None = None
    kill: bool = False


class TerminalActions:
    """Shell commands and jobs. Calls to one shell run one at a time; other shells and jobs run concurrently."""

    def __init__(self, max_chars: int) -> None:
        self._output_limit = max_chars - _STATUS_CHARS
        self._locks = SandboxLocks()

    async def run(
        self, sandbox: Sandbox, command: str, *, session: str = MAIN, restart: bool = False, timeout_s: float
    ) -> ToolResult:
        """Run a command in a shell. ``restart``: start a new shell first."""
        async with self._locks.of(sandbox, session):
            if restart:
                await sandbox.restart_shell(session)
            outcome = await sandbox.shell(
                command, session=session, timeout_s=timeout_s, output_limit=self._output_limit
            )
        return _shell_result(outcome, timeout_s, sandbox.workdir)

    async def restart(self, sandbox: Sandbox, *, session: str = MAIN) -> ToolResult:
        async with self._locks.of(sandbox, session):
            await sandbox.restart_shell(session)
        return ToolResult(f"[a fresh shell, in {sandbox.workdir}]")

    async def start(
        self, sandbox: Sandbox, command: str, *, session: str = MAIN, timeout_s: float = FIRST_OUTPUT_S
    ) -> ToolResult:
        """Start a background job with the state of the session's shell.

        Return its first output, collected for at most ``timeout_s``.
        """
        try:
            async with self._locks.of(sandbox, session):
                number = await sandbox.start_job(command, session=session)
            output = await sandbox.job_output(number, wait_s=min(timeout_s, FIRST_OUTPUT_S), quiet_s=_QUIET_S)
        except JobError as error:
            return ToolResult(f"error: {error}", error_kind=ToolErrorKind.REFUSED)
        runs = [f"[job {number} runs in the background]"] if output.exit_code is None else [_job_status(number, output)]
        return _job_result(output, runs, self._output_limit)

    async def job(self, sandbox: Sandbox, number: int, request: JobRequest, *, timeout_s: float) -> ToolResult:
        """Return the output of the job since the last request, and its status."""
        try:
            return await self._job(sandbox, number, request, timeout_s)
        except JobError as error:
            return ToolResult(f"error: {error}", error_kind=ToolErrorKind.REFUSED)

    async def _job(self, sandbox: Sandbox, number: int, request: JobRequest, timeout_s: float) -> ToolResult:
        wait_s, quiet_s = request.wait_s or 0.0, 0.0
        notes = []
        if request.kill:
            await sandbox.end_job(number)
            wait_s = _KILL_WAIT_S
        if request.typed:
            data = request.typed.encode()
            taken = await sandbox.job_input(number, data)
            if taken < len(data):
                notes.append(f"[only {taken:,} of {len(data):,} bytes were taken: it does not read on]")
            if request.wait_s is None:
                wait_s, quiet_s = _ANSWER_WAIT_S, _QUIET_S
        output = await sandbox.job_output(number, wait_s=min(wait_s, timeout_s), quiet_s=quiet_s)
        return _job_result(output, [*notes, _job_status(number, output)], self._output_limit)


class OnTerminal:
    """A tool that uses TerminalActions."""

    def __init__(self, terminal: TerminalActions) -> None:
        self._terminal = terminal


def _shell_result(outcome: ExecResult, limit_s: float, workdir: str) -> ToolResult:
    took = f" after {outcome.duration_s:.1f} s" if outcome.duration_s >= 1 else ""
    notes = [f"[exit code {outcome.exit_code}{took}]"]
    if outcome.timed_out:
        notes = [f"[timed out after {limit_s:g} s: the shell's whole process tree was killed]"]
    if outcome.shell_lost:
        notes.append(f"[the shell ended with it; the next command starts in a fresh one, in {workdir}]")
    return ToolResult(
        _append_notes(captured(outcome.stdout, outcome.spill), notes),
        error_kind=ToolErrorKind.TIMEOUT if outcome.timed_out else None,
        exit_code=outcome.exit_code,
        timed_out=outcome.timed_out,
        truncated=not outcome.stdout.whole,
    )


def _job_status(number: int, output: JobOutput) -> str:
    end = "runs still," if output.exit_code is None else f"ended with exit code {output.exit_code}"
    return f"[job {number} {end} after {output.duration_s:.1f} s]"


def _job_result(output: JobOutput, notes: list[str], limit: int) -> ToolResult:
    shown = _shorten(output.output, limit)
    content = _append_notes(captured(shown, output.spill), notes)
    return ToolResult(content, exit_code=output.exit_code, truncated=not shown.whole)


def _shorten(capture: Capture, limit: int) -> Capture:
    """Shorten a capture to its first and last bytes, ``limit`` in total."""
    kept = capture.head + capture.tail
    over = len(kept) - limit
    if over <= 0:
        return capture
    head, tail = kept[: limit // 2], kept[len(kept) - (limit - limit // 2) :]
    return Capture(head, tail, capture.elided + over)


def _append_notes(output: str, notes: list[str]) -> str:
    break_ = "" if not output or output.endswith("\n") else "\n"
    return output + break_ + "\n".join(notes)
