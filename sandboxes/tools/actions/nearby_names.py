"""List names in a directory of a sandbox, and suggest names that resemble a missing one."""

import asyncio
import difflib
import posixpath
from collections.abc import Sequence
from itertools import pairwise

from sandboxes.cancellation import shielded
from sandboxes.errors import PathError
from sandboxes.interface import MIB, FileKind, Sandbox
from sandboxes.tools.actions.ripgrep import files_named
from sandboxes.tools.rendering import shown_name

_LISTING_BYTES = MIB
_MOST_STEPS_UP = 16
_MOST_COMPARED, _LONGEST_COMPARED = 1000, 64
"""Maximum names compared and characters of each: the cost is the product of lengths, and a policy chooses the names."""


async def names_below(
    sandbox: Sandbox, directory: str, depth: int, timeout_s: float, ignore: Sequence[str] = ()
) -> list[str] | None:
    """Return the sorted names below ``directory``, directories with a trailing slash; None if they cannot be listed."""
    patterns = [".*", "node_modules", "__pycache__", *ignore]
    skip = [word for pattern in patterns for word in ("-o", "-name", pattern)][1:]
    walk = ("find", ".", "-mindepth", "1", "-maxdepth", str(depth), "(", *skip, ")", "-prune")
    # Every name is printed once and a directory twice in a row, which marks it as a directory.
    argv = ("/.farm/bin/busybox", *walk, "-o", "-print0", "-type", "d", "-print0")
    outcome = await sandbox.exec(argv, cwd=directory, timeout_s=timeout_s, output_limit=_LISTING_BYTES)
    found = outcome.stdout.head + (outcome.stdout.tail if outcome.stdout.whole else b"")
    if not found and outcome.exit_code != 0:
        return None
    return await shielded(asyncio.to_thread(_listed, found))


def _listed(found: bytes) -> list[str]:
    records = found.split(b"\0")[:-1]
    names = dict.fromkeys(records, False)
    for one, other in pairwise(records):
        if one == other:
            names[one] = True
    return [
        shown_name(name.removeprefix(b"./")) + "/" * names[name]
        for name in sorted(names, key=lambda name: name.split(b"/"))
    ]


async def _is_link(sandbox: Sandbox, path: str) -> bool:
    try:
        return (await sandbox.stat(path)).kind is FileKind.SYMLINK
    except PathError:
        return False


async def nearest(sandbox: Sandbox, path: str, timeout_s: float) -> str:
    """Suggest a remedy for a missing path: similar names in its deepest existing parent, or files of that name
    elsewhere.
    """
    if await _is_link(sandbox, path):
        return "; it is a symlink, and what that names is not there"
    at, beside = path.rstrip("/"), None
    for _ in range(_MOST_STEPS_UP):
        at, missing = posixpath.split(at)
        beside = await names_below(sandbox, posixpath.join(sandbox.workdir, at), 1, timeout_s)
        if beside is not None or at in ("", "/"):
            break
    near = await shielded(asyncio.to_thread(nearest_names, missing, beside or ()))
    found = [shown_name(posixpath.join(at, name)) for name in near]
    if not found:
        found = await files_named(sandbox, posixpath.basename(path), timeout_s=timeout_s)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def nearest_names(missing: str, names: Sequence[str]) -> list[str]:
    """Return up to three names that resemble ``missing``.

    Only the first thousand names of usual length are compared.
    """
    known = [name.rstrip("/") for name in names if len(name) <= _LONGEST_COMPARED][:_MOST_COMPARED]
    return difflib.get_close_matches(missing, known, n=3, cutoff=0.6)
