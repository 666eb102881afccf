"""Ripgrep inside the sandbox: what ``grep`` and ``glob`` share."""

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
_ALWAYS = ("--no-config", "--color=never", "--sort=path", "--hidden")
_OUTPUT_LIMIT = 2 * MIB
_LONGEST_S = 60.0
_MOST_COMPLAINTS = 8


@dataclass(frozen=True, slots=True)
class RipgrepResult:
    """Ripgrep's output cut into records, in the order of their paths. ``more``: there were others, not kept.

    ``complaint`` is what it said of what it could not do, and empty where it could do all.
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
    """Run ripgrep over ``path``, hidden files included and ``.git`` not, for a minute at most. Raises PathError."""
    if path != "." and await _is_endless(sandbox, posixpath.join(cwd, path)):
        raise PathError(errno.EINVAL, path, "is a device, FIFO or socket")
    if posixpath.normpath(posixpath.join(cwd, path)).strip("/") == "":
        options = [*options, "--one-file-system"]  # neither /proc nor devices
    argv = [PROGRAM, *_ALWAYS, *options, *(f"--glob={_whole(glob)}" for glob in (*globs, "!.git")), "--", path]
    outcome = await sandbox.exec(argv, cwd=cwd, timeout_s=min(timeout_s, _LONGEST_S), output_limit=_OUTPUT_LIMIT)
    kept = outcome.stdout.head + (outcome.stdout.tail if outcome.stdout.whole else b"")
    *records, rest = kept.split(separator)
    if rest and outcome.stdout.whole and not outcome.timed_out:
        records.append(rest)
    complaint = ""
    if outcome.exit_code not in (0, 1) and not outcome.timed_out:
        said = printed(outcome.stderr.head[:4000]).strip().removeprefix("toolserver: ").splitlines()[:_MOST_COMPLAINTS]
        complaint = "\n".join(said) or f"ripgrep ended with exit code {outcome.exit_code}"
    return RipgrepResult(records, not outcome.stdout.whole, complaint, outcome)


async def _is_endless(sandbox: Sandbox, path: str) -> bool:
    """Whether ripgrep would read on until its time is up. What cannot be told it tells itself."""
    try:
        await sandbox.read_file(path, limit=1)
    except PathError as fault:
        return fault.errno == errno.EINVAL
    return False


def _whole(glob: str) -> str:
    """What ripgrep would take for a comment, or leave out at the end, is part of the pattern."""
    plain = glob.rstrip(" ")
    blank = "[ ]" * (len(glob) - len(plain)) if not plain.endswith("\\") else glob[len(plain) :]
    return ("[#]" + plain[1:] if plain.startswith("#") else plain) + blank


async def files_named(sandbox: Sandbox, name: str, *, timeout_s: float) -> list[str]:
    """The first paths below the working directory of files with that base name."""
    literal = re.sub(r"([*?\[\]{}\\!])", r"[\1]", name)
    listing = ("--files", "--null")
    globs = (f"/**/{literal}",)
    found = await search(sandbox, listing, ".", globs=globs, cwd=sandbox.workdir, timeout_s=timeout_s, separator=b"\0")
    return [shown_name(record.removeprefix(b"./")) for record in found.records[:3]]


def listed(
    found: RipgrepResult, shown: Callable[[bytes], str], *, none: str, limit: int, max_chars: int, narrow: str
) -> ToolResult:
    """The first ``limit`` records that fit, each as ``shown``, and in brackets what one must know to trust them."""
    timed_out = found.outcome.timed_out
    if found.complaint and not found.records:
        return ToolResult(f"error: {found.complaint}", error_kind=ToolErrorKind.REFUSED)
    lines = [shown(record.removeprefix(b"./")) for record in found.records[: min(limit, max_chars)]]
    lines = lines[: fitting(lines, max_chars - 1000)]
    rest = len(found.records) - len(lines)
    notes = []
    if rest or found.more:
        notes.append(f"[{'at least ' * (found.more or timed_out)}{rest:,} more lines: {narrow}]")
    if timed_out:
        notes.append(f"[timed out after {found.outcome.duration_s:.0f} s: incomplete; search a smaller place]")
    elif found.complaint:
        notes.append(f"[incomplete: {found.complaint.splitlines()[0][:500]}]")
    return ToolResult(
        "\n".join([*lines, *notes]) or none,
        error_kind=ToolErrorKind.TIMEOUT if timed_out else None,
        timed_out=timed_out,
        truncated=bool(rest) or found.more,
    )
