"""Paths of a change that are not applied in the grading sandbox, because they could decide the verdict."""

import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Mapping

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.path_patterns import GitignorePatterns
from farm.core.task import Verifier
from farm.grading.changes.apply import parents
from farm.grading.changes.runner_settings import PROTECTED_PATTERNS, changes_settings, may_hold_settings
from sandboxes.interface import FileKind

DEFAULT_PATTERNS = (
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
    "*.[eE][gG][gG]-[iI][nN][fF][oO]",
    "*.[dD][iI][sS][tT]-[iI][nN][fF][oO]",  # Python looks for entry points in either case
    "*.egg-link",
    "pyvenv.cfg",
)
"""Protected in every task; a task lifts the protection of a path with a negated pattern (``!docs/conftest.py``)."""

TEST_DIRECTORY = re.compile(r"__tests__|(unit)?tests?|testing|specs?|.*[_-]tests?|tests?[_-].*", re.IGNORECASE)
_MODULE_ENDING = re.compile(r"(/__init__)?(\.py[co]?|(\.[\w-]+)?\.so)$")
_SCRIPT = re.compile(r"(?<![\w./-])[\w./-]+\.(?:ba)?sh(?![\w./-])")
HARNESS_MODULES = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "exceptiongroup", "tomli", "py"})
"""Modules outside the standard library that a test run imports before the code under test."""


class ProtectedPaths:
    """The protected paths of one task and one pristine workspace.

    Protected are:

    - each injected path, its parents, everything below it, and each test directory that contains one;
    - shell scripts of the pristine workspace that the test command names;
    - DEFAULT_PATTERNS, the patterns of the test framework and those of the task, read as one gitignore file;
    - new packages and modules that Python would import in place of one of these;
    - new top-level modules that hide a module of the standard library or of the test runner.

    A ``pyproject.toml``, ``setup.cfg``, ``tox.ini``, ``package.json``, ``Cargo.toml`` or ``go.mod`` is applied unless
    its settings for the test runner differ from the pristine ones.
    """

    def __init__(self, verifier: Verifier, injected: Iterable[str], pristine: Mapping[str, FileKind]) -> None:
        scripts = {posixpath.normpath(word) for word in _SCRIPT.findall(verifier.command)}
        self._injected = frozenset(injected) | (scripts & pristine.keys())
        self._parents_of_injected = {parent for path in self._injected for parent in parents(path)}
        self._test_directories = frozenset(filter(None, map(_test_directory, self._injected)))
        patterns = (*DEFAULT_PATTERNS, *PROTECTED_PATTERNS.get(verifier.report, ()), *verifier.protected)
        self._patterns = GitignorePatterns(patterns)
        self._pristine = pristine.keys()
        self._pristine_modules = {_module(path) for path in pristine}

    def excludes(self, file: FileChange, old: bytes | None) -> bool:
        """Return True if a file must not be applied. ``old``: its pristine content, or None if it is new."""
        return self._excludes_path(file.path, link=file.kind is ChangeKind.SYMLINK) or changes_settings(file, old)

    def is_protected(self, path: str) -> bool:
        """Return True if some change of the pristine file at ``path`` would be excluded."""
        return self._excludes_path(path) or may_hold_settings(path)

    def _excludes_path(self, path: str, *, link: bool = False) -> bool:
        """Return True if a path is excluded with any content. ``link``: it is a symlink, perhaps to a package."""
        return self._excludes_name(path) or (path not in self._pristine and self._replaces_import(path, link))

    def _replaces_import(self, path: str, link: bool) -> bool:
        """Return True if Python would import a new path in place of a protected file or a test directory."""
        module = _MODULE_ENDING.sub("", path)
        return (link or module != path) and (self._excludes_name(f"{module}.py") or module in self._test_directories)

    def _excludes_name(self, path: str) -> bool:
        above = parents(path)
        return (
            path in self._injected
            or path in self._parents_of_injected
            or path in self._test_directories
            or any(parent in self._injected or parent in self._test_directories for parent in above)
            or self._patterns.match(path)
            or self._shadows(path)
        )

    def _shadows(self, path: str) -> bool:
        module = _module(path)
        reserved = module in sys.stdlib_module_names or module in HARNESS_MODULES or module.startswith("pytest_")
        return reserved and module not in self._pristine_modules


def split_change(
    change: Change, protection: ProtectedPaths, old: Callable[[str], bytes | None]
) -> tuple[Change, tuple[str, ...]]:
    """Return the part of a change that may be applied, and the paths of the excluded files.

    ``old`` returns a path's pristine content, or None.
    """
    applied: list[FileChange] = []
    excluded: list[str] = []
    for file in change.files:
        if protection.excludes(file, old(file.path)):
            excluded.append(file.path)
        else:
            applied.append(file)
    return Change(tuple(applied)), tuple(excluded)


def _test_directory(path: str) -> str | None:
    """Return the outermost directory above a path that has the name of a test directory, or None."""
    return next((parent for parent in parents(path) if TEST_DIRECTORY.fullmatch(parent.rpartition("/")[2])), None)


def _module(path: str) -> str:
    """Return the name by which a path would be imported from the workspace's top level."""
    return path.split("/", 1)[0].split(".", 1)[0]
