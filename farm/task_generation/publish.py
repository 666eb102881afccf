"""Task directories on disk: written whole or not at all."""

import os
import string
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


class ShellTemplate(string.Template):
    """``@name`` and ``@{name}``, since shell text is full of dollars."""

    delimiter = "@"


def write_files(directory: Path, files: Mapping[str, str | bytes]) -> None:
    """Files by their path below ``directory``, which is made; those that end in ``.sh`` are executable."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        os.chmod(path, 0o755 if name.endswith(".sh") else 0o644)


def publish(directory: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` make the directory beside its place, then put it there in one step. Nothing stays where that fails.

    The stage goes by the same name as the directory, below one whose name begins with a dot.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name[:100]}-", dir=directory.parent) as scratch:
        stage = Path(scratch) / directory.name
        stage.mkdir()
        write(stage)
        stage.rename(directory)
