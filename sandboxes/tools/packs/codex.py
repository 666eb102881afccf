"""The tools of the Codex CLI: run programs by their arguments, and apply patches."""

import posixpath
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, Field

from sandboxes.interface import ExecResult, Sandbox
from sandboxes.tools.actions.apply_patch import PatchActions
from sandboxes.tools.arguments import Arguments, Name, Unused, UnusedFlag, Word
from sandboxes.tools.parse_call import MalformedCall
from sandboxes.tools.rendering import captured
from sandboxes.tools.tool import ToolErrorKind, ToolResult, Writes

_STATUS_CHARS = 1000
_MIN_S = 0.1
_TOOLBOX_SHELL = "/.farm/bin/bash"
_PATCH_COMMANDS = ("apply_patch", "applypatch")
_SHELLS = ("bash", "zsh", "sh")
_NO_PROGRAM = re.compile(rb"\bapply_?patch: (?:command not found|not found|No such file)")
_QUOTED = re.compile(r"apply_?patch[ \t]+'([^']*)'")
_PATCH_HINT = (
    '[apply_patch is no program here: send the patch to that tool, or as ["apply_patch", PATCH], or with a shell '
    "whose script begins with apply_patch <<'EOF', the patch and EOF]"
)
_HEREDOC = re.compile(
    r"(?:cd[ \t](?P<cd>[^\n&|;<>]{1,4096})(?:&&|[;\n])\s*)?apply_?patch[ \t]*<<[ \t]*(['\"]?)(?P<end>\w+)\2[ \t]*\n"
)


class ShellInput(Arguments):
    command: Annotated[
        list[Word], Field(min_length=1, max_length=10_000, description='The command to execute, e.g. ["ls", "-l"].')
    ]
    workdir: Annotated[Name | None, Field(description="The working directory; default: the repository.")] = None
    timeout_ms: Annotated[
        float | None,
        Field(
            validation_alias=AliasChoices("timeout_ms", "timeout"),
            gt=0,
            le=86_400_000,
            allow_inf_nan=False,
            description="Milliseconds after which it is killed.",
        ),
    ] = None
    sandbox_permissions: Unused = None
    with_escalated_permissions: UnusedFlag = None
    justification: Unused = None


class Shell(Writes):
    """Runs each call as a separate program; only files persist between calls."""

    name: ClassVar[str] = "shell"
    description: ClassVar[str] = (
        "Run a program and return its output, stdout and stderr merged, and its exit code. No shell reads the "
        'arguments: for pipes, globs and the like run ["bash", "-lc", "..."]. Directory and variables do not stay from '
        "call to call: set workdir. Stdin is empty. At the time-out its whole process tree is killed. Of long output "
        "the head and the tail are shown."
    )
    Input: ClassVar[type[BaseModel]] = ShellInput

    def __init__(self, max_chars: int, patches: PatchActions) -> None:
        self._output_limit = max_chars - _STATUS_CHARS
        self._patches = patches

    async def run(self, sandbox: Sandbox, args: ShellInput, *, timeout_s: float) -> ToolResult:
        limit_s = min(timeout_s, args.timeout_ms / 1000) if args.timeout_ms else timeout_s
        cwd = posixpath.join(sandbox.workdir, args.workdir or "")
        patch_call = parse_patch_call(args.command)
        if patch_call is None:
            return await self._run(sandbox, args.command, cwd, limit_s)
        until = time.monotonic() + limit_s
        cwd = posixpath.join(cwd, patch_call.directory)
        patched = await self._patches.apply(sandbox, patch_call.patch, cwd=cwd, timeout_s=limit_s)
        if not patch_call.rest:
            return patched
        if patched.error_kind is not None:
            return replace(patched, content=f"{patched.content}\n[what follows the patch was not run]")
        left_s = max(_MIN_S, until - time.monotonic())
        after = await self._run(sandbox, [*args.command[:2], patch_call.rest], cwd, left_s)
        return replace(after, content=f"{patched.content}\n{after.content}")

    async def _run(self, sandbox: Sandbox, argv: Sequence[str], cwd: str, limit_s: float) -> ToolResult:
        outcome = await self._execute(sandbox, argv, cwd, limit_s)
        name = argv[0]
        if name in _SHELLS and outcome.stdout.head.startswith(f"toolserver: {name}: No such file".encode()):
            # The image has no shell: run the toolbox's.
            outcome = await self._execute(sandbox, [_TOOLBOX_SHELL, *argv[1:]], cwd, limit_s)
        result = _as_result(outcome, limit_s)
        return replace(result, content=f"{result.content}\n{_PATCH_HINT}") if _missed_apply_patch(outcome) else result

    async def _execute(self, sandbox: Sandbox, argv: Sequence[str], cwd: str, limit_s: float) -> ExecResult:
        return await sandbox.exec(argv, cwd=cwd, timeout_s=limit_s, output_limit=self._output_limit, merge_stderr=True)


def _missed_apply_patch(outcome: ExecResult) -> bool:
    """Return whether a shell did not find ``apply_patch`` as a program.

    The tool handles apply_patch itself, and only if nothing else runs before it.
    """
    return any(_NO_PROGRAM.search(said) for said in (outcome.stdout.head, outcome.stdout.tail))


@dataclass(frozen=True, slots=True)
class PatchCall:
    """A call of apply_patch: its directory, the patch, and the rest of the script after it."""

    directory: str
    patch: str
    rest: str = ""


def parse_patch_call(argv: Sequence[str]) -> PatchCall | None:
    """Parse a call of apply_patch in ``argv``; None if there is none.

    Accepts apply_patch with the patch as its argument, and a shell whose script is apply_patch with the patch in single
    quotes, or begins with apply_patch and a heredoc, optionally after ``cd DIRECTORY``. A script may continue after the
    heredoc, because the public Codex CLI provides apply_patch as a program. Raises MalformedCall for a patch without a
    call of apply_patch.
    """
    match argv:
        case [name, text] if name in _PATCH_COMMANDS:
            return PatchCall("", text)
        case [shell, "-lc" | "-c", script] if posixpath.basename(shell) in _SHELLS:
            script = script.strip()
            if quoted := _QUOTED.fullmatch(script):
                return PatchCall("", quoted[1])
            if heredoc := _HEREDOC.match(script):
                return _heredoc(heredoc["cd"] or "''", script[heredoc.end() :].split("\n"), heredoc["end"])
            _refuse_bare(script)
        case [text]:
            _refuse_bare(text)
    return None


def _heredoc(directory: str, lines: Sequence[str], end: str) -> PatchCall | None:
    """Parse a heredoc; None if it has no end, or if only a shell can evaluate the directory."""
    place = _single_word(directory)
    if place is None or end not in lines:
        return None
    at = lines.index(end)
    return PatchCall(place, "\n".join(lines[:at]), "\n".join(lines[at + 1 :]).strip())


def _single_word(text: str) -> str | None:
    """Return the single word that a shell reads in ``text``; None if there is none or more than one."""
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    return words[0] if len(words) == 1 else None


def _refuse_bare(text: str) -> None:
    lines = text.strip().split("\n")
    if (lines[0].strip(), lines[-1].strip()) != ("*** Begin Patch", "*** End Patch"):
        return
    message = 'this is a patch, but no call of apply_patch: give it to that tool, or send ["apply_patch", PATCH]'
    raise MalformedCall(ToolErrorKind.BAD_ARGUMENTS, message)


def _as_result(outcome: ExecResult, limit_s: float) -> ToolResult:
    took = f" after {outcome.duration_s:.1f} s" if outcome.duration_s >= 1 else ""
    note = f"[exit code {outcome.exit_code}{took}]"
    if outcome.timed_out:
        note = f"[timed out after {limit_s:g} s: its whole process tree was killed]"
    output = captured(outcome.stdout, outcome.spill)
    return ToolResult(
        output + ("" if not output or output.endswith("\n") else "\n") + note,
        error_kind=ToolErrorKind.TIMEOUT if outcome.timed_out else None,
        exit_code=outcome.exit_code,
        timed_out=outcome.timed_out,
        truncated=not outcome.stdout.whole,
    )


class ApplyPatchInput(Arguments):
    input: Annotated[str, Field(min_length=1, description="The whole patch, from *** Begin Patch to *** End Patch.")]


class ApplyPatch(Writes):
    name: ClassVar[str] = "apply_patch"
    description: ClassVar[str] = (
        "Add, delete, change and move files by a patch: *** Begin Patch, sections, *** End Patch. A section is *** Add "
        "File: PATH and lines that begin with +; *** Delete File: PATH; or *** Update File: PATH, perhaps *** Move to: "
        "PATH, and hunks. A hunk is @@, perhaps with a line of the file that comes before it (@@ class A:), then lines "
        "that begin with a space (context, three above and below), - or +, and *** End of File where it ends there. "
        "Paths are relative to the repository. All of it applies or nothing."
    )
    Input: ClassVar[type[BaseModel]] = ApplyPatchInput

    def __init__(self, patches: PatchActions) -> None:
        self._patches = patches

    async def run(self, sandbox: Sandbox, args: ApplyPatchInput, *, timeout_s: float) -> ToolResult:
        return await self._patches.apply(sandbox, args.input, cwd=sandbox.workdir, timeout_s=timeout_s)


class PlanStep(Arguments):
    step: Annotated[str, Field(description="What is to be done.")]
    status: Annotated[Literal["pending", "in_progress", "completed"], Field(description="How far it is.")]


class UpdatePlanInput(Arguments):
    plan: Annotated[list[PlanStep], Field(max_length=1000, description="All steps, in order.")]
    explanation: Annotated[str | None, Field(description="Why it changes.")] = None


class UpdatePlan(Writes):
    name: ClassVar[str] = "update_plan"
    description: ClassVar[str] = "Write down the steps of the work and how far each is; at most one is in progress."
    Input: ClassVar[type[BaseModel]] = UpdatePlanInput

    async def run(self, sandbox: Sandbox, args: UpdatePlanInput, *, timeout_s: float) -> ToolResult:
        return ToolResult("Plan updated")
