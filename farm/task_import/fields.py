"""Typed access to the fields of a row. A row is untrusted: it is parsed, never evaluated."""

import ast
import re
from collections.abc import Mapping
from typing import Any

from farm.core import nesting_limit
from farm.tasks.schema.manifest_types import image_reference
from farm.tasks.unified_diff import UnifiedDiffError, parse_patch

MAX_TEXT_BYTES = 16 * 1024 * 1024
MAX_LITERAL_CHARS = 4 * 1024 * 1024
MAX_NESTING = 32
MAX_TESTS = 200_000

_MISSING = object()
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_STRING = re.compile(r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\"""")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class RowError(ValueError):
    """A row is refused. One line: the field, what is wrong with it, and the remedy."""

    def __init__(self, key: str, fault: str, remedy: str = "") -> None:
        subject = f"{key}: " if key else ""
        super().__init__(" ".join(f"{subject}{fault}{'; ' if remedy else ''}{remedy}".split())[:1000])


class Fields:
    """The fields of one row. With several keys the first that has a value counts. Each method raises RowError."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row

    def text(self, *keys: str, default: str | None = None, limit: int = MAX_TEXT_BYTES) -> str:
        """Return a string of at most ``limit`` bytes."""
        value = self._first(keys)
        if value is _MISSING:
            if default is None:
                raise RowError(keys[0], "missing", "check that the row has this format")
            return default
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise RowError(keys[0], "not text")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise RowError(keys[0], "not Unicode text") from None
        if "\0" in value:
            raise RowError(keys[0], "holds a zero byte")
        if size > limit:
            raise RowError(keys[0], f"holds more than {limit} bytes")
        return value

    def word(self, *keys: str) -> str:
        """Return a value that is safe as a file name, such as an id or a tag.

        Whole numbers, also as ``7.0``, are returned as text.
        """
        raw = self._first(keys)
        is_whole = isinstance(raw, float) and raw.is_integer()  # a column with missing values is read as floats
        value = str(int(raw)) if is_whole else self.text(*keys, limit=1024)
        if not _ID.fullmatch(value) or ".." in value:
            raise RowError(keys[0], f"{value[:100]!r} is not a name of letters, digits, dots, dashes and underscores")
        return value

    def commit(self, *keys: str) -> str:
        """Return a commit hash."""
        value = self.text(*keys, limit=1024)
        if not _COMMIT.fullmatch(value):
            raise RowError(keys[0], f"{value[:100]!r} is not a commit hash")
        return value

    def image(self, *keys: str) -> str:
        """Return an image name."""
        return checked_image(keys[0], self.text(*keys, limit=1024))

    def repo(self, *keys: str) -> tuple[str, str]:
        """Return the owner and the name of ``owner/name``."""
        value = self.text(*keys, limit=1024)
        owner, slash, name = value.partition("/")
        if not slash or not _ID.fullmatch(owner) or not _ID.fullmatch(name):
            raise RowError(keys[0], f"{value[:100]!r} is not a repository, written owner/name")
        return owner, name

    def strings(self, *keys: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return a list of strings without duplicates, in order.

        The list may be written as text, in JSON or as a Python literal. Empty text is an empty list, and a whole number
        becomes its digits.
        """
        value = self._read(keys, default)
        if isinstance(value, str) and not value.strip():
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) or type(item) is int for item in value):
            raise RowError(keys[0], "not a list of strings")
        if len(value) > MAX_TESTS:
            raise RowError(keys[0], f"holds more than {MAX_TESTS} values")
        return tuple(dict.fromkeys(map(str, value)))

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings, duplicates included."""
        value = self._first((key,))
        if not isinstance(value, list) or len(value) > MAX_TESTS:
            raise RowError(key, "missing" if value is _MISSING else "not a list of texts")
        return tuple(Fields({key: item}).text(key, default="") for item in value)

    def mapping(self, *keys: str, default: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return an object, which may be written as text."""
        value = self._read(keys, default)
        if not isinstance(value, Mapping):
            raise RowError(keys[0], "not an object")
        return value

    def objects(self, *keys: str) -> tuple[Mapping[str, Any], ...]:
        """Return a list of objects, which may be stored in columns; empty if the field is missing."""
        value = self._first(keys)
        if value is _MISSING:
            return ()
        value = list_of_columns(value)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise RowError(keys[0], "not a list of objects")
        return tuple(value)

    def patch(self, *keys: str, empty: bool = False) -> bytes:
        """Return a unified diff without binary files whose content it lacks."""
        text = self.text(*keys, default="" if empty else None)
        try:
            sections = [patch.text for patch in parse_patch(text.encode()) if not patch.hollow]
        except UnifiedDiffError as error:
            raise RowError(keys[0], str(error), "leave the row out") from None
        if not sections and not empty:
            raise RowError(keys[0], "changes nothing")
        return b"".join(sections)

    def _read(self, keys: tuple[str, ...], default: Any) -> Any:
        """Return the value, parsed if it is text.

        If it is missing, return ``default``; if that is None, raise RowError.
        """
        value = self._first(keys)
        if value is _MISSING:
            if default is None:
                raise RowError(keys[0], "missing", "check that the row has this format")
            return default
        return parse_literal(keys[0], value) if isinstance(value, str) and value.strip() else value

    def _first(self, keys: tuple[str, ...]) -> Any:
        values = (self._row[key] for key in keys if self._row.get(key) is not None)
        return next(values, _MISSING)


def list_of_columns(value: Any) -> Any:
    """Return the list of objects that an object of equally long lists stands for, or any other value as it is."""
    if not isinstance(value, dict) or not value or not all(isinstance(column, list) for column in value.values()):
        return value
    if len({len(column) for column in value.values()}) != 1:
        return value
    return [dict(zip(value, cells, strict=True)) for cells in zip(*value.values(), strict=True)]


def checked_image(key: str, name: str) -> str:
    """Return an image name without the default registry's host, so that a mirror can stand in for the host."""
    from docker.auth import resolve_repository_name
    from docker.errors import DockerException

    try:
        host, path = resolve_repository_name(image_reference(name))
    except (ValueError, DockerException):
        raise RowError(key, f"{name[:100]!r} is not an image name") from None
    return path if name != path and host == _default_host() else name


def _default_host() -> str:
    from docker.auth import INDEX_NAME

    return str(INDEX_NAME)


def read_json(text: str | bytes) -> Any:
    """Parse JSON; NaN, which pandas and Parquet write for an absent number, is null. Raise ValueError."""
    return nesting_limit.read_json(text, parse_constant=lambda name: None)


def parse_literal(key: str, text: str) -> Any:
    """Return a value written as JSON or as a Python literal. It is parsed, never evaluated. Raises RowError."""
    try:
        return read_json(text)
    except ValueError:
        pass
    brackets = _STRING.sub("", text)
    if len(text) > MAX_LITERAL_CHARS or brackets.count(",") > MAX_TESTS:  # the syntax tree would take gigabytes
        raise RowError(key, f"holds more than {MAX_LITERAL_CHARS} characters, or {MAX_TESTS} values")
    if _nesting(brackets) > MAX_NESTING:
        raise RowError(key, f"is nested more than {MAX_NESTING} deep")
    try:
        value = ast.literal_eval(text.strip())
        repr(value)  # a number may have more digits than can be written
        return value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise RowError(key, "is neither JSON nor a Python literal") from None


def _nesting(text: str) -> int:
    """Return the depth of nested brackets."""
    deepest = depth = 0
    for char in text:
        if char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}":
            depth = max(0, depth - 1)
    return deepest
