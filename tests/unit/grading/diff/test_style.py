"""Tests of style measurement on changed lines, with the real ruff and hostile text."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from farm.core.change import FileChange
from farm.grading.diff import ruff_worker, style
from farm.grading.diff.patch import render
from farm.grading.diff.style import is_python, measure_style
from tests.support.farm.grading_values import change, delete, install_ruff, link, write

OLD = b"import os\n\n\ndef f(x):\n    return x == None\n"


async def measured(*files: FileChange, **old: bytes) -> Mapping[str, float]:
    before = {f"{name}.py": write(f"{name}.py", content) for name, content in old.items()}
    return await measure_style(render(change(*files), before.get, is_python).files)


async def test_only_changed_lines_count() -> None:
    new = OLD.replace(b"return x == None", b"y = 1 \n    return x is None")
    components = await measured(write("a.py", new), a=OLD)
    counts = {"style_new": 2.0, "style_fixed": 1.0, "style_delta": 1.0, "style_unchecked": 0.0}
    assert components == {**counts, "style_ruff": style.version_number(style.RUFF)}
    mended = await measured(write("a.py", OLD.replace(b"import os\n\n\n", b"")), a=OLD)
    assert (mended["style_new"], mended["style_fixed"], mended["style_delta"]) == (0.0, 1.0, -1.0)


async def test_other_ruff_version_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_ruff(tmp_path, monkeypatch, "0.15.8")
    assert await measured(write("n.py", b"import os\n")) == {"style_unchecked": 1.0}


def test_version_becomes_number() -> None:
    assert style.version_number("0.17.5") == 17_005.0
    assert style.linter_version() == style.RUFF


async def test_change_without_python_has_no_style() -> None:
    assert await measured(write("a.txt"), link("b.txt", b"a.txt")) == {}
    assert await measured(FileChange("a.py", write("a").kind, OLD, True), a=OLD) == {}, "only its mode"


async def test_new_and_deleted_files_count_fully() -> None:
    assert (await measured(write("n.py", b"import os\n")))["style_new"] == 1.0
    assert (await measured(delete("a.py"), a=OLD))["style_fixed"] >= 1.0


async def test_syntax_error_counts_on_any_line() -> None:
    components = await measured(write("a.py", OLD.replace(b"def f(x):", b"def f(x:")), a=OLD)
    assert components["style_new"] >= 1.0


@pytest.mark.parametrize(
    "hidden",
    [
        b"# ruff: noqa\nimport sys\n",
        b"import sys  # noqa\n",
        b"# flake8: noqa\nimport sys\n",
        b"\r\r\rimport sys\n",
    ],
)
async def test_comments_do_not_hide_violations(hidden: bytes) -> None:
    assert (await measured(write("a.py", hidden)))["style_new"] >= 1.0


async def test_linter_ignores_configuration_and_names() -> None:
    files = [
        write("pyproject.toml", b'[tool.ruff]\nexclude = ["*"]\n'),
        write("ruff.toml", b'lint.select = []\nextend = "/etc/passwd"\n'),
        write("--config=x.py", b"import os\n"),
        write("a\nb.py", b"import os\n"),
        write(".venv/x.py", b"import os\n"),
    ]
    assert (await measured(*files))["style_new"] == 3.0


async def test_files_beyond_limits_are_unchecked() -> None:
    big = write("big.py", b"x = 1\n" * 300_000)
    assert await measured(big) == {"style_unchecked": 1.0}
    assert await measured(write("latin.py", b"x = '\xe4'\n"), write("big.py", big.content)) == {"style_unchecked": 2.0}


async def test_many_files_are_all_checked() -> None:
    def many(content: bytes) -> list[FileChange]:
        return [write(f"f{n}.py", content) for n in range(style.MAX_FILES + 5)]

    components = await measured(*many(b"x = 1\ny = 2 \nz = 3 \n"))
    assert (components["style_new"], components["style_unchecked"]) == (2.0 * style.MAX_FILES, 5.0)
    components = await measured(*many(b"x = 1\n"))
    assert (components["style_new"], components["style_unchecked"]) == (0.0, 5.0)


def test_worker_raises_its_descriptor_limit() -> None:
    texts = [b"%d\n" % number * (number % 3) for number in range(2 * style.MAX_FILES)]
    command = ["/bin/sh", "-c", 'ulimit -Sn 64; exec "$@"', "sh", sys.executable, "-I", "-S", ruff_worker.__file__]
    command += [str(style.CPU_S), str(style.MEMORY_BYTES), "/bin/cat"]
    result = subprocess.run(command, input=b"".join(map(ruff_worker.framed, texts)), capture_output=True, check=True)
    assert result.stdout == b"".join(texts)
    assert [ruff_worker.index_of(ruff_worker.path_of(index)) for index in range(3)] == [0, 1, 2]


async def test_unread_text_is_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style, "_COMMAND", [*style._COMMAND, "/nonexistent/100"])
    assert await measured(write("a.py", b"import os\n")) == {"style_unchecked": 1.0}


@pytest.mark.parametrize(("bound", "value"), [("WALL_S", 0.0), ("MAX_OUTPUT_BYTES", 10), ("MEMORY_BYTES", 1)])
async def test_failed_linter_leaves_files_unchecked(monkeypatch: pytest.MonkeyPatch, bound: str, value: object) -> None:
    monkeypatch.setattr(style, bound, value)
    assert await measured(write("a.py", b"import os\n")) == {"style_unchecked": 1.0}


HOSTILE = {
    "brackets": b"(" * 200_000,
    "signs": b"-" * 200_000 + b"1\n",
    "formats": b"f'{" * 50_000,
    "many": b"x = 1 \n" * 100_000,
    "deep": b"if x:\n" + b"".join(b" " * n + b"if x:\n" for n in range(1, 900)),
    "odd": b"\x0c" * 1000 + b"\xef\xbb\xbfimport os",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_any_text_gives_components(name: str) -> None:
    components = await measured(write("a.py", HOSTILE[name]))
    assert components["style_unchecked"] == 1.0 or components["style_new"] >= 1.0
