"""The one writer of task directories: files in Harbor's layout, published in one step."""

import os
import string
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from farm.tasks.bundle import BundleFile
from farm.tasks.directory import digest_of
from farm.tasks.files import MANIFEST

WORKSPACE = "/workspace"
FAIL_TO_PASS = "fail_to_pass.txt"
PASS_TO_PASS = "pass_to_pass.txt"


class ShellTemplate(string.Template):
    """A template with ``@name`` and ``@{name}``, because shell text is full of dollars."""

    delimiter = "@"


@dataclass(frozen=True, slots=True)
class TaskDirectory:
    """A task directory before it is written. The files are keyed by their path below their own directory."""

    manifest: str
    instruction: str
    environment: Mapping[str, BundleFile]
    tests: Mapping[str, BundleFile]
    solution: Mapping[str, BundleFile]

    @property
    def files(self) -> Mapping[str, BundleFile]:
        """Return all files by their path in the directory."""
        files = bundle_files({MANIFEST: self.manifest, "instruction.md": self.instruction})
        for name, below in (("environment", self.environment), ("tests", self.tests), ("solution", self.solution)):
            files |= {f"{name}/{path}": file for path, file in below.items()}
        return files

    @property
    def digest(self) -> str:
        """Return the digest that the task has once it is loaded."""
        return digest_of(self.files)

    def write(self, directory: Path) -> None:
        """Write all files below ``directory``, which is created."""
        write_files(directory, self.files)

    def publish(self, directory: Path, check: Callable[[Path], object]) -> None:
        """Write the files to a stage, run ``check`` on it, then rename the stage to ``directory``.

        If ``check`` raises, nothing is published.
        """
        with staging(directory) as stage:
            self.write(stage)
            check(stage)
            stage.rename(directory)


def bundle_files(contents: Mapping[str, str | bytes]) -> dict[str, BundleFile]:
    """Return files by path. Paths that end in ``.sh`` are executable."""
    return {
        path: BundleFile(content.encode() if isinstance(content, str) else content, path.endswith(".sh"))
        for path, content in contents.items()
    }


def write_files(directory: Path, files: Mapping[str, BundleFile]) -> None:
    """Write files by their path below ``directory``, which is created."""
    for name, file in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        os.chmod(path, 0o755 if file.executable else 0o644)


@contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """Yield an empty directory of the same name on the same file system. It is removed unless the block renames it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name[:100]}-", dir=directory.parent) as scratch:
        stage = Path(scratch) / directory.name
        stage.mkdir()
        yield stage


def id_lists(fail_to_pass: Iterable[str], pass_to_pass: Iterable[str]) -> dict[str, str]:
    """Return the two files of test ids, by path below ``tests/``, with one id per line."""
    return {FAIL_TO_PASS: _lines(fail_to_pass), PASS_TO_PASS: _lines(pass_to_pass)}


def _lines(ids: Iterable[str]) -> str:
    return "".join(f"{test}\n" for test in sorted(ids))
