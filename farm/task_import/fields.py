"""The fields of a row, each read as what it has to be: a row is anybody's, and nothing in it is ever evaluated."""

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
    """A row is not taken: the field, what is wrong with it, and the remedy; one line."""

    def __init__(self, key: str, what: str, remedy: str = "") -> None:
        place = f"{key}: " if key else ""
        super().__init__(" ".join(f"{place}{what}{'; ' if remedy else ''}{remedy}".split())[:1000])


class Fields:
    """The fields of one row. Each call raises RowError for what is not of its kind."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row

    def text(self, *keys: str, default: str | None = None, limit: int = MAX_TEXT_BYTES) -> str:
        """The first of ``keys`` that has a value."""
        value = self._first(keys)
        if value is _MISSING:
            if default is None:
                raise RowError(keys[0], "missing", "is the row of this format?")
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
        """A name that is safe as that of a file: an instance's id, a tag. A whole number is one, as ``7.0`` too."""
        found = self._first(keys)
        whole = isinstance(found, float) and found.is_integer()  # of a column in which some are absent
        value = str(int(found)) if whole else self.text(*keys, limit=1024)
        if not _ID.fullmatch(value) or ".." in value:
            raise RowError(keys[0], f"{value[:100]!r} is no name of letters, digits, dots, dashes and underscores")
        return value

    def commit(self, *keys: str) -> str:
        value = self.text(*keys, limit=1024)
        if not _COMMIT.fullmatch(value):
            raise RowError(keys[0], f"{value[:100]!r} is no commit")
        return value

    def image(self, *keys: str) -> str:
        return checked_image(keys[0], self.text(*keys, limit=1024))

    def repo(self, *keys: str) -> tuple[str, str]:
        """``owner/name``."""
        value = self.text(*keys, limit=1024)
        owner, slash, name = value.partition("/")
        if not slash or not _ID.fullmatch(owner) or not _ID.fullmatch(name):
            raise RowError(keys[0], f"{value[:100]!r} is no repository, which is owner/name")
        return owner, name

    def strings(self, *keys: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of strings, or one written as text: in JSON, or as Python writes it. In order, each once.

        Empty text is an empty list, and a whole number is its digits.
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
        """A list of texts, as it is: long, and some of them equal."""
        value = self._first((key,))
        if not isinstance(value, list) or len(value) > MAX_TESTS:
            raise RowError(key, "missing" if value is _MISSING else "not a list of texts")
        return tuple(Fields({key: item}).text(key, default="") for item in value)

    def mapping(self, *keys: str, default: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """An object, or one written as text."""
        value = self._read(keys, default)
        if not isinstance(value, Mapping):
            raise RowError(keys[0], "not an object")
        return value

    def objects(self, *keys: str) -> tuple[Mapping[str, Any], ...]:
        """A list of objects, in columns too; what is missing is none."""
        value = self._first(keys)
        if value is _MISSING:
            return ()
        value = out_of_columns(value)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise RowError(keys[0], "not a list of objects")
        return tuple(value)

    def patch(self, *keys: str, empty: bool = False) -> bytes:
        """A unified diff without what it names and does not bring: binary files that are told of in words alone."""
        text = self.text(*keys, default="" if empty else None)
        try:
            kept = [patch.text for patch in parse_patch(text.encode()) if not patch.hollow]
        except UnifiedDiffError as error:
            raise RowError(keys[0], str(error), "leave the row out") from None
        if not kept and not empty:
            raise RowError(keys[0], "changes nothing")
        return b"".join(kept)

    def _read(self, keys: tuple[str, ...], default: Any) -> Any:
        """A value, or what one that is text says; ``default`` where it is missing, unless that is None."""
        value = self._first(keys)
        if value is _MISSING:
            if default is None:
                raise RowError(keys[0], "missing", "is the row of this format?")
            return default
        return literal(keys[0], value) if isinstance(value, str) and value.strip() else value

    def _first(self, keys: tuple[str, ...]) -> Any:
        found = (self._row[key] for key in keys if self._row.get(key) is not None)
        return next(found, _MISSING)


def out_of_columns(value: Any) -> Any:
    """The list of objects that columnar copies have as an object of lists; any other value as it is."""
    if not isinstance(value, dict) or not value or not all(isinstance(column, list) for column in value.values()):
        return value
    if len({len(column) for column in value.values()}) != 1:
        return value
    return [dict(zip(value, cells, strict=True)) for cells in zip(*value.values(), strict=True)]


def checked_image(key: str, name: str) -> str:
    """An image's name without the default registry's host, which a mirror stands in for."""
    from docker.auth import resolve_repository_name
    from docker.errors import DockerException

    try:
        host, path = resolve_repository_name(image_reference(name))
    except (ValueError, DockerException):
        raise RowError(key, f"{name[:100]!r} is no name of an image") from None
    return path if name != path and host == _default_host() else name


def _default_host() -> str:
    from docker.auth import INDEX_NAME

    return str(INDEX_NAME)


def read_json(text: str | bytes) -> Any:
    """Parse JSON; NaN, which pandas and Parquet write for an absent number, is null. Raise ValueError."""
    return nesting_limit.read_json(text, parse_constant=lambda name: None)


def literal(key: str, text: str) -> Any:
    """A value written as JSON or as a Python literal; parsed, never evaluated. Raises RowError."""
    try:
        return read_json(text)
    except ValueError:
        pass
    brackets = _STRING.sub("", text)
    if len(text) > MAX_LITERAL_CHARS or brackets.count(",") > MAX_TESTS:  # its syntax tree would take gigabytes
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
    """How deep brackets are nested."""
    deepest = depth = 0
    for char in text:
        if char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}":
            depth = max(0, depth - 1)
    return deepest
