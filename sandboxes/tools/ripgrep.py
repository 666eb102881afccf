"""Ripgrep inside the sandbox: what ``grep`` and ``glob`` share."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sandboxes.errors import PathError
from sandboxes.sandbox import MIB, ExecResult, Sandbox
from sandboxes.tools.rendering import fitting, printed, shown_name
from sandboxes.tools.tool import ToolErrorKind, ToolResult

PROGRAM = "/.farm/bin/rg"
_ALWAYS = ("--no-config", "--color=never", "--sort=path", "--hidden")
_OUTPUT_LIMIT = 2 * MIB
_LONGEST_S = 60.0
_MOST_COMPLAINTS = 8


@dataclass(frozen=True, slots=True)
class Found:
    """Lines of ripgrep's output in the order of their paths. ``more``: there were others, not kept."""

    lines: Sequence[str]
    more: bool
    error: str
    outcome: ExecResult


async def search(
    sandbox: Sandbox,
    options: Sequence[str],
    path: str,
    *,
    globs: Sequence[str] = (),
    cwd: str,
    timeout_s: float,
    separator: bytes = b"\n",
    shown: Callable[[bytes], str] = printed,
) -> Found:
    """Run ripgrep over ``path``, hidden files included and ``.git`` not, for a minute at most."""
    argv = [PROGRAM, *_ALWAYS, *options, *(f"--glob={glob}" for glob in (*globs, "!.git")), "--", path]
    outcome = await sandbox.exec(argv, cwd=cwd, timeout_s=min(timeout_s, _LONGEST_S), output_limit=_OUTPUT_LIMIT)
    records = outcome.stdout.head.split(separator)
    if outcome.stdout.whole:
        records = (outcome.stdout.head + outcome.stdout.tail).split(separator)
    last = records.pop()
    if last and outcome.stdout.whole and not outcome.timed_out:
        records.append(last)
    failed = outcome.exit_code not in (0, 1) and not outcome.timed_out
    complaints = printed(outcome.stderr.head[:4000]).strip().splitlines()[:_MOST_COMPLAINTS]
    complaint = "\n".join(complaints) or f"ripgrep ended with exit code {outcome.exit_code}"
    return Found(
        lines=[shown(record.removeprefix(b"./")) for record in records],
        more=not outcome.stdout.whole,
        error=complaint if failed else "",
        outcome=outcome,
    )


async def files_named(sandbox: Sandbox, name: str, *, timeout_s: float) -> list[str]:
    """Paths from the working directory on of files with that base name; empty where there is nothing to say."""
    literal = re.sub(r"([*?\[\]{}\\!])", r"[\1]", name)
    try:
        found = await search(
            sandbox,
            ("--files", "--null"),
            ".",
            globs=(f"/**/{literal}",),
            cwd=sandbox.workdir,
            timeout_s=timeout_s,
            separator=b"\0",
            shown=shown_name,
        )
    except PathError:
        return []
    return list(found.lines)


def listed(found: Found, *, none: str, limit: int, max_chars: int, narrow: str) -> ToolResult:
    """The first ``limit`` lines that fit, and in brackets what a reader must know to trust them."""
    if found.error and not found.lines:
        return ToolResult(f"error: {found.error}", error_kind=ToolErrorKind.REFUSED)
    notes = []
    kept = min(limit, fitting(found.lines, max_chars - 1000), len(found.lines))
    rest = len(found.lines) - kept
    if rest or found.more:
        amount = f"{'at least ' if found.more or found.outcome.timed_out else ''}{rest:,}"
        notes.append(f"[{amount} more lines: {narrow}]")
    if found.outcome.timed_out:
        notes.append(f"[timed out after {found.outcome.duration_s:.0f} s: incomplete; search a smaller place]")
    elif found.error:
        notes.append(f"[incomplete: {found.error.splitlines()[0][:500]}]")
    if not found.lines and not notes:
        notes.append(none)
    return ToolResult(
        "\n".join([*found.lines[:kept], *notes]),
        error_kind=ToolErrorKind.TIMEOUT if found.outcome.timed_out else None,
        timed_out=found.outcome.timed_out,
        truncated=bool(rest) or found.more,
    )
