"""The bounded cache of values that take a while to make."""

import asyncio

import pytest

from farm.async_lru import AsyncLru


async def test_concurrent_callers_share_one_value() -> None:
    cache, made = AsyncLru[str, int](2), 0

    async def make() -> int:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        return made

    assert await asyncio.gather(*(cache.get("a", make) for _ in range(3))) == [1, 1, 1]


async def test_the_value_used_longest_ago_is_evicted() -> None:
    cache = AsyncLru[str, str](2)
    for key in ("a", "b", "a", "c"):

        async def make(key: str = key) -> str:
            return key

        await cache.get(key, make)
    assert [cache.peek(key) for key in "abc"] == ["a", None, "c"]


async def test_failure_is_not_cached() -> None:
    cache = AsyncLru[str, int](2)

    async def fail() -> int:
        raise OSError("first")

    async def make() -> int:
        return 1

    with pytest.raises(OSError, match="first"):
        await cache.get("a", fail)
    assert await cache.get("a", make) == 1
