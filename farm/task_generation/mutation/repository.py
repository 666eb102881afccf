"""``Repository``: the input of task generation, read from the package index, a directory or an archive."""

import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.tasks.bundle import BundleFile
from farm.tasks.errors import TaskError
from farm.tasks.sdist.archives import MAX_BYTES, MAX_FILES
from farm.tasks.sdist.release_pair import Files, belongs, is_test, package_roots, pytest_modules, tests_of
from farm.tasks.sdist.sdist import fetch_sdist, read_sdist, sdist_digest

PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9._+!-]*)")
_ARCHIVES = (".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tar.xz")
_IGNORED_NAMES = frozenset(
    {".git", ".hg", ".venv", "venv", ".tox", ".nox", "__pycache__", "node_modules", "build", "dist"}
)


@dataclass(frozen=True, slots=True)
class Repository:
    """A package's files by path, and how its image gets them.

    ``archive`` is None for a release on the index, which ``sha256`` pins; otherwise it is copied into the image.
    ``requirements`` pin all that the tests need, pytest included; empty until they are resolved.
    """

    package: str
    version: str
    sha256: str
    files: Files
    archive: bytes | None
    requirements: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the package and its version, for names of tasks."""
        return "-".join(filter(None, (self.package, self.version)))

    @property
    def tests(self) -> Files:
        """Return the test files by path."""
        return tests_of(self.package, self.files)

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the test files that pytest collects."""
        return pytest_modules(self.tests)

    @property
    def sources(self) -> Mapping[str, bytes]:
        """Return the package's own Python files by path."""
        return _sources(self.package, self.files)

    @property
    def roots(self) -> tuple[str, ...]:
        """Return the directories of the package's files."""
        roots = package_roots(self.package, self.files)
        return tuple(sorted({str(Path(root).parent) if root.endswith(".py") else root.rstrip("/") for root in roots}))


def open_repository(
    name_or_path: str,
    *,
    state_dir: Path,
    sha256: str | None = None,
    pins: Sequence[str] = (),
) -> Repository:
    """Read the files of a repository; none of its code runs. Raises TaskError.

    ``name_or_path``: ``sqlparse==0.4.4``, a directory, or a source distribution. ``pins``: requirements that were
    resolved before; without them call ``with_requirements``.
    """
    path = Path(name_or_path)
    if path.is_dir():
        return _from_files(path.resolve().stem, read_directory(path), path, pins)
    if path.is_file() and path.stem.endswith(_ARCHIVES):
        stem = re.sub(r"(\.tar)?\.\w+$", "", path.stem)
        return _from_files(stem, read_sdist(path), path, pins)
    pin = PIN.fullmatch(name_or_path)
    if pin is None:
        raise TaskError(
            name_or_path, "not a repository", "name a directory, a source distribution, or PACKAGE==VERSION"
        )
    package, version = pin[1], pin[2]
    sdist = fetch_sdist(package, version, sha256, state_dir=state_dir)
    files = read_sdist(sdist)
    _refuse_unusable(name_or_path, package, files)
    return Repository(package, version, sdist_digest(sdist), files, None, tuple(pins))


def _from_files(name: str, files: Files, origin: Path, pins: Sequence[str]) -> Repository:
    package, _, version = name.rpartition("-") if re.search(r"-\d", name) else (name, "", "")
    package = re.sub(r"[^A-Za-z0-9._-]", "-", package)
    _refuse_unusable(origin, package, files)
    archive = _pack(files)
    return Repository(package, version, hashlib.sha256(archive).hexdigest(), files, archive, tuple(pins))


def _refuse_unusable(origin: Path | str, package: str, files: Files) -> None:
    """Raise TaskError if no task can be made of the repository, before anything is resolved or built."""
    module = re.sub(r"[-.]", "_", package).lower()
    for wrong, fault, remedy in (
        (
            files.keys().isdisjoint(("pyproject.toml", "setup.py")),
            "pip cannot install it: it has neither pyproject.toml nor setup.py",
            "add one, or name the directory that has it",
        ),
        (
            not _sources(package, files),
            f"holds no package: no directory with __init__.py at the top or below src, nor {module}.py",
            "move the package there, or name another repository",
        ),
        (
            not pytest_modules({path: file for path, file in files.items() if is_test(path)}),
            "holds no tests: no file is named test_*.py or *_test.py",
            "add tests that pytest collects, or name a repository or release that carries its own",
        ),
    ):
        if wrong:
            raise TaskError(origin, fault, remedy)


def _sources(package: str, files: Files) -> Mapping[str, bytes]:
    roots = package_roots(package, files)
    return {
        path: file.content
        for path, file in sorted(files.items())
        if path.endswith(".py") and belongs(path, roots) and not is_test(path)
    }


def read_directory(path: Path) -> Files:
    """Read the regular files, without those of version control and build tools, within the limits of an archive.

    Git does not run, because a stranger's repository can name programs for it to run. Raises TaskError.
    """
    files: dict[str, BundleFile] = {}
    remaining = MAX_BYTES
    for directory, directories, names in os.walk(path):
        directories[:] = sorted(set(directories) - _IGNORED_NAMES)
        for name in sorted(set(names) - _IGNORED_NAMES):
            file = Path(directory, name)
            if file.suffix == ".pyc" or file.is_symlink() or not file.is_file():
                continue
            with file.open("rb") as opened:
                content = opened.read(remaining + 1)
            remaining -= len(content)
            if remaining < 0 or len(files) >= MAX_FILES:
                fault = f"holds more than {MAX_FILES} files, or {MAX_BYTES >> 20} MiB"
                raise TaskError(path, fault, "name a directory of sources alone")
            files[file.relative_to(path).as_posix()] = BundleFile(content, bool(file.stat().st_mode & 0o100))
    return dict(sorted(files.items()))


def _pack(files: Files) -> bytes:
    """Return a reproducible tar.gz of the files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, file in sorted(files.items()):
            info = tarfile.TarInfo(f"repository/{name}")
            info.size, info.mode = len(file.content), 0o755 if file.executable else 0o644
            archive.addfile(info, io.BytesIO(file.content))
    return gzip.compress(buffer.getvalue(), mtime=0)
