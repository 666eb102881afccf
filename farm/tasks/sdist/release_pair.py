"""Compare two releases: which files are the verifier's, which are the package's, and the gold change."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.core.change import Change, ChangeKind, FileChange
from farm.tasks.bundle import BundleFile
from farm.tasks.errors import TaskError
from farm.tasks.schema.manifest import ReleaseTable
from farm.tasks.sdist.sdist import OnProgress, fetch_sdist, read_sdist

Files = Mapping[str, BundleFile]

_TEST_DIRECTORIES = frozenset({"test", "tests"})
_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py")
_TEST_MODULE = re.compile(r"test_.*\.py|.*_test\.py")
_NOT_PACKAGES = _TEST_DIRECTORIES | {"docs", "doc", "examples", "benchmarks", "tools", "scripts"}
_BUILD_PRODUCT = re.compile(r"(^|/)(__pycache__|[^/]+\.egg-info)(/|$)|\.py[cod]$")


@dataclass(frozen=True, slots=True)
class PreparedPair:
    """The gold change, and the verifier's test files of the newer release, by path in the workspace."""

    gold: Change
    tests: Files


def prepare(release: ReleaseTable, *, state_dir: Path, on_progress: OnProgress | None = None) -> PreparedPair:
    """Download and compare two releases, or read them from the cache. Raises TaskError."""
    old, new = (
        read_sdist(fetch_sdist(release.package, version, sha256, state_dir=state_dir, on_progress=on_progress))
        for version, sha256 in ((release.old, release.old_sha256), (release.new, release.new_sha256))
    )
    return compare(release.package, old, new)


def compare(package: str, old: Files, new: Files) -> PreparedPair:
    """Return the gold change and the tests.

    The gold change takes the package's own files from ``old`` to ``new``. Documentation, packaging and settings are not
    part of it, because the policy is not asked for them and no test may depend on them. Raises TaskError if the two
    releases give no task.
    """
    tests = tests_of(package, new)
    roots = package_roots(package, old) | package_roots(package, new)
    changed = [
        path
        for path in sorted(old.keys() | new.keys())
        if belongs(path, roots) and not is_test(path) and _content(old, path) != _content(new, path)
    ]
    if not changed:
        raise TaskError(package, "the two releases have the same code", "choose releases that differ")
    return PreparedPair(Change(tuple(_file_change(path, new) for path in changed)), tests)


def tests_of(package: str, files: Files) -> Files:
    """Return the test files of a source distribution. Raises TaskError if pytest would collect none."""
    tests = {path: file for path, file in files.items() if is_test(path) and not _BUILD_PRODUCT.search(path)}
    if not pytest_modules(tests):
        raise TaskError(package, "the source distribution has no tests", "choose a package that ships them")
    return tests


def is_test(path: str) -> bool:
    """Return whether a file belongs to the tests."""
    *directories, name = path.split("/")
    return bool(_TEST_DIRECTORIES.intersection(directories)) or bool(_TEST_FILE.fullmatch(name))


def pytest_modules(files: Files) -> tuple[str, ...]:
    """Return the files that pytest would collect by name, sorted."""
    return tuple(path for path in sorted(files) if _TEST_MODULE.fullmatch(path.rpartition("/")[2]))


def package_roots(package: str, files: Files) -> set[str]:
    """Return directories with an ``__init__.py``, and the module of the package's name, at the top or below ``src``."""
    module = re.sub(r"[-.]", "_", package).lower()
    roots = set()
    for path in files:
        inner = path.removeprefix("src/")
        directory, slash, name = inner.partition("/")
        prefix = path[: len(path) - len(inner)]
        if slash and name == "__init__.py" and directory not in _NOT_PACKAGES:
            roots.add(f"{prefix}{directory}/")
        elif not slash and inner.lower() == f"{module}.py":
            roots.add(path)
    return roots


def belongs(path: str, roots: set[str]) -> bool:
    """Return whether a file is the package's own: below one of its ``roots``, and not a build product."""
    if _BUILD_PRODUCT.search(path):
        return False
    return path in roots or any(path.startswith(root) for root in roots if root.endswith("/"))


def _content(files: Files, path: str) -> bytes | None:
    file = files.get(path)
    return None if file is None else file.content


def _file_change(path: str, new: Files) -> FileChange:
    file = new.get(path)
    if file is None:
        return FileChange(path, ChangeKind.DELETE)
    return FileChange(path, ChangeKind.WRITE, file.content, file.executable)
