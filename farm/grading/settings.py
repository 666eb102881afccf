"""What of a workspace tells a test runner what to run and how, and whether a change tells it something else."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from farm.core.change import ChangeKind, FileChange
from farm.core.task import ReportFormat

PATTERNS: Mapping[ReportFormat, tuple[str, ...]] = {
    ReportFormat.JEST: (
        "jest.config.*",
        "jest.setup.*",
        "vite.config.*",
        "vitest.config.*",
        "vitest.setup.*",
        "vitest.workspace.*",
        "vitest.projects.*",
        "babel.config.*",
        ".babelrc*",
        ".swcrc*",
        "__mocks__/",
        "__snapshots__/",
    ),
    ReportFormat.CARGO: (".cargo/", "rust-toolchain", "rust-toolchain.toml", "*.snap"),
    ReportFormat.GO: ("*_test.go", "testdata/", "go.work", "go.work.sum", "vendor/"),
}
"""Protected, where tests are of that kind: settings, what tests compare with, and what is compiled among them."""

_PYTEST_SECTIONS = ("pytest", "tool:pytest")
_GO_DIRECTIVES = ("module", "replace", "toolchain")
_GO_WORD = re.compile(r"[()]|[^\s()]+")


def may_hold_settings(path: str) -> bool:
    """Whether what a file of that name says is compared."""
    return path.rpartition("/")[2] in _READERS


def changes_settings(file: FileChange, old: bytes | None) -> bool:
    """Whether what the file tells a test runner is something else than in ``old``, the pristine content."""
    read = _READERS.get(file.path.rpartition("/")[2])
    if read is None:
        return False
    if file.kind is ChangeKind.SYMLINK:
        return True
    new = file.content if file.kind is ChangeKind.WRITE else b""
    try:
        return bool(read(new) != _before(read, old))
    except (ValueError, AttributeError, RecursionError):  # the last but one: where a table should be is none
        return True


def _before(read: Callable[[bytes], Any], old: bytes | None) -> Any:
    try:
        return read(old or b"")
    except (ValueError, AttributeError):
        return None


def _pyproject(content: bytes) -> Any:
    return _table(tomllib.loads(content.decode()), "tool").get("pytest")


def _package_json(content: bytes) -> Any:
    """What Jest, Vitest and Babel are told, and what stands for their names in a command."""
    whole = json.loads(content)
    keys = ("jest", "vitest", "babel", "scripts", "bin")
    return {key: whole.get(key) for key in keys} if isinstance(whole, dict) else None


def _ini(content: bytes) -> Any:
    """The lines of pytest's sections, and of none. Sections are told as iniconfig does, by which pytest reads: a
    comment may follow in their line."""
    said: list[str] = []
    pytests = True
    for line in map(str.rstrip, content.decode("utf-8-sig").splitlines()):
        if not line or line.lstrip().startswith(("#", ";")):
            continue
        head = re.split("[#;]", line, maxsplit=1)[0].rstrip() if line.startswith("[") else ""
        if head.endswith("]"):
            pytests = head[1:-1].strip() in _PYTEST_SECTIONS
        if pytests:
            said.append(line)
    return said


def _cargo_toml(content: bytes) -> Any:
    """Which targets there are without a word, and what is said of others that libtest would not run as it is used to.

    Dependencies, features and new targets travel, ``[[bench]]`` too, which mostly is no libtest's.
    """
    whole = tomllib.loads(content.decode())
    package, workspace = _table(whole, "package"), _table(whole, "workspace")
    told: dict[str, Any] = {key: value for key, value in package.items() if key.startswith("auto")}
    told["default-members"] = workspace.get("default-members")
    for kind in ("lib", "bin", "test"):
        targets = whole.get(kind, [])
        for target in targets if isinstance(targets, list) else [targets]:
            name, path = target.get("name"), target.get("path")
            elsewhere = kind == "test" and path not in (None, f"tests/{name}.rs", f"tests/{name}/main.rs")
            said = (path if elsewhere else None, target.get("harness", True), target.get("test", True))
            if said != (None, True, True):
                told[f"{kind} {name}"] = said
    return told


def _go_mod(content: bytes) -> Any:
    """The directives that choose what an import path or the toolchain is, in either form."""
    told: list[tuple[str, ...]] = []
    block = ""
    for line in content.decode().splitlines():
        words = _GO_WORD.findall(line.split("//", 1)[0])
        if words == [")"]:
            block = ""
        elif words[1:] == ["("]:
            block = words[0]
        elif words and (block or words[0]) in _GO_DIRECTIVES:
            told.append((block, *words) if block else tuple(words))
    return sorted(told)


def _table(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = whole.get(name)
    return table if isinstance(table, dict) else {}


_READERS: Mapping[str, Callable[[bytes], Any]] = {
    "Cargo.toml": _cargo_toml,
    "go.mod": _go_mod,
    "package.json": _package_json,
    "pyproject.toml": _pyproject,
    "setup.cfg": _ini,
    "tox.ini": _ini,
}
