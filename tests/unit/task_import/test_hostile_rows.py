"""Rows are anybody's: whatever they hold, an importer takes them or refuses them, and writes only where it is to."""

import ast
import json
import string
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.task_import.fields import Fields, RowError, parse_literal
from farm.task_import.importer import ImportOptions, import_all
from farm.task_import.rows import read_rows
from tests.support import importing as rows

CANARY = "__import__('pathlib').Path('/tmp/farm-import-was-evaluated').write_text('x')"
NASTY = st.sampled_from(
    [
        "",
        "\0",
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "a/../b",
        "$(touch /tmp/x)",
        "`true`",
        "x; true",
        "'",
        '"',
        "{report}",
        "@image",
        "\n",
        "FROM scratch\nRUN true",
        "\ud800",
        "\u2028",
        CANARY,
        f"[{CANARY}]",
        "[" * 300,
        "(" * 100_000,
        "-" * 100_000 + "1",
        "1" * 10_000,
        "[1, [2, {'a': ()}]]",
        "diff --git a/../x b/../x\n--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n",
        "--- /dev/null\n+++ b/x\n@@ -0,0 +1,99999999 @@\n+a\n",
        "GIT binary patch\nliteral 999999999\n",
        "x" * 200_000,
    ]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | NASTY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | NASTY, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("format_", sorted(rows.ROWS))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_importers_raise_only_row_error(format_: str, data: st.DataObject) -> None:
    row = dict(rows.ROWS[format_])
    for key in data.draw(st.lists(st.sampled_from(sorted(row)), min_size=1, max_size=3)):
        row[key] = data.draw(VALUES)
    nested = [key for key, value in row.items() if isinstance(value, dict) and value]
    for key in nested:
        row[key] = {**row[key], data.draw(st.sampled_from(sorted(row[key]))): data.draw(VALUES)}
    with tempfile.TemporaryDirectory(prefix="farm-test-") as home:
        source = Path(home) / "rows.jsonl"
        source.write_text(json.dumps(row) + "\n")
        out = Path(home) / "out"
        summary = import_all(
            ImportOptions(format_, source, out), state_dir=Path(home) / "state", on_progress=lambda line: None
        )
        assert len(summary.taken) + len(summary.refused) == 1
        assert {path.name for path in Path(home).iterdir()} <= {"out", "rows.jsonl", "state"}
        assert {path.suffix for path in Path(home, "state").rglob("*") if path.is_file()} <= {".jsonl"}
        written = [path for path in out.rglob("*") if path.is_file()] if out.exists() else []
        assert bool(written) is bool(summary.taken)
        for taken in summary.taken:
            assert all(path.is_relative_to(taken.directory) and not path.is_symlink() for path in written)
            dockerfile = (taken.directory / "environment/Dockerfile").read_text().splitlines()
            assert [line.split()[0] for line in dockerfile] == ["#", "FROM", "USER", "WORKDIR", "RUN"]
        assert all(refused.reason and "\n" not in refused.reason for refused in summary.refused)
    assert not Path("/tmp/farm-import-was-evaluated").exists()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode), st.sampled_from([".json", ".jsonl"]))
def test_arbitrary_bytes_are_read_or_refused(content: bytes, suffix: str) -> None:
    from farm.tasks import TaskError

    with tempfile.TemporaryDirectory(prefix="farm-test-") as home:
        source = Path(home) / f"rows{suffix}"
        source.write_bytes(content)
        try:
            found = list(read_rows(source))
        except TaskError as error:
            assert "\n" not in str(error)  # noqa: PT017 - one of two right outcomes
            return
        assert all(row.fault or isinstance(row.fields, dict) for row in found)


@settings(max_examples=5, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 4000))
def test_damaged_parquet_file_is_read_or_refused(noise: bytes, at: int) -> None:
    import pyarrow
    from pyarrow import parquet

    from farm.tasks import TaskError

    with tempfile.TemporaryDirectory(prefix="farm-test-") as home:
        source = Path(home) / "rows.parquet"
        parquet.write_table(pyarrow.Table.from_pylist([rows.swebench()]), source)
        content = source.read_bytes()
        at %= len(content)
        source.write_bytes(content[:at] + noise + content[at + len(noise) :])
        try:
            assert all(isinstance(row.fields, dict) for row in read_rows(source))
        except TaskError as error:
            assert "\n" not in str(error)  # noqa: PT017 - one of two right outcomes


@given(st.recursive(st.text(string.printable, max_size=10) | st.integers() | st.booleans(), st.lists, max_leaves=8))
def test_literals_are_parsed_as_in_python(value: Any) -> None:
    assert parse_literal("key", repr([value])) == ast.literal_eval(repr([value]))
    assert parse_literal("key", json.dumps(value)) == value


def test_literals_are_bounded_and_never_evaluated() -> None:
    for text in (CANARY, f"[{CANARY}]", "open('/etc/passwd')", "[x for x in ()]", "{**{}}", "[1,]" * 3, "lambda: 1"):
        with pytest.raises(RowError):
            parse_literal("key", text)
    for text in ("[" + "'a'," * 300_000 + "]", "'" + "a" * 5_000_000 + "'", "{" * 1000, "(" * 10**6):
        with pytest.raises(RowError):
            parse_literal("key", text)
    assert not Path("/tmp/farm-import-was-evaluated").exists()


def test_brackets_in_strings_are_no_nesting() -> None:
    ids = [f"tests/a.py::test[{number}" for number in range(100)]
    assert Fields({"x": repr(ids)}).strings("x") == tuple(ids)
