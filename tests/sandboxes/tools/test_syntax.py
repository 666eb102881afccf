"""What an edit broke is told; what was broken before, and what nobody can judge, is not."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxes.interface import Runtime, Sandbox
from sandboxes.spec import SandboxSpec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.tools.actions.files import FileActions
from sandboxes.tools.actions.syntax_check import new_syntax_error
from sandboxes.tools.actions.text_edits import replace
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.sandboxes.serving import ordinary


@pytest.fixture
async def sandbox(toolbox: Toolbox, tmp_path: Path) -> AsyncIterator[Sandbox]:
    """A tool server on this machine, which has the programs that judge; nothing but commands is asked of it."""
    async with ordinary(toolbox, tmp_path) as served:
        yield cast(Sandbox, served.server)


NOWHERE = cast(Sandbox, object())
"""What is judged here never reaches a sandbox."""


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("x = 1\n", "x = 2\n", None),
        ("x = 1\n", "x = (1\n", "line 1: '(' was never closed"),
        (None, "def f(:\n", "line 1: "),
        ("x = (1\n", "y = 1\nx = (1\n", None),
        ("x = (1\n", "x = [1\n", None),
        ("x = 1\n", "if x:\ny = 1\n", "line 2: expected an indented block"),
        ("x = 1\n", "return x\n", "line 1: 'return' outside function"),
        ("", "# -*- coding: latin-1 -*-\nx = '\udce9'\n", None),
        ("", "\ufeffx = 1\n", None),
        pytest.param("", "(" * 100_000, "too many nested parentheses", id="parentheses"),
        pytest.param("", "-" * 200_000 + "1", None, id="signs"),
        pytest.param("", "x = 1\n" * 200_000 + "(", None, id="a long one"),
        ("", "while True:\n    pass\n", None),
        ("", 'print("never run"); raise SystemExit(7)\n', None),
    ],
)
async def test_python_syntax_is_checked_by_sandbox_interpreter(
    sandbox: Sandbox, before: str | None, after: str, fault: str | None
) -> None:
    told = await new_syntax_error(sandbox, "src/it.py", before, after)
    assert (told is None) == (fault is None), told
    assert fault is None or (told is not None and fault in told)


@pytest.mark.parametrize(
    ("path", "before", "after", "fault"),
    [
        ("a.json", '{"a": 1}', '{"a": 1,}', "line 1 column"),
        ("a.json", "{", "[", None),
        pytest.param("a.json", None, "[" * 100_000, None, id="brackets"),
        pytest.param("a.json", "1", "9" * 10_000, None, id="digits"),
        ("a.json", "\ufeff1", "\ufeff2", None),
        ("pyproject.toml", "a = 1", "a = 1\na = 2", "Cannot overwrite a value"),
        pytest.param("pyproject.toml", "a = 1", "a = " + "[" * 30_000, None, id="arrays"),
        ("notes.txt", "(", "((", None),
        ("Makefile", "", "(", None),
    ],
)
async def test_data_files_are_checked_by_their_parser(
    path: str, before: str | None, after: str, fault: str | None
) -> None:
    told = await new_syntax_error(NOWHERE, path, before, after)
    assert (told is None) == (fault is None), told
    assert fault is None or (told is not None and fault in told)


@settings(deadline=None)
@given(st.sampled_from(["a.json", "a.toml"]), st.text("[]{}\"',:=\\u0 1e.\n\ud800\udcff#", max_size=60))
async def test_syntax_check_never_raises(path: str, text: str) -> None:
    told = await new_syntax_error(NOWHERE, path, None, text)
    if path.endswith("json"):
        try:
            json.loads(text)
        except ValueError:
            assert told
        else:
            assert told is None
    (told or "").encode()


@pytest.mark.docker
async def test_edit_that_breaks_syntax_reports_it(oci_runtime: Runtime, test_image: str) -> None:
    files = FileActions(30_000, check_syntax=True)
    async with oci_runtime.scope(SandboxSpec(test_image, workdir="/repo")) as sandbox:
        made = await files.create(sandbox, "run.sh", "if true; then\n    echo yes\nfi\n", timeout_s=30)
        assert made.content == "Created run.sh: 3 lines."
        broken = await files.change(sandbox, "run.sh", lambda text: replace(text, "fi\n", ""), timeout_s=30)
        assert broken.error_kind is None
        assert broken.content.splitlines()[-1].startswith("[syntax error, line 3: syntax error: unexpected end of file")
        again = await files.change(sandbox, "run.sh", lambda text: replace(text, "yes", "no"), timeout_s=30)
        assert "syntax error" not in again.content
        unjudged = await files.create(sandbox, "it.py", "def f(:\n", timeout_s=30)
        assert unjudged.content == "Created it.py: 1 line."


async def test_missing_interpreter_skips_syntax_check() -> None:
    async with FakeRuntime({"image": {}}).scope(SandboxSpec("image")) as sandbox:
        made = await FileActions(30_000, check_syntax=True).create(sandbox, "it.py", "def f(:\n", timeout_s=30)
        assert made.content == "Created it.py: 1 line."
