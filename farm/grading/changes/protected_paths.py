"""Which paths of a change do not travel into the grading sandbox: those by which it could decide its own verdict."""

import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Mapping

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.path_patterns import GitignorePatterns
from farm.core.task import Verifier
from farm.grading.changes.apply import parents
from farm.grading.changes.runner_settings import PATTERNS, changes_settings, may_hold_settings
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
"""Protected in every task; a task lifts one of them with a pattern of its own (``!docs/conftest.py``)."""

TEST_DIRECTORY = re.compile(r"__tests__|(unit)?tests?|testing|specs?|.*[_-]tests?|tests?[_-].*", re.IGNORECASE)
_MODULE_ENDING = re.compile(r"(/__init__)?(\.py[co]?|(\.[\w-]+)?\.so)$")
_SCRIPT = re.compile(r"(?<![\w./-])[\w./-]+\.(?:ba)?sh(?![\w./-])")
HARNESS_MODULES = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "exceptiongroup", "tomli", "py"})
"""What a test run imports before the code under test, beside the standard library."""


class ProtectedPaths:
    """Decides for one task and one pristine workspace.

    Protected are: each injected path, what is above it and what is below it; the whole of a test directory that
    holds one; shell scripts of the pristine workspace that the test command names; DEFAULT_PATTERNS, those of the kind
    of tests and then the task's own, as one gitignore file; what is new and Python would import in the place of any of
    these, a package or an extension module of its name; a new module at the top that would be imported in place of
    the standard library's or the test runner's. A ``pyproject.toml``, ``setup.cfg``, ``tox.ini``, ``package.json``,
    ``Cargo.toml`` or ``go.mod`` travels as long as what it tells the test runner is what the pristine one tells it.
    """

    def __init__(self, verifier: Verifier, injected: Iterable[str], pristine: Mapping[str, FileKind]) -> None:
        scripts = {posixpath.normpath(word) for word in _SCRIPT.findall(verifier.command)}
        self._injected = frozenset(injected) | (scripts & pristine.keys())
        self._above = {parent for path in self._injected for parent in parents(path)}
        self._test_directories = frozenset(filter(None, map(_test_directory, self._injected)))
        patterns = (*DEFAULT_PATTERNS, *PATTERNS.get(verifier.report, ()), *verifier.protected)
        self._patterns = GitignorePatterns(patterns)
        self._pristine = pristine.keys()
        self._pristine_tops = {_module(path) for path in pristine}

    def excludes(self, file: FileChange, old: bytes | None) -> bool:
        """``old`` is the pristine content of the file, None where there is none."""
        return self._covers_path(file.path, link=file.kind is ChangeKind.SYMLINK) or changes_settings(file, old)

    def is_protected(self, path: str) -> bool:
        """Whether some change of what the pristine workspace holds there is covered."""
        return self._covers_path(path) or may_hold_settings(path)

    def _covers_path(self, path: str, *, link: bool = False) -> bool:
        """``link``: a symlink, which may be a package's directory."""
        return self._covers_name(path) or (path not in self._pristine and self._stands_in(path, link))

    def _stands_in(self, path: str, link: bool) -> bool:
        """Whether a new path is imported in the place of what is covered, or of tests without ``__init__.py``."""
        module = _MODULE_ENDING.sub("", path)
        return (link or module != path) and (self._covers_name(f"{module}.py") or module in self._test_directories)

    def _covers_name(self, path: str) -> bool:
        above = parents(path)
        return (
            path in self._injected
            or path in self._above
            or path in self._test_directories
            or any(parent in self._injected or parent in self._test_directories for parent in above)
            or self._patterns.match(path)
            or self._shadows(path)
        )

    def _shadows(self, path: str) -> bool:
        module = _module(path)
        reserved = module in sys.stdlib_module_names or module in HARNESS_MODULES or module.startswith("pytest_")
        return reserved and module not in self._pristine_tops


def split_change(
    change: Change, protection: ProtectedPaths, old: Callable[[str], bytes | None]
) -> tuple[Change, tuple[str, ...]]:
    """The part of a change that travels, and the paths that do not."""
    kept: list[FileChange] = []
    dropped: list[str] = []
    for file in change.files:
        if protection.excludes(file, old(file.path)):
            dropped.append(file.path)
        else:
            kept.append(file)
    return Change(tuple(kept)), tuple(dropped)


def _test_directory(path: str) -> str | None:
    """The outermost directory above the path that is named as one for tests."""
    return next((parent for parent in parents(path) if TEST_DIRECTORY.fullmatch(parent.rpartition("/")[2])), None)


def _module(path: str) -> str:
    """The name under which the workspace's top level would offer a path for import."""
    return path.split("/", 1)[0].split(".", 1)[0]
