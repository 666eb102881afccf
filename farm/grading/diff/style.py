"""Count of the lint violations on the lines that a change adds and on those that it removes.

The text comes from the policy. ruff only parses it, in a separate process with limits on time, memory and output, from
memory files that the farm names, and ignores configuration files and comments in the text.
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
"""The version of ruff that pyproject.toml requires, equal on all nodes because versions differ in what they report.

A change of the version makes ``style_*`` incomparable with older rollouts.
"""

RULES = "E4,E7,E9,W,F,B"
"""pycodestyle without the rules that a formatter settles, pyflakes, and bugbear."""

MAX_FILES = 200
MAX_OUTPUT_BYTES = 16 * 1024 * 1024
CPU_S = 10
WALL_S = 20.0
MEMORY_BYTES = 2 * 1024**3

_COMMAND = (
    "check --isolated --no-cache --quiet --exit-zero --no-fix --ignore-noqa --no-respect-gitignore"
    f" --target-version py314 --output-format json-lines --select {RULES}"
).split()

_log = logging.getLogger(__name__)
_SYNTAX_ERROR = "invalid-syntax"
_IO_ERROR = "E902"
_LONE_CARRIAGE_RETURN = re.compile(r"\r(?!\n)")


@dataclass(frozen=True, slots=True)
class _TextSide:
    """One file before or after a change, and the ranges of lines that count: from 0, sorted, end excluded."""

    text: str
    spans: tuple[tuple[int, int], ...]

    def covers(self, row: int) -> bool:
        at = bisect.bisect_right(self.spans, (row, sys.maxsize)) - 1
        return at >= 0 and row < self.spans[at][1]


def linter_version() -> str:
    """Return the version of the installed ruff. Raises OSError or ValueError if ruff cannot be run."""
    program = find_ruff_bin()
    status = os.stat(program)
    return _version_of(program, status.st_ino, status.st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _version_of(program: str, inode: int, mtime_ns: int) -> str:
    """Return the version that the program prints; the cache holds one entry per program file."""
    result = subprocess.run(
        (program, "--version"), capture_output=True, text=True, timeout=WALL_S, cwd="/", check=False
    )
    match = re.fullmatch(r"ruff ([0-9]+)\.([0-9]+)\.([0-9]+)\S*(?: .*)?", result.stdout.strip())
    if match is None:
        raise ValueError(
            f"the version of ruff is unknown: {program} --version printed {result.stdout[:100]!r}; reinstall ruff"
        )
    return ".".join(match.groups())


def version_number(version: str) -> float:
    """Return a version as a number for a component: 17005 for 0.17.5."""
    major, minor, patch = (int(part) for part in version.split("."))
    return float(major * 1_000_000 + minor * 1000 + patch)


def is_python(path: str) -> bool:
    return path.endswith((".py", ".pyi"))


async def measure_style(files: Sequence[FileEdits]) -> Mapping[str, float]:
    """Return the components ``style_new``, ``style_fixed``, ``style_delta``, ``style_unchecked`` and ``style_ruff``.

    ``files`` are those of ``render`` with Python files kept. The counts cover the changed lines of Python files; a
    syntax error counts on any line. Return no component if no Python file was changed, and only ``style_unchecked`` if
    none could be checked, for example because the installed ruff is not version RUFF. No text makes this raise.
    """
    python = [file for file in files if is_python(file.path) and (file.added or file.removed)]
    checked = [file for file in python if file.edits is not None][:MAX_FILES]
    unchecked = {"style_unchecked": float(len(python) - len(checked))}
    if not python:
        return {}
    if not checked:
        return unchecked
    sides = [side for file in checked for side in _sides_of(file)]
    try:
        version = await asyncio.to_thread(linter_version)
        if version != RUFF:
            raise ValueError(f"ruff is version {version}, not {RUFF}; run pip install ruff=={RUFF}")
        counts = await _count_violations(sides)
    except (TimeoutError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        _log.warning("the style of %d files was not measured: %s", len(python), error)
        return {"style_unchecked": float(len(python))}
    fixed, new = sum(counts[0::2]), sum(counts[1::2])
    counted = {
        "style_new": new,
        "style_fixed": fixed,
        "style_delta": new - fixed,
        "style_ruff": version_number(version),
    }
    return {name: float(value) for name, value in counted.items()} | unchecked


def _sides_of(file: FileEdits) -> tuple[_TextSide, _TextSide]:
    edits = file.edits or ()
    return (
        _text_side(file.old, tuple((edit.old_from, edit.old_to) for edit in edits)),
        _text_side(file.new, tuple((edit.new_from, edit.new_to) for edit in edits)),
    )


def _text_side(text: str, spans: tuple[tuple[int, int], ...]) -> _TextSide:
    """Return a side; all its lines count if a lone carriage return begins a line for ruff but not for the farm."""
    return _TextSide(text, ((0, sys.maxsize),) if _LONE_CARRIAGE_RETURN.search(text) else spans)


async def _count_violations(sides: Sequence[_TextSide]) -> list[int]:
    """Return the number of violations of each side. Raises TimeoutError, OSError, or ValueError if ruff fails."""
    output = await _run_linter(
        await asyncio.to_thread(lambda: b"".join(ruff_worker.framed(side.text.encode()) for side in sides))
    )
    return await asyncio.to_thread(_parse_counts, output, sides)


async def _run_linter(texts: bytes) -> bytes:
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
                if len(output) > MAX_OUTPUT_BYTES:
                    raise ValueError(f"ruff was stopped: it printed more than {MAX_OUTPUT_BYTES} bytes")
            if await process.wait():
                raise ValueError(f"ruff failed with exit code {process.returncode}")
    finally:
        if process.returncode is None:
            await shielded(kill_group(process))
    return bytes(output)


def _parse_counts(output: bytes, sides: Sequence[_TextSide]) -> list[int]:
    counts = [0] * len(sides)
    for line in output.splitlines():
        violation: Any = json.loads(line)
        if violation["code"] == _IO_ERROR:
            raise ValueError(f"ruff could not read a text: {violation['message']}")
        index, row = ruff_worker.index_of(violation["filename"]), int(violation["location"]["row"]) - 1
        counts[index] += sides[index].covers(row) or violation["code"] == _SYNTAX_ERROR
    return counts
