"""From a file of rows to task directories: written whole, taken up where it was stopped, every refusal told."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow
import pytest
from pyarrow import parquet

from farm.core.task import ReportFormat
from farm.grading.reports.junit import junit_name
from farm.task_import.draft import Command, Commands, read_commands
from farm.task_import.importer import FORMATS, ImportOptions, ImportSummary, import_all
from farm.task_import.rows import Row, read_rows
from farm.tasks import TaskError, load_task, load_taskset
from tests.support import importing as rows
from tests.support.farm.grading_values import FAILURE, case, junit
from tests.unit.tasks.test_loader import MANIFEST, STEPS, write_steps, write_task


def jsonl(path: Path, *found: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in found))
    return path


def take(format_: str, source: Path, out: Path, **wishes: Any) -> ImportSummary:
    return import_all(
        ImportOptions(format_, source, out, **wishes),
        state_dir=out.with_name(f"{out.name}-state"),
        on_progress=lambda line: None,
    )


def tree(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.relative_to(directory).as_posix(): (path.read_bytes(), path.stat().st_mode)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("format_", [name for name in FORMATS if name != "harbor"])
def test_each_format_gives_a_reproducible_directory(format_: str, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "rows.jsonl", rows.ROWS[format_])
    outs = [tmp_path / "one", tmp_path / "two"]
    for out in outs:
        summary = take(format_, source, out)
        assert not summary.refused
        (taken,) = summary.taken
        assert [path.name for path in out.iterdir()] == [taken.id]
    assert tree(outs[0]) == tree(outs[1])
    bundle = load_task(taken.directory, state_dir=tmp_path)
    verifier = bundle.task.verifier
    assert bundle.task.id == taken.id
    assert verifier.report is (ReportFormat.GO if format_ == "multiswe" else ReportFormat.PYTEST)
    assert (len(verifier.fail_to_pass), len(verifier.pass_to_pass)) == (taken.fail_to_pass, taken.pass_to_pass)
    assert bundle.environment["Dockerfile"].content.split(b"\n")[1] == f"FROM {taken.image}".encode()
    assert bool(bundle.test_patch) is (format_ not in ("swesmith", "r2e"))
    assert "solve.sh" in bundle.solution


def test_json_jsonl_and_parquet_give_equal_tasks(tmp_path: Path) -> None:
    first, second = rows.swebench5(), rows.swebench5(instance_id="a__b-2")
    jsonl(tmp_path / "a.jsonl", first, second)
    (tmp_path / "b.json").write_text(json.dumps([first, second]))
    (tmp_path / "c.json").write_text(json.dumps({row["instance_id"]: row for row in (first, second)}))
    parquet.write_table(pyarrow.Table.from_pylist([first, second]), tmp_path / "d.parquet", row_group_size=1)
    outs = []
    for source in sorted(tmp_path.glob("?.*")):
        summary = take("swebench", source, tmp_path / f"out-{source.name}")
        assert [taken.id for taken in summary.taken] == [first["instance_id"], "a__b-2"], source
        outs.append(tree(tmp_path / f"out-{source.name}"))
    assert all(out == outs[0] for out in outs)


def test_parquet_values_are_converted_to_json(tmp_path: Path) -> None:
    table = pyarrow.table(
        {
            "a": pyarrow.array([b"\xff"]),
            "b": pyarrow.array([[("k", 1.5)]], type=pyarrow.map_(pyarrow.string(), pyarrow.float64())),
            "c": pyarrow.array([float("nan")]),
            "d": pyarrow.array([0], type=pyarrow.timestamp("s")),
        }
    )
    parquet.write_table(table, tmp_path / "x.parquet")
    assert [row.fields for row in read_rows(tmp_path)] == [
        {"a": "\ufffd", "b": [["k", 1.5]], "c": None, "d": "1970-01-01 00:00:00"}
    ]


def test_parquet_worker_ends_with_its_reader(tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist([{"a": "x" * 100_000, "b": number} for number in range(200)])
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    found = read_rows(tmp_path / "x.parquet")
    assert next(iter(found)).fields["b"] == 0
    found.close()  # type: ignore[attr-defined]  # it is a generator
    assert not [child for child in psutil.Process().children() if "parquet_worker" in " ".join(child.cmdline())]


def test_stopped_import_can_be_repeated(tmp_path: Path) -> None:
    found = [rows.swebench(instance_id=f"a__b-{number}") for number in range(4)]
    source, out = jsonl(tmp_path / "rows.jsonl", *found), tmp_path / "out"
    assert [taken.id for taken in take("swebench", source, out, limit=2).taken] == ["a__b-0", "a__b-1"]
    (out / "a__b-1" / "instruction.md").write_text("Mine.\n")
    summary = take("swebench", source, out)
    assert [path.name for path in summary.there] == ["a__b-0", "a__b-1"]
    assert [taken.id for taken in summary.taken] == ["a__b-2", "a__b-3"]
    assert (out / "a__b-1" / "instruction.md").read_text() == "Mine.\n"
    assert sorted(path.name for path in out.iterdir()) == [row["instance_id"] for row in found]


def test_refused_rows_leave_the_others_alone(tmp_path: Path) -> None:
    good = rows.swebench()
    source = jsonl(
        tmp_path / "rows.jsonl",
        "{nonsense",
        "[1]",
        "[" * 100_000,
        rows.swebench(instance_id="a__b-1", patch="x"),
        good,
        good,
        '{"instance_id": 1' + "0" * 5000 + "}",
    )
    summary = take("swebench", source, tmp_path / "out")
    assert [taken.id for taken in summary.taken] == [good["instance_id"]]
    told = {refused.place: refused for refused in summary.refused}
    assert set(told) == {f"rows.jsonl, line {number}" for number in (1, 2, 3, 4, 6, 7)}
    assert told["rows.jsonl, line 4"].id == "a__b-1"
    assert "is in rows.jsonl, line 5 already" in told["rows.jsonl, line 6"].reason
    assert not any("\n" in refused.reason for refused in summary.refused)


def test_only_imports_the_named_ids(tmp_path: Path) -> None:
    found = [rows.swebench(instance_id=f"a__b-{number}") for number in range(3)]
    found.append(rows.swebench(instance_id="a__b-9", patch=""))
    source = jsonl(tmp_path / "rows.jsonl", *found)
    summary = take("swebench", source, tmp_path / "out", only=frozenset({"a__b-1", "a__b-9", "none"}))
    assert [taken.id for taken in summary.taken] == ["a__b-1"]
    assert [refused.id for refused in summary.refused] == ["a__b-9"]
    assert summary.missing == ["none"]


def test_source_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("")
    (tmp_path / "x.json").write_text("3")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + os.urandom(200) + b"PAR1")
    (tmp_path / "empty").mkdir()
    for name in ("x.txt", "x.json", "bad.parquet", "empty", "none", "a\0b"):
        with pytest.raises(TaskError) as caught:
            list(read_rows(tmp_path / name))
        assert "; " in str(caught.value)


def test_too_long_line_is_a_faulty_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.task_import.rows.MAX_ROW_BYTES", 100)
    source = jsonl(tmp_path / "x.jsonl", {"a": "b" * 1000}, {"c": 1})
    assert list(read_rows(source)) == [
        Row("x.jsonl, line 1", fault="holds more than 0 MiB"),
        Row("x.jsonl, line 2", {"c": 1}),
    ]


def test_harbor_directories_are_copied(tmp_path: Path) -> None:
    sources = tmp_path / "tasks"
    good = write_task(sources, "good")
    stepwise = write_steps(sources)
    bad = write_task(sources, "bad", task_DOT_toml="[environment]\ngpus = 1\n")
    link = write_task(sources, "link")
    (link / "tests" / "host").symlink_to("/etc")
    os.chmod(good / "tests" / "keep.txt", 0o755)
    summary = take("harbor", sources, tmp_path / "out")
    assert [taken.id for taken in summary.taken] == ["good", stepwise.name]
    assert tree(tmp_path / "out" / "good") == tree(good)
    assert tree(tmp_path / "out" / stepwise.name) == tree(stepwise)
    assert {refused.id for refused in summary.refused} == {"bad", "link"}
    assert any("environment.gpus" in refused.reason for refused in summary.refused if refused.id == "bad")
    assert any("a symlink" in refused.reason for refused in summary.refused if refused.place == str(link))
    assert bad.exists()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[environment]\nallow_internet = true\n", "environment.allow_internet"),
        ('[environment]\nnetwork_mode = "public"\n', "environment.network_mode"),
        ('[agent]\nnetwork_mode = "public"\n', "agent.network_mode"),
        ("[environment]\nallow_internet = false\n", None),
        ('[environment]\nallow_internet = true\nnetwork_mode = "no-network"\n', None),
        ('network = ["pypi.org"]\n[environment]\nallow_internet = true\n', None),
        ('[[verifier.collect]]\ncommand = "true"\n', "verifier.collect"),
        ('[[verifier.collect]]\ncommand = "true"\n[verifier.environment]\n', None),
    ],
)
def test_unsupported_harbor_keys_give_warnings(tmp_path: Path, text: str, key: str | None) -> None:
    source = write_task(tmp_path / "tasks", "one", task_DOT_toml=MANIFEST + text)
    (taken,) = take("harbor", source, tmp_path / "out").taken
    assert [warning.split(" is ignored")[0] for warning in taken.unheeded] == ([key] if key else [])


def test_collect_hooks_of_steps_give_warnings(tmp_path: Path) -> None:
    hook = '[[steps.verifier.collect]]\ncommand = "true"\n'
    source = write_steps(tmp_path / "tasks", STEPS + hook, without="instruction.md")
    (taken,) = take("harbor", source, tmp_path / "out").taken
    assert [warning.split(" is ignored")[0] for warning in taken.unheeded] == ["steps.two.verifier.collect"]


def test_judge_script_matches_report_ids(tmp_path: Path) -> None:
    dotted = "mypy/test/testcheck.py::TypeCheckSuite::check-dataclasses.test::testInit"
    row = rows.swegym(PASS_TO_PASS=[*rows.KEEP, dotted])
    (taken,) = take("swegym", jsonl(tmp_path / "rows.jsonl", row), tmp_path / "out").taken
    expected = [*rows.FAIL, *rows.KEEP, dotted]
    judge = [sys.executable, str(taken.directory / "tests/judge.py"), str(tmp_path / "report.xml"), "pytest"]
    for failing in (None, *expected):
        cases = [case(*junit_name(test), FAILURE if test == failing else "") for test in expected]
        (tmp_path / "report.xml").write_bytes(junit(*cases))
        judged = subprocess.run(judge, capture_output=True, text=True, check=False)
        assert judged.returncode == (failing is not None), judged.stderr
        assert judged.stdout == (f"not seen passed: {failing}\n" if failing else "")


def test_commands_by_repository_and_version(tmp_path: Path) -> None:
    file = tmp_path / "commands.toml"
    file.write_text('["a/b"]\ncommand = "x"\nreport = "tap"\n["a/b@2"]\ncommand = "pytest"\n')
    found = read_commands(file, "y", "go")
    assert found.of("a/b", "1") == Command("x", "tap")
    assert found.of("a/b", "2") == Command("pytest", "pytest")
    assert found.of("c/d") == Command("y", "go")
    assert Commands().of("a/b") is None
    for text in ("x = 1", '["a/b"]\nkommand = ""', "= ", '["a/b"]\ncommand = "x"\nreport = "odd"'):
        file.write_text(text)
        with pytest.raises(TaskError):
            read_commands(file, None, None)
    with pytest.raises(TaskError, match="'odd' is not a report format"):
        read_commands(None, "x", "odd")


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_nan_is_null(tmp_path: Path, suffix: str) -> None:
    absent = float("nan")
    row = rows.swebench(image_name=absent, hints_text=absent, PASS_TO_PASS=absent, version=absent, created_at=absent)
    whole = rows.swebench(instance_id="a__b-2", image_name="org/x:1")
    source = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist([row]), source)
    elif suffix == ".json":
        source.write_text(json.dumps([row, whole]))
    else:
        jsonl(source, row, whole)
    summary = take("swebench", source, tmp_path / "out")
    assert not summary.refused
    assert summary.taken[0].image.startswith("swebench/sweb.eval.x86_64.")
    assert summary.taken[0].pass_to_pass == 0


def test_nan_in_text_is_null(tmp_path: Path) -> None:
    status = {"run": "NONE", "test": "FAIL", "fix": "PASS"}
    nan = float("nan")
    row = rows.multiswe(
        f2p_tests=json.dumps({"TestAdd": status, "TestOther": nan}), number=10388.0, body=nan, title=nan
    )
    (taken,) = take("multiswe", jsonl(tmp_path / "rows.jsonl", row), tmp_path / "out").taken
    assert (taken.id, taken.image, taken.fail_to_pass) == ("cli__cli-10388", "mswebench/cli_m_cli:pr-10388", 1)


def test_second_directory_of_a_name_is_refused(tmp_path: Path) -> None:
    named = f'[task]\nname = "org/one"\n{MANIFEST}'
    first = write_task(tmp_path / "tasks", "a", task_DOT_toml=named)
    second = write_task(tmp_path / "tasks", "b", task_DOT_toml=named)
    third = write_task(tmp_path / "tasks", "c")
    again = write_task(tmp_path / "tasks" / "more", "c")
    source = jsonl(tmp_path / "tasks" / "set.jsonl", *({"path": name} for name in ("a", "b", "c", "more/c")))
    for taken, there in ((["a", "c"], []), ([], ["a", "c"])):
        summary = take("harbor", source, tmp_path / "out")
        assert [task.id for task in summary.taken] == taken
        assert [path.name for path in summary.there] == there
        assert [refused.place for refused in summary.refused] == [str(second), str(again)]
        assert f"org/one is the name of {first} already; give each a name" in summary.refused[0].reason
        assert f"c is in {third} already" in summary.refused[1].reason
    ids = [bundle.task.id for bundle in load_taskset(tmp_path / "out", state_dir=tmp_path)]
    assert ids == ["org/one", "c"]
    (taken_alone,) = take("harbor", source, tmp_path / "alone", only=["b"]).taken
    assert taken_alone.id == "b"


def test_changed_row_is_refused(tmp_path: Path) -> None:
    found = [rows.swebench(instance_id=f"a__b-{number}") for number in range(3)]
    source, out = jsonl(tmp_path / "rows.jsonl", *found), tmp_path / "out"
    take("swebench", source, out, limit=2)
    jsonl(source, found[0], found[1] | {"problem_statement": "Something else."}, found[2])
    for taken in (["a__b-2"], []):
        summary = take("swebench", source, out)
        assert [task.id for task in summary.taken] == taken
        assert not [path for path in summary.there if path.name == "a__b-1"]
        (refused,) = summary.refused
        assert (refused.place, refused.id) == ("rows.jsonl, line 2", "a__b-1")
        assert "a__b-1 was made of another version of its source; remove it" in refused.reason
    shutil.rmtree(out / "a__b-1")
    assert [task.id for task in take("swebench", source, out).taken] == ["a__b-1"]
    summary = take("swebench", source, out)
    assert (len(summary.there), summary.refused) == (3, [])


def test_changed_harbor_directory_is_refused(tmp_path: Path) -> None:
    directory, out = write_task(tmp_path / "tasks", "one"), tmp_path / "out"
    take("harbor", tmp_path / "tasks", out)
    (out / "one" / "instruction.md").write_text("Mine.\n")
    assert [path.name for path in take("harbor", tmp_path / "tasks", out).there] == ["one"]
    (directory / "tests" / "keep.txt").write_text("")
    (refused,) = take("harbor", tmp_path / "tasks", out).refused
    assert "was made of another version of its source" in refused.reason
