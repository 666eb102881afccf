"""Settings of test runners in a workspace's files, and a check whether a change modifies them.

The files come from the policy. A file that is too large, or that would take long to parse, counts as modified.
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

PROTECTED_PATTERNS: Mapping[ReportFormat, tuple[str, ...]] = {
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
"""Additional protected patterns per test framework: settings, snapshots, and files that are compiled with the tests."""

_PYTEST_SECTIONS = ("pytest", "tool:pytest")
_GO_DIRECTIVES = ("module", "replace", "toolchain")
MAX_SETTINGS_BYTES = 256 * 1024
_LONG_BLANKS = re.compile(r"[^\S\n]{100}")
_LINES_WITHOUT_KEY = re.compile(r"^[^\S\n]*[=:]", re.MULTILINE)
"""``configparser`` takes time quadratic in the number of blanks and of lines without a key."""
_GO_WORD = re.compile(r"[()]|[^\s()]+")


def may_hold_settings(path: str) -> bool:
    """Return True if settings are read from files with this name."""
    return path.rpartition("/")[2] in _READERS


def changes_settings(file: FileChange, old: bytes | None) -> bool:
    """Return True if the settings in ``file`` differ from those in ``old``, its pristine content."""
    read = _READERS.get(file.path.rpartition("/")[2])
    if read is None:
        return False
    if file.kind is ChangeKind.SYMLINK:
        return True
    new = file.content if file.kind is ChangeKind.WRITE else b""
    if max(len(new), len(old or b"")) > MAX_SETTINGS_BYTES:
        return True
    try:
        return bool(read(new) != _read_pristine(read, old))
    except (ValueError, AttributeError):  # AttributeError: the value of a key is not a table
        return True


def _read_pristine(read: Callable[[bytes], Any], old: bytes | None) -> Any:
    try:
        return read(old or b"")
    except (ValueError, AttributeError):
        return None


def _pyproject(content: bytes) -> Any:
    return _table(read_toml(content), "tool").get("pytest")


def _package_json(content: bytes) -> Any:
    """Return the settings of Jest, Vitest and Babel, and the scripts and binaries that a command may name."""
    document = read_json(content)
    keys = ("jest", "vitest", "babel", "scripts", "bin")
    return {key: document.get(key) for key in keys} if isinstance(document, dict) else None


def _ini(content: bytes) -> Any:
    """Return pytest's sections as parsed by iniconfig and by configparser; the whole text if a parser fails.

    pytest uses iniconfig; its plug-ins and other programs use configparser. The two differ in comments, defaults,
    upper case and repeated sections.
    """
    text = content.decode("utf-8-sig")
    if _LONG_BLANKS.search(text) or len(_LINES_WITHOUT_KEY.findall(text)) > 100:
        raise ValueError("the settings cannot be read: too many blanks, or too many lines without a key")
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
    except (configparser.Error, AttributeError):  # AttributeError: a continuation line below a key without a value
        return text
    return [parser.has_section(name) and parser.items(name) for name in _PYTEST_SECTIONS]


def _cargo_toml(content: bytes) -> Any:
    """Return which targets cargo finds by itself, and the targets with a path, harness or test flag of their own.

    Dependencies, features and new targets are no settings, and ``[[bench]]`` is none because libtest rarely runs it.
    """
    document = read_toml(content)
    package, workspace = _table(document, "package"), _table(document, "workspace")
    settings: dict[str, Any] = {key: value for key, value in package.items() if key.startswith("auto")}
    settings["default-members"] = workspace.get("default-members")
    for kind in ("lib", "bin", "test"):
        targets = document.get(kind, [])
        for target in targets if isinstance(targets, list) else [targets]:
            name, path = target.get("name"), target.get("path")
            moved = kind == "test" and path not in (None, f"tests/{name}.rs", f"tests/{name}/main.rs")
            options = (path if moved else None, target.get("harness", True), target.get("test", True))
            if options != (None, True, True):
                settings[f"{kind} {name}"] = options
    return settings


def _go_mod(content: bytes) -> Any:
    """Return the directives that choose the module path, replacements and toolchain, as lines or in blocks."""
    settings: list[tuple[str, ...]] = []
    block = ""
    for line in content.decode().splitlines():
        words = _GO_WORD.findall(line.split("//", 1)[0])
        if words == [")"]:
            block = ""
        elif words[1:] == ["("]:
            block = words[0]
        elif words and (block or words[0]) in _GO_DIRECTIVES:
            settings.append((block, *words) if block else tuple(words))
    return sorted(settings)


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name)
    return table if isinstance(table, dict) else {}


_READERS: Mapping[str, Callable[[bytes], Any]] = {
    "Cargo.toml": _cargo_toml,
    "go.mod": _go_mod,
    "package.json": _package_json,
    "pyproject.toml": _pyproject,
    "setup.cfg": _ini,
    "tox.ini": _ini,
}
