"""``codebase_search`` in real sandboxes, and what it tells of what it cannot do."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandboxes.interface import Runtime, Sandbox
from sandboxes.search.embeddings.load import NONE
from sandboxes.search.index_store import IndexStore
from sandboxes.spec import SandboxSpec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.tools import ToolErrorKind, ToolResult, Toolset
from sandboxes.tools.packs.default.codebase_search import SNIPPET_LINES, CodebaseSearch
from sandboxes.tools.result_limit import MAX_CHARS

BUSYBOX = "/.farm/bin/busybox"
SHOP = """\
import os


def remove_cookie(jar):
    # A cookie goes for good.
    del jar["cookie"]


class Url:
    def join(self, base):
        return base + "/"
"""


@pytest.fixture
async def library() -> AsyncIterator[IndexStore]:
    async with IndexStore(None, embedder=NONE) as library:
        yield library


class Hands:
    def __init__(self, sandbox: Sandbox, library: IndexStore, max_chars: int = MAX_CHARS) -> None:
        self.sandbox = sandbox
        self.tools = Toolset([CodebaseSearch(max_chars, library)], max_chars=max_chars)

    async def search(self, query: str, timeout_s: float = 60, **arguments: Any) -> ToolResult:
        asked = json.dumps({"query": query, **arguments})
        return await self.tools.call(self.sandbox, "codebase_search", asked, timeout_s=timeout_s)

    async def run(self, command: str) -> None:
        done = await self.sandbox.shell(command, timeout_s=30)
        assert done.exit_code == 0, done.stdout.head


@pytest.fixture
async def faked(library: IndexStore) -> AsyncIterator[Hands]:
    files = {"/repo/shop/sale.py": SHOP.encode(), "/repo/notes.md": b"Cookies go stale.\n"}
    async with FakeRuntime({"image": files}).scope(SandboxSpec("image", workdir="/repo")) as sandbox:
        yield Hands(sandbox, library)


async def test_result_shows_location_definition_and_first_lines(faked: Hands) -> None:
    result = await faked.search("how is a cookie removed?", limit=1)
    assert result.error_kind is None
    assert result.content == (
        "shop/sale.py:4-6  remove_cookie\n"
        "     4\tdef remove_cookie(jar):\n"
        "     5\t    # A cookie goes for good.\n"
        '     6\t    del jar["cookie"]'
    )


async def test_repeated_query_returns_same_results(faked: Hands) -> None:
    first = await faked.search("cookie")
    assert [(await faked.search("cookie")).content for _ in range(3)] == [first.content] * 3
    at_once = await asyncio.gather(*(faked.search("cookie") for _ in range(4)))
    assert [result.content for result in at_once] == [first.content] * 4


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (None, ["shop/sale.py:4-6", "notes.md:1-1"]),
        ("shop", ["shop/sale.py:4-6"]),
        ("/repo/shop/../shop/sale.py", ["shop/sale.py:4-6"]),
        (".", ["shop/sale.py:4-6", "notes.md:1-1"]),
    ],
)
async def test_path_argument_narrows_the_search(faked: Hands, path: str | None, found: list[str]) -> None:
    result = await faked.search("cookie", path=path)
    heads = [block.split("\n")[0].split("  ")[0] for block in result.content.split("\n\n")]
    assert heads == found


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"query": "?!"}, "error: the query holds no word: say what the code does"),
        ({"query": "x", "path": "/etc"}, "error: /etc: outside of /repo, which is all that is indexed; use grep"),
        ({"query": "x", "path": "../x"}, "error: ../x: outside of /repo, which is all that is indexed; use grep"),
        ({"query": "x", "path": "nowhere"}, "error: nowhere: no file there is indexed; use glob to see what there is"),
    ],
)
async def test_unsearchable_request_is_refused(faked: Hands, arguments: dict[str, Any], told: str) -> None:
    result = await faked.search(**arguments)
    assert result.error_kind is ToolErrorKind.REFUSED
    assert result.content == told


async def test_search_without_results_is_no_error(faked: Hands) -> None:
    result = await faked.search("zebra")
    assert (result.content, result.error_kind) == ("No results.", None)


async def test_sandbox_without_workdir_is_not_searched(library: IndexStore) -> None:
    async with FakeRuntime({"image": {}}).scope(SandboxSpec("image")) as sandbox:
        result = await Hands(sandbox, library).search("cookie")
    assert result.content == "error: the working directory is /, which is no repository: use grep with a path"


async def test_timeout_is_reported_while_indexing_continues(faked: Hands) -> None:
    hurried = await faked.search("cookie", timeout_s=0.001)
    assert hurried.timed_out
    assert hurried.error_kind is ToolErrorKind.TIMEOUT
    assert "indexing goes on, so ask again later" in hurried.content
    assert (await faked.search("cookie")).content.startswith("shop/sale.py:4-6")


async def test_long_definitions_and_lines_are_shortened(faked: Hands) -> None:
    body = "".join(f"    x{number} = {number}\n" for number in range(30))
    await faked.sandbox.write_file("/repo/long.py", f"def zebra():  # {'z' * 300}\n{body}".encode())
    lines = (await faked.search("zebra")).content.split("\n")
    assert lines[0] == "long.py:1-31  zebra"
    assert len(lines) == 1 + SNIPPET_LINES
    assert lines[1].endswith("…")


async def test_no_result_is_longer_than_the_limit(library: IndexStore) -> None:
    files = {f"/repo/m{number}.py": b"def cookie():\n" + b"    cookie = 1\n" * 20 for number in range(60)}
    async with FakeRuntime({"image": files}).scope(SandboxSpec("image", workdir="/repo")) as sandbox:
        result = await Hands(sandbox, library, max_chars=2000).search("cookie", limit=50)
    assert result.truncated
    assert len(result.content) <= 2000
    assert result.content.endswith("more results: narrow the query or path, or lower limit]")


@pytest.mark.docker
async def test_search_finds_code_and_later_changes(
    either_runtime: Runtime, test_image: str, library: IndexStore
) -> None:
    async with either_runtime.scope(SandboxSpec(test_image, workdir="/repo")) as sandbox:
        hands = Hands(sandbox, library)
        await sandbox.write_file("/repo/shop/sale.py", SHOP.encode(), parents=True)
        await sandbox.write_file("/repo/app.js", b"export const bakeCookie = () => {\n  return 1;\n};\n")
        found = await hands.search("who bakes a cookie?")
        assert found.content.startswith("app.js:1-3  bakeCookie\n     1\texport const bakeCookie")
        await hands.run("printf 'def bake_bread(): pass\\n' > bread.py; mv shop/sale.py shop/trade.py; rm app.js")
        assert (await hands.search("bake")).content == "bread.py:1-1  bake_bread\n     1\tdef bake_bread(): pass"
        assert (await hands.search("remove cookie")).content.startswith("shop/trade.py:4-6  remove_cookie")
        assert (await hands.search("cookie", path="shop", limit=1)).content.startswith("shop/trade.py:4-6")


@pytest.mark.docker
async def test_hostile_tree_does_no_harm(either_runtime: Runtime, test_image: str, library: IndexStore) -> None:
    async with either_runtime.scope(SandboxSpec(test_image, workdir="/repo")) as sandbox:
        hands = Hands(sandbox, library)
        await sandbox.write_file("/repo/sale.py", SHOP.encode())
        await sandbox.write_file("/repo/deep.py", b"x = " + b"(" * 200_000)
        await sandbox.write_file("/repo/elif.py", b"if x:\n pass\n" + b"elif x:\n pass\n" * 20_000)
        await sandbox.write_file("/repo/many.py", b"def f():0\n" * 40_000)
        await sandbox.write_file("/repo/deep.js", b"{" * 200_000)
        await sandbox.write_file("/repo/" + os.fsdecode(b"c\xe9\n\x1b[31mookie.py"), b"def \xff(): cookie\n")
        await hands.run(
            f"B={BUSYBOX}; $B mkfifo pipe.py; $B ln -s /dev/zero zero.py; $B ln -s / root; $B ln -s . loop;"
            "$B dd if=/dev/zero of=sparse.py bs=1 count=0 seek=9000000 2>/dev/null;"
            "d=.; for i in {1..150}; do d=$d/d; done; $B mkdir -p $d; echo 'def cookie_below(): pass' > $d/x.py"
        )
        found = await hands.search("cookie", limit=50)
        assert found.error_kind is None
        assert "sale.py:4-6  remove_cookie" in found.content
        assert "c\\xe9␊␛[31mookie.py:1-1" in found.content
        assert "d/d/d/x.py:1-1  cookie_below" in found.content
        assert not any(name in found.content for name in ("pipe.py", "zero.py", "sparse.py"))
