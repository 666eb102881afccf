"""Look up, decode and bound the files of a task directory."""

from collections.abc import Mapping
from pathlib import Path

from farm.tasks.bundle import BundleFile
from farm.tasks.errors import TaskError

MANIFEST = "task.toml"
MAX_TEXT_BYTES = 1024 * 1024
"""Limit for each file that is parsed or shown: ``task.toml``, an instruction, a Dockerfile."""


def below(files: Mapping[str, BundleFile], prefix: str) -> dict[str, BundleFile]:
    """Return the files below ``prefix``, by their path there."""
    return {name.removeprefix(prefix): file for name, file in files.items() if name.startswith(prefix)}


def required(path: Path, files: Mapping[str, BundleFile], name: str, remedy: str) -> BundleFile:
    """Return a file. Raises TaskError if it is missing."""
    if name not in files:
        raise TaskError(path / name, "missing", remedy)
    return files[name]


def text(path: Path, content: bytes) -> str:
    """Decode a file. Raises TaskError."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise TaskError(path, "is not UTF-8", "save it as UTF-8") from None


def read_bounded(path: Path, limit: int, remedy: str) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes. Raises TaskError, and OSError."""
    if not path.is_file():
        raise TaskError(path, "is not a regular file", "put the file itself there")
    with path.open("rb") as file:
        content = file.read(limit + 1)
    refuse_larger(path, content, limit, remedy)
    return content


def refuse_larger(path: Path, content: bytes, limit: int = MAX_TEXT_BYTES, remedy: str = "shorten it") -> None:
    """Raise TaskError if ``content`` holds more than ``limit`` bytes."""
    if len(content) > limit:
        size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit >> 10} KiB"
        raise TaskError(path, f"holds more than {size}", remedy)


def read_instruction(path: Path, files: Mapping[str, BundleFile], name: str) -> str:
    """Return the text of an instruction. Raises TaskError if it is missing or empty."""
    content = required(path, files, name, "describe what is wanted").content
    refuse_larger(path / name, content)
    instruction = text(path / name, content)
    if not instruction.strip():
        raise TaskError(path / name, "empty", "describe what is wanted")
    return instruction
