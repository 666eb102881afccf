"""What a linter has against the lines that a change adds, and had against those that it takes away.

The text is the policy's. ruff only parses it, in a process of its own with bounds on time, memory and output, from
memory and under names of ours, with no configuration and no comment in the text obeyed.
"""

import asyncio
import bisect
import functools
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruff import find_ruff_bin

from farm.grading.diff import ruff_worker
from farm.grading.diff.patch import FileEdits
from sandboxes.cancellation import shielded
from sandboxes.linux.kill_child import kill_group

RUFF = "0.17.5"
"""The one version of ruff that measures, on all nodes: another one finds other things in the same text. pyproject.toml
requires it. Whoever raises it changes what ``style_*`` of older rollouts can be compared with."""

RULES = "E4,E7,E9,W,F,B"
"""pycodestyle without what formatters decide, pyflakes, bugbear."""

MOST_FILES = 200
MOST_OUTPUT = 16 * 1024 * 1024
CPU_S = 10
WALL_S = 20.0
MEMORY_BYTES = 2 * 1024**3

_COMMAND = (
    "check --isolated --no-cache --quiet --exit-zero --no-fix --ignore-noqa --no-respect-gitignore"
    f" --target-version py314 --output-format json-lines --select {RULES}"
).split()

_log = logging.getLogger(__name__)
_SYNTAX = "invalid-syntax"
_UNREAD = "E902"
_LONE_RETURN = re.compile(r"\r(?!\n)")


@dataclass(frozen=True, slots=True)
class _Side:
    """One file before or after a change, and which of its lines are looked at: from 0, in order, ends excluded."""

    text: str
    spans: tuple[tuple[int, int], ...]

    def covers(self, row: int) -> bool:
        at = bisect.bisect_right(self.spans, (row, sys.maxsize)) - 1
        return at >= 0 and row < self.spans[at][1]


def linter_version() -> str:
    """Return the version of the ruff that would measure. Raise OSError or ValueError if it cannot be run."""
    program = find_ruff_bin()
    status = os.stat(program)
    return _version_of(program, status.st_ino, status.st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _version_of(program: str, inode: int, mtime_ns: int) -> str:
    """Return what the program says, once for each file that it has been."""
    told = subprocess.run((program, "--version"), capture_output=True, text=True, timeout=WALL_S, cwd="/", check=False)
    match = re.fullmatch(r"ruff ([0-9]+)\.([0-9]+)\.([0-9]+)\S*(?: .*)?", told.stdout.strip())
    if match is None:
        raise ValueError(f"{program} --version says {told.stdout[:100]!r}, which is no version of ruff")
    return ".".join(match.groups())


def version_number(version: str) -> float:
    """Return a version as a component can hold it: 17005 for 0.17.5."""
    major, minor, patch = (int(part) for part in version.split("."))
    return float(major * 1_000_000 + minor * 1000 + patch)


def is_python(path: str) -> bool:
    return path.endswith((".py", ".pyi"))


async def measure_style(files: Sequence[FileEdits]) -> Mapping[str, float]:
    """``style_new``, ``style_fixed``, ``style_delta`` over the changed lines of Python files, ``style_unchecked``, and
    the version that measured as ``style_ruff``.

    ``files`` are as ``render`` gives them, kept of what ``is_python``. Nothing where no Python file was changed; only
    ``style_unchecked`` where none could be checked. Never raises for what the text holds. A syntax error counts
    wherever the parser noticed it. Another ruff than RUFF checks nothing, because its counts are not comparable.
    """
    python = [file for file in files if is_python(file.path) and (file.added or file.removed)]
    checked = [file for file in python if file.edits is not None][:MOST_FILES]
    unchecked = {"style_unchecked": float(len(python) - len(checked))}
    if not python:
        return {}
    if not checked:
        return unchecked
    sides = [side for file in checked for side in _sides(file)]
    try:
        version = await asyncio.to_thread(linter_version)
        if version != RUFF:
            raise ValueError(f"ruff {version} is not {RUFF}; pip install ruff=={RUFF}")
        counts = await _violations(sides)
    except (TimeoutError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        _log.warning("style of %d files was not measured: %s", len(python), error)
        return {"style_unchecked": float(len(python))}
    fixed, new = sum(counts[0::2]), sum(counts[1::2])
    found = {"style_new": new, "style_fixed": fixed, "style_delta": new - fixed, "style_ruff": version_number(version)}
    return {name: float(value) for name, value in found.items()} | unchecked


def _sides(file: FileEdits) -> tuple[_Side, _Side]:
    edits = file.edits or ()
    return (
        _side(file.old, tuple((edit.old_from, edit.old_to) for edit in edits)),
        _side(file.new, tuple((edit.new_from, edit.new_to) for edit in edits)),
    )


def _side(text: str, spans: tuple[tuple[int, int], ...]) -> _Side:
    """Where a carriage return stands alone, which begins a line for the linter and not for us, all lines count."""
    return _Side(text, ((0, sys.maxsize),) if _LONE_RETURN.search(text) else spans)


async def _violations(sides: Sequence[_Side]) -> list[int]:
    """Of each side. Raises TimeoutError, OSError, and ValueError where the linter gave in."""
    output = await _run(
        await asyncio.to_thread(lambda: b"".join(ruff_worker.framed(side.text.encode()) for side in sides))
    )
    return await asyncio.to_thread(_count, output, sides)


async def _run(texts: bytes) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", ruff_worker.__file__, str(CPU_S), str(MEMORY_BYTES), find_ruff_bin(), *_COMMAND),
        cwd="/",
        env={"RAYON_NUM_THREADS": "1", "HOME": "/nonexistent", "NO_COLOR": "1"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    output = bytearray()
    try:
        async with asyncio.timeout(WALL_S):
            process.stdin.write(texts)
            await process.stdin.drain()
            process.stdin.close()
            while piece := await process.stdout.read(65536):
                output += piece
                if len(output) > MOST_OUTPUT:
                    raise ValueError("the linter says too much")
            if await process.wait():
                raise ValueError(f"the linter ended with {process.returncode}")
    finally:
        if process.returncode is None:
            await shielded(kill_group(process))
    return bytes(output)


def _count(output: bytes, sides: Sequence[_Side]) -> list[int]:
    counts = [0] * len(sides)
    for line in output.splitlines():
        found: Any = json.loads(line)
        if found["code"] == _UNREAD:
            raise ValueError(f"the linter did not see a text: {found['message']}")
        index, row = ruff_worker.index_of(found["filename"]), int(found["location"]["row"]) - 1
        counts[index] += sides[index].covers(row) or found["code"] == _SYNTAX
    return counts
