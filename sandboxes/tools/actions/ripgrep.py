"""Run ripgrep inside the sandbox; shared by the ``grep`` and ``glob`` tools."""

import errno
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sandboxes.errors import PathError
from sandboxes.interface import MIB, ExecResult, Sandbox
from sandboxes.tools.rendering import fitting, printed, shown_name
from sandboxes.tools.tool import ToolErrorKind, ToolResult

PROGRAM = "/.farm/bin/rg"
_OPTIONS = ("--no-config", "--color=never", "--sort=path", "--hidden")
_OUTPUT_LIMIT = 2 * MIB
_MAX_S = 60.0
_MAX_ERROR_LINES = 8


@dataclass(frozen=True, slots=True)
class RipgrepResult:
    """Ripgrep's output split into records, in the order of their paths.

    ``more``: further records were not kept. ``complaint`` is ripgrep's error output; empty if it succeeded.
    """

    records: Sequence[bytes]
    more: bool
    complaint: str
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
) -> RipgrepResult:
    """Run ripgrep over ``path`` for at most a minute, including hidden files and excluding ``.git``.

    Raises PathError.
    """
    if path != "." and await _is_special_file(sandbox, posixpath.join(cwd, path)):
        raise PathError(errno.EINVAL, path, "is a device, FIFO or socket")
    if posixpath.normpath(posixpath.join(cwd, path)).strip("/") == "":
        options = [*options, "--one-file-system"]  # excludes /proc and /dev
    argv = [PROGRAM, *_OPTIONS, *options, *(f"--glob={_escape_glob(glob)}" for glob in (*globs, "!.git")), "--", path]
    outcome = await sandbox.exec(argv, cwd=cwd, timeout_s=min(timeout_s, _MAX_S), output_limit=_OUTPUT_LIMIT)
    kept = outcome.stdout.head + (outcome.stdout.tail if outcome.stdout.whole else b"")
    *records, rest = kept.split(separator)
    if rest and outcome.stdout.whole and not outcome.timed_out:
        records.append(rest)
    complaint = ""
    if outcome.exit_code not in (0, 1) and not outcome.timed_out:
        errors = (
            printed(outcome.stderr.head[:4000]).strip().removeprefix("toolserver: ").splitlines()[:_MAX_ERROR_LINES]
        )
        complaint = "\n".join(errors) or f"ripgrep ended with exit code {outcome.exit_code}"
    return RipgrepResult(records, not outcome.stdout.whole, complaint, outcome)


async def _is_special_file(sandbox: Sandbox, path: str) -> bool:
    """Return whether ``path`` is a device, FIFO or socket, which ripgrep would read until its time-out.

    Other errors are left for ripgrep to report.
    """
    try:
        await sandbox.read_file(path, limit=1)
    except PathError as fault:
        return fault.errno == errno.EINVAL
    return False


def _escape_glob(glob: str) -> str:
    """Escape a leading ``#`` and trailing spaces of a glob, which ripgrep would read as a comment or strip."""
    plain = glob.rstrip(" ")
    blank = "[ ]" * (len(glob) - len(plain)) if not plain.endswith("\\") else glob[len(plain) :]
    return ("[#]" + plain[1:] if plain.startswith("#") else plain) + blank


async def files_named(sandbox: Sandbox, name: str, *, timeout_s: float) -> list[str]:
    """Return up to three paths below the working directory of files with that base name."""
    literal = re.sub(r"([*?\[\]{}\\!])", r"[\1]", name)
    listing = ("--files", "--null")
    globs = (f"/**/{literal}",)
    result = await search(sandbox, listing, ".", globs=globs, cwd=sandbox.workdir, timeout_s=timeout_s, separator=b"\0")
    return [shown_name(record.removeprefix(b"./")) for record in result.records[:3]]


def listed(
    result: RipgrepResult, shown: Callable[[bytes], str], *, none: str, limit: int, max_chars: int, narrow: str
) -> ToolResult:
    """Render the first ``limit`` records that fit, each by ``shown``, and notes about truncation, time-out and errors.

    ``none`` is the text for no records; ``narrow`` tells the policy how to get fewer.
    """
    timed_out = result.outcome.timed_out
    if result.complaint and not result.records:
        return ToolResult(f"error: {result.complaint}", error_kind=ToolErrorKind.REFUSED)
    lines = [shown(record.removeprefix(b"./")) for record in result.records[: min(limit, max_chars)]]
    lines = lines[: fitting(lines, max_chars - 1000)]
    rest = len(result.records) - len(lines)
    notes = []
    if rest or result.more:
        notes.append(f"[{'at least ' * (result.more or timed_out)}{rest:,} more lines: {narrow}]")
    if timed_out:
        notes.append(f"[timed out after {result.outcome.duration_s:.0f} s: incomplete; search a smaller place]")
    elif result.complaint:
        notes.append(f"[incomplete: {result.complaint.splitlines()[0][:500]}]")
    return ToolResult(
        "\n".join([*lines, *notes]) or none,
        error_kind=ToolErrorKind.TIMEOUT if timed_out else None,
        timed_out=timed_out,
        truncated=bool(rest) or result.more,
    )
