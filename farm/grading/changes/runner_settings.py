"""What of a workspace tells a test runner what to run and how, and whether a change tells it something else.

A change is whatever the policy made of it: what is too big to be settings, or made to be read for long, tells
something else.
"""

import configparser
import re
from collections.abc import Callable, Mapping
from typing import Any

import iniconfig

from farm.core.change import ChangeKind, FileChange
from farm.core.nesting_limit import read_json
from farm.core.task import ReportFormat
from farm.core.toml import read_toml

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
MAX_SETTINGS_BYTES = 256 * 1024
_LONG_BLANKS = re.compile(r"[^\S\n]{100}")
_NAMELESS = re.compile(r"^[^\S\n]*[=:]", re.MULTILINE)
"""Blanks and lines without a name, for which ``configparser`` takes time that grows with the square of their number."""
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
    if max(len(new), len(old or b"")) > MAX_SETTINGS_BYTES:
        return True
    try:
        return bool(read(new) != _before(read, old))
    except (ValueError, AttributeError):  # the latter: there is no table at a key that should have one
        return True


def _before(read: Callable[[bytes], Any], old: bytes | None) -> Any:
    try:
        return read(old or b"")
    except (ValueError, AttributeError):
        return None


def _pyproject(content: bytes) -> Any:
    return _table(read_toml(content), "tool").get("pytest")


def _package_json(content: bytes) -> Any:
    """What Jest, Vitest and Babel are told, and what stands for their names in a command."""
    whole = read_json(content)
    keys = ("jest", "vitest", "babel", "scripts", "bin")
    return {key: whole.get(key) for key in keys} if isinstance(whole, dict) else None


def _ini(content: bytes) -> Any:
    """pytest's sections by both libraries that read such files: pytest reads with iniconfig, its plug-ins and other
    programs with configparser, and a comment, a default, a capital or a section said twice is something else to either.
    To a library that cannot read it the whole text is what it says."""
    text = content.decode("utf-8-sig")
    if _LONG_BLANKS.search(text) or len(_NAMELESS.findall(text)) > 100:
        raise ValueError("too many blanks, or lines without a name")
    return _by_iniconfig(text), _by_configparser(text)


def _by_iniconfig(text: str) -> Any:
    try:
        sections = iniconfig.IniConfig("", data=text).sections
    except iniconfig.ParseError:
        return text
    return {name: list(values.items()) for name, values in sections.items() if name.strip() in _PYTEST_SECTIONS}


def _by_configparser(text: str) -> Any:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        parser.read_string(text)
    except (configparser.Error, AttributeError):  # the latter for a line below a name without a value
        return text
    return [parser.has_section(name) and parser.items(name) for name in _PYTEST_SECTIONS]


def _cargo_toml(content: bytes) -> Any:
    """Which targets there are without a word, and what is said of others that libtest would not run as it is used to.

    Dependencies, features and new targets travel, ``[[bench]]`` too, which mostly is no libtest's.
    """
    whole = read_toml(content)
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
