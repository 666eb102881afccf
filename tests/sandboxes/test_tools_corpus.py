"""Replays ``corpus_default.json``: calls of the default pack and their results, to the character.

A case: ``files`` that are there at first and ``leaves`` at the end (bytes as latin-1); ``programs`` where it needs
those of the toolbox and so a real sandbox. A call's ``arguments`` are an object or raw text; ``content`` is the whole
answer, ``holds`` are parts of it; fields not named have their defaults.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from sandboxes.runtimes.fake import FakeRuntime
from sandboxes.sandbox import Runtime
from sandboxes.spec import SandboxSpec
from sandboxes.tools import Toolset

CORPUS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("corpus_default.json").read_text())
FIELDS = {"error_kind": None, "exit_code": None, "timed_out": False, "truncated": False, "done": False}


def named(cases: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case["case"] for case in cases])


async def replay(case: dict[str, Any], runtime: Runtime, image: str) -> None:
    tools = Toolset.default()
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


@named([case for case in CORPUS if not case.get("programs")])
async def test_in_the_fake_sandbox(case: dict[str, Any]) -> None:
    await replay(case, FakeRuntime({"image": {"/repo/": b""}}), "image")


@pytest.mark.docker
@named(CORPUS)
async def test_in_a_real_sandbox(case: dict[str, Any], docker_runtime: Runtime, test_image: str) -> None:
    await replay(case, docker_runtime, test_image)
