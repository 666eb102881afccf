"""An operator's token is stolen: rule documents whose parsing takes long. The gateway answers others meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from farm.rewards.rules import MAX_KEY_PARTS, MAX_RULES_CHARS, MAX_TERMS
from farm.store import Store
from tests.support.attacks.called_threads import called_threads
from tests.support.attacks.child import output_of
from tests.support.gateway_server import AS_OPERATOR, running_gateway
from tests.support.redis_server import running_store

pytestmark = pytest.mark.redis

LONG_KEY = '"="' + '."="' * 8_000
DOUBLE = 'name = "double"\n[weights]\nverdict = 2.0\n'


def filled(line: str, before: str = "") -> str:
    """Repeat a line, in which ``#`` is its number, up to the longest document."""
    lines, size = [before], len(before)
    while size + len(line) + 5 < MAX_RULES_CHARS:
        lines.append(line.replace("#", str(len(lines))))
        size += len(lines[-1])
    return "".join(lines)


HOSTILE = {
    "a key of 8,000 parts": (filled("b#=1\n", f"[{LONG_KEY}]\n"), f"a key has more than {MAX_KEY_PARTS} parts"),
    "99 parts in each line": (filled(f"{'a.' * 98}b#=1\n"), f"a key has more than {MAX_KEY_PARTS} parts"),
    "99 parts in the header": (filled("b#=1\n", f"[{'a.' * 98}a]\n"), f"a key has more than {MAX_KEY_PARTS} parts"),
    "many weights": (filled("b#=1\n", DOUBLE), f"items; at most {MAX_TERMS} are allowed"),
    "many tables": (filled("[b#]\n", DOUBLE), f"items; at most {MAX_TERMS} are allowed"),
    "many items": (DOUBLE + "[gate]\notherwise=[" + "1," * 30_000 + "]\n", f"at most {MAX_TERMS} are allowed"),
    "many brackets": (DOUBLE + "a=" + "[" * 30_000, "nested too deeply"),
    "long number": (DOUBLE + "a=" + "9" * 30_000, "not TOML"),
}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    (tmp_path / "tasksets" / "demo").mkdir(parents=True)
    async with running_store(tmp_path) as opened:
        yield opened


@pytest.fixture
async def http(store: Store, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with running_gateway(store, tmp_path) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


def test_naive_parser_stalls_for_a_long_key(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(HOSTILE["a key of 8,000 parts"][0])
    assert output_of("import sys, tomllib\nbegin()\ntomllib.loads(open(sys.argv[1]).read())\n", str(path)) is None


@pytest.mark.parametrize(("document", "says"), HOSTILE.values(), ids=HOSTILE)
async def test_hostile_rules_are_refused_while_others_are_answered(
    http: httpx.AsyncClient, document: str, says: str
) -> None:
    assert len(document) <= MAX_RULES_CHARS
    put = http.put("/v1/rewards", json={"document": document}, headers=AS_OPERATOR)
    refused, *healthy = await asyncio.gather(put, *(http.get("/healthz") for _ in range(8)))
    assert {answer.status_code for answer in healthy} == {200}
    assert refused.status_code == 422
    assert says in refused.json()["detail"]
    assert len(refused.content) < 2_000


async def test_rules_are_parsed_beside_the_event_loop(store: Store) -> None:
    with called_threads("read_toml") as seen:
        put = await store.rules.put(DOUBLE, current=True)
        store.rules._parsed.clear()
        assert await store.rules.get(put.version) == put
    assert seen["read_toml"]
    assert threading.current_thread().name not in seen["read_toml"]
