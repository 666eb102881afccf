"""Replays ``corpus_PACK.json``: calls of a pack and their results, to the character.

A case: ``files`` that are there at first and ``leaves`` at the end (bytes as latin-1); ``programs`` where it needs
those of the toolbox and so a real sandbox; ``library`` where code is searched. A call's ``arguments`` are an object or
raw text; ``content`` is the whole answer, ``holds`` are parts of it; fields not named have their defaults.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandboxes.interface import Runtime
from sandboxes.search.embeddings.load import NONE
from sandboxes.search.index_store import IndexStore
from sandboxes.spec import SandboxSpec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.tools import Toolset
from sandboxes.tools.packs import PACKS

CORPORA: dict[str, list[dict[str, Any]]] = {
    pack: json.loads(Path(__file__).with_name(f"corpus_{pack}.json").read_text()) for pack in PACKS
}
CASES = [(pack, case) for pack, corpus in CORPORA.items() for case in corpus]
FIELDS = {"error_kind": None, "exit_code": None, "timed_out": False, "truncated": False, "done": False}


def named(cases: list[tuple[str, dict[str, Any]]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("pack", "case"), cases, ids=[f"{pack}: {case['case']}" for pack, case in cases])


@pytest.fixture
async def library() -> AsyncIterator[IndexStore]:
    async with IndexStore(None, embedder=NONE) as library:
        yield library


async def replay(pack: str, case: dict[str, Any], runtime: Runtime, image: str, library: IndexStore) -> None:
    tools = Toolset.of([pack], index_store=library)
    async with runtime.scope(SandboxSpec(image, workdir="/repo")) as sandbox:
        for path, content in case.get("files", {}).items():
            await sandbox.write_file(path, content.encode("latin-1"), parents=True)
        for call in case["calls"]:
            arguments = call["arguments"]
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            result = await tools.call(sandbox, call["tool"], text, timeout_s=30)
            assert result.content == call.get("content", result.content), call
            assert [part for part in call.get("holds", ()) if part not in result.content] == [], result.content
            shown = {name: getattr(result, name) for name in FIELDS}
            assert shown == {name: call.get(name, default) for name, default in FIELDS.items()}, call
        for path, content in case.get("leaves", {}).items():
            assert await sandbox.read_file(path) == content.encode("latin-1")


@named([(pack, case) for pack, case in CASES if not case.get("programs")])
async def test_corpus_replays_in_fake_sandbox(pack: str, case: dict[str, Any], library: IndexStore) -> None:
    await replay(pack, case, FakeRuntime({"image": {"/repo/": b""}}), "image", library)


@pytest.mark.docker
@named(CASES)
async def test_corpus_replays_in_docker_sandbox(
    pack: str, case: dict[str, Any], docker_runtime: Runtime, test_image: str, library: IndexStore
) -> None:
    await replay(pack, case, docker_runtime, test_image, library)


@pytest.mark.parametrize("pack", PACKS)
def test_every_tool_of_pack_has_corpus_case(pack: str) -> None:
    called = {call["tool"] for case in CORPORA[pack] for call in case["calls"]}
    assert set(PACKS[pack].tools) <= called
