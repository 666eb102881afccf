"""Rows of a data set from JSON, JSONL or Parquet files, read one at a time as untrusted data."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.task_import import parquet_worker
from farm.task_import.fields import read_json
from farm.task_import.parquet_worker import NO_PYARROW
from farm.tasks.errors import TaskError

MAX_JSON_BYTES = 256 * 1024 * 1024
MAX_ROW_BYTES = 64 * 1024 * 1024
MAX_VALUES = 10_000_000
"""Limit for the values of a JSON text, counted by commas, because 64 MiB of empty lists would take gigabytes."""
MAX_GROUP_BYTES = 4 << 30
"""Limit for an unpacked row group of a Parquet file, which is held in memory."""

_WORKER = Path(parquet_worker.__file__)
_SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet")


@dataclass(frozen=True, slots=True)
class Row:
    """A row. ``place`` is its file and number. ``fault`` is the reason if there are no ``fields``."""

    place: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""


def read_rows(source: Path) -> Iterator[Row]:
    """Yield the rows of a file, or of all data files below a directory in order of name.

    Raises TaskError if there are no data files.
    """
    for path in _files(source):
        if path.suffix == ".parquet":
            yield from _parquet(path)
        elif path.suffix == ".json":
            yield from _json(path)
        else:
            yield from _jsonl(path)


def _files(source: Path) -> list[Path]:
    remedy = f"name a file that ends in {', '.join(_SUFFIXES)}, or a directory of such files"
    try:
        if source.is_dir():
            files = sorted(path for path in source.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
        else:
            files = [source] if source.is_file() and source.suffix in _SUFFIXES else []
    except (OSError, ValueError) as error:
        raise TaskError(source, f"cannot be read ({error})", remedy) from None
    if not files:
        raise TaskError(source, "holds no rows" if source.exists() else "no such file or directory", remedy)
    return files


def _jsonl(path: Path) -> Iterator[Row]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_ROW_BYTES + 1):
                number += 1
                place = f"{path.name}, line {number}"
                if len(line) > MAX_ROW_BYTES:
                    yield Row(place, fault=f"holds more than {MAX_ROW_BYTES >> 20} MiB")
                    while line and not line.endswith(b"\n"):
                        line = file.readline(MAX_ROW_BYTES)
                elif line.strip():
                    yield _parse_row(place, line)
    except OSError as error:
        raise TaskError(path, f"cannot be read ({error.strerror})", "make it readable") from None


def _json(path: Path) -> Iterator[Row]:
    """Yield the rows of a list, of an object of rows by name, or of an object that is one row."""
    remedy = "write a list of rows, or one row per line into a .jsonl file"
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise TaskError(path, f"holds more than {MAX_JSON_BYTES >> 20} MiB", "split it, or write a .jsonl file")
        document = _document(path.read_bytes())
    except OSError as error:
        raise TaskError(path, f"cannot be read ({error.strerror})", "make it readable") from None
    except (ValueError, MemoryError) as error:
        raise TaskError(path, f"not JSON ({str(error)[:200]})", remedy) from None
    if isinstance(document, dict):
        nested = document and all(isinstance(value, dict) for value in document.values())
        rows = list(document.values()) if nested else [document]
    elif isinstance(document, list):
        rows = document
    else:
        raise TaskError(path, "holds no rows", remedy)
    for number, row in enumerate(rows, start=1):
        yield _row(f"{path.name}, row {number}", row)


def _document(text: bytes) -> Any:
    """Parse JSON. Raises ValueError and MemoryError."""
    if text.count(b",") > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values")
    return read_json(text)


def _parse_row(place: str, text: bytes) -> Row:
    try:
        return _row(place, _document(text))
    except (ValueError, MemoryError) as error:
        return Row(place, fault=f"not JSON ({str(error)[:200]})")


def _row(place: str, row: Any) -> Row:
    if not isinstance(row, dict):
        return Row(place, fault="not a row: write an object with a value for each field")
    return Row(place, row)


def _parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a Parquet file from a worker process, which is killed when the generator is closed."""
    remedy = "download the file again, or write its rows as .jsonl"
    command = [sys.executable, str(_WORKER), str(path), str(MAX_GROUP_BYTES)]
    worker = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=1 << 20
    )
    assert worker.stdout is not None
    number = 0
    try:
        while line := worker.stdout.readline(MAX_ROW_BYTES + 1):
            number += 1
            place = f"{path.name}, row {number}"
            if len(line) > MAX_ROW_BYTES:
                yield Row(place, fault=f"holds more than {MAX_ROW_BYTES >> 20} MiB")
                while line and not line.endswith(b"\n"):
                    line = worker.stdout.readline(MAX_ROW_BYTES)
                continue
            message = _parse_row(place, line)
            if message.fault or "row" not in message.fields:
                fault = message.fields.get("fault", message.fault)
                raise TaskError(path, f"not a readable Parquet file ({fault})", remedy)
            yield _row(place, message.fields["row"])
        exit_code = worker.wait()
        if exit_code == NO_PYARROW:
            raise TaskError(path, "reading Parquet needs pyarrow", "pip install 'rollout-farm[parquet]'")
        if exit_code:
            raise TaskError(path, f"not a readable Parquet file (its reader ended with exit code {exit_code})", remedy)
    finally:
        worker.kill()
        worker.stdout.close()
        worker.wait()
