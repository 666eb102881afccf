"""What the tools of every pack do with commands: run them in shells that live on, or in the background."""

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
"""What packs say of theirs that has no more to it."""
FIRST_WORDS_S = 1.0
_STATUS_CHARS = 1000
_QUIET_S = 0.3
_ANSWER_S = 10.0
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What is asked of a job: type ``typed`` into it or kill it, then hear what it says.

    ``wait_s`` is how long to wait for its end. None: not at all, or where something is typed, until it has answered
    and then been quiet for a moment.
    """

    typed: str = ""
    wait_s: float | None = None
    kill: bool = False


class TerminalActions:
    """Calls to one shell take their turns; those to others, and to jobs, run beside them."""

    def __init__(self, max_chars: int) -> None:
        self._output_limit = max_chars - _STATUS_CHARS
        self._serial = SandboxLocks()

    async def run(
        self, sandbox: Sandbox, command: str, *, session: str = MAIN, restart: bool = False, timeout_s: float
    ) -> ToolResult:
        """``restart``: in a fresh shell."""
        async with self._serial.of(sandbox, session):
            if restart:
                await sandbox.restart_shell(session)
            outcome = await sandbox.shell(
                command, session=session, timeout_s=timeout_s, output_limit=self._output_limit
            )
        return _told(outcome, timeout_s, sandbox.workdir)

    async def restart(self, sandbox: Sandbox, *, session: str = MAIN) -> ToolResult:
        async with self._serial.of(sandbox, session):
            await sandbox.restart_shell(session)
        return ToolResult(f"[a fresh shell, in {sandbox.workdir}]")

    async def start(
        self, sandbox: Sandbox, command: str, *, session: str = MAIN, timeout_s: float = FIRST_WORDS_S
    ) -> ToolResult:
        """In the background, as the session's shell stands; with the first that it says within ``timeout_s``."""
        try:
            async with self._serial.of(sandbox, session):
                number = await sandbox.start_job(command, session=session)
            said = await sandbox.job_output(number, wait_s=min(timeout_s, FIRST_WORDS_S), quiet_s=_QUIET_S)
        except JobError as error:
            return ToolResult(f"error: {error}", error_kind=ToolErrorKind.REFUSED)
        runs = [f"[job {number} runs in the background]"] if said.exit_code is None else [_stands(number, said)]
        return _heard(said, runs, self._output_limit)

    async def job(self, sandbox: Sandbox, number: int, asked: JobRequest, *, timeout_s: float) -> ToolResult:
        """What the job has said since it was last asked, and how it stands."""
        try:
            return await self._job(sandbox, number, asked, timeout_s)
        except JobError as error:
            return ToolResult(f"error: {error}", error_kind=ToolErrorKind.REFUSED)

    async def _job(self, sandbox: Sandbox, number: int, asked: JobRequest, timeout_s: float) -> ToolResult:
        wait_s, quiet_s = asked.wait_s or 0.0, 0.0
        notes = []
        if asked.kill:
            await sandbox.end_job(number)
            wait_s = _END_S
        if asked.typed:
            data = asked.typed.encode()
            taken = await sandbox.job_input(number, data)
            if taken < len(data):
                notes.append(f"[only {taken:,} of {len(data):,} bytes were taken: it does not read on]")
            if asked.wait_s is None:
                wait_s, quiet_s = _ANSWER_S, _QUIET_S
        said = await sandbox.job_output(number, wait_s=min(wait_s, timeout_s), quiet_s=quiet_s)
        return _heard(said, [*notes, _stands(number, said)], self._output_limit)


class OnTerminal:
    """A tool over it."""

    def __init__(self, terminal: TerminalActions) -> None:
        self._terminal = terminal


def _told(outcome: ExecResult, limit_s: float, workdir: str) -> ToolResult:
    took = f" after {outcome.duration_s:.1f} s" if outcome.duration_s >= 1 else ""
    notes = [f"[exit code {outcome.exit_code}{took}]"]
    if outcome.timed_out:
        notes = [f"[timed out after {limit_s:g} s: the shell's whole process tree was killed]"]
    if outcome.shell_lost:
        notes.append(f"[the shell ended with it; the next command starts in a fresh one, in {workdir}]")
    return ToolResult(
        _above(captured(outcome.stdout, outcome.spill), notes),
        error_kind=ToolErrorKind.TIMEOUT if outcome.timed_out else None,
        exit_code=outcome.exit_code,
        timed_out=outcome.timed_out,
        truncated=not outcome.stdout.whole,
    )


def _stands(number: int, said: JobOutput) -> str:
    end = "runs still," if said.exit_code is None else f"ended with exit code {said.exit_code}"
    return f"[job {number} {end} after {said.duration_s:.1f} s]"


def _heard(said: JobOutput, notes: list[str], limit: int) -> ToolResult:
    output = _within(said.output, limit)
    return ToolResult(_above(captured(output, said.spill), notes), exit_code=said.exit_code, truncated=not output.whole)


def _within(capture: Capture, limit: int) -> Capture:
    """A capture's first and last bytes, ``limit`` at most."""
    kept = capture.head + capture.tail
    over = len(kept) - limit
    if over <= 0:
        return capture
    head, tail = kept[: limit // 2], kept[len(kept) - (limit - limit // 2) :]
    return Capture(head, tail, capture.elided + over)


def _above(output: str, notes: list[str]) -> str:
    break_ = "" if not output or output.endswith("\n") else "\n"
    return output + break_ + "\n".join(notes)
