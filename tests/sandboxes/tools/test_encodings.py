"""Files that are no UTF-8: what is added goes in as what is there, and all of it can be named."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxes.spec import SandboxSpec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.tools import Toolset
from sandboxes.tools.actions.encodings import decoded, encoded


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=100), st.binary(max_size=60).map(lambda data: b"# coding: gbk\n" + data)))
def test_any_bytes_survive_decoding_and_encoding(data: bytes) -> None:
    assert encoded(*decoded(data)) == data


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"plain\n", "utf-8"),
        ("é\n".encode(), "utf-8"),
        ("é\n".encode() + b"\xff", "utf-8"),
        (b"caf\xe9\n", "latin-1"),
        (b"\x93caf\xe9\x94\n", "cp1252"),
        (b"#!/bin/x\n# -*- coding: koi8-r -*-\n\xcb\n", "koi8-r"),
        (b"# coding: utf-16\ncaf\xe9\n", "latin-1"),
        (b"# coding: idna\ncaf\xe9\n", "latin-1"),
    ],
)
def test_encoding_is_declared_or_guessed(data: bytes, encoding: str) -> None:
    assert decoded(data)[1] == encoding


async def called(before: bytes, pack: str, name: str, **arguments: Any) -> tuple[str, bytes]:
    """What one call said of ``a.py``, and what is in that afterwards."""
    async with FakeRuntime({"image": {"/repo/a.py": before}}).scope(SandboxSpec("image", workdir="/repo")) as sandbox:
        result = await Toolset.of([pack]).call(sandbox, name, json.dumps(arguments), timeout_s=5)
        return result.content, await sandbox.read_file("/repo/a.py")


LATIN = b"caf\xe9 = 1\nx = 2\n"


@pytest.mark.parametrize(("old", "new"), [("x = 2", "x = 'é'"), ("café = 1", "é = 1")])
async def test_edit_keeps_latin_1_encoding(old: str, new: str) -> None:
    _, left = await called(LATIN, "claude-code", "Edit", file_path="a.py", old_string=old, new_string=new)
    assert left == LATIN.replace(old.encode("latin-1"), new.encode("latin-1"))


async def test_patch_keeps_latin_1_encoding() -> None:
    patch = "*** Begin Patch\n*** Update File: a.py\n@@\n café = 1\n-x = 2\n+x = 'é'\n*** End Patch"
    _, left = await called(LATIN, "codex", "apply_patch", input=patch)
    assert left == b"caf\xe9 = 1\nx = '\xe9'\n"


async def test_character_outside_encoding_is_refused() -> None:
    said, left = await called(LATIN, "claude-code", "Edit", file_path="a.py", old_string="x = 2", new_string="x = '你'")
    assert "a.py: is no UTF-8 but reads as latin-1, which has no '你'" in said
    assert left == LATIN


async def test_view_names_the_encoding() -> None:
    said, _ = await called(LATIN, "claude-code", "Read", file_path="a.py")
    assert said == "     1\tcafé = 1\n     2\tx = 2\n[no UTF-8: read as latin-1]"


async def test_refusal_explains_undecodable_bytes() -> None:
    mixed = "é\n".encode() + LATIN
    said, _ = await called(mixed, "claude-code", "Edit", file_path="a.py", old_string="café = 1", new_string="y")
    assert "bytes that are no UTF-8 are shown as \\x.. and cannot be given" in said


async def test_edit_adding_nul_character_is_refused() -> None:
    for name, arguments in (
        ("Write", {"content": "a\0"}),
        ("Edit", {"old_string": "x = 2", "new_string": "\0"}),
    ):
        said, left = await called(LATIN, "claude-code", name, file_path="a.py", **arguments)
        assert "with a NUL character it would be a binary file" in said
        assert left == LATIN
