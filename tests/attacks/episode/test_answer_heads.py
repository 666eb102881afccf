"""A model endpoint whose answers never come to their body, or whose refusals come in countless parts.

The HTTP parser takes both without a pause, in the event loop that all episodes of a node share.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import FrameType

import httpx
import pytest

from farm.policy.checked_transport import MAX_HEAD_BYTES
from farm.policy.openai_endpoint import MAX_REFUSAL_BYTES, PART_BYTES
from tests.attacks.episode.test_model_endpoint import Peer, ask, completion, naive, refused, serving

INTERIM = (b"HTTP/1.1 102 A\r\n\r\n", b"HTTP/1.1 103 A\r\n" + b"a:b\r\n" * 100 + b"\r\n", b"HTTP/1.1 100\n\n")
MOST = 4 * 1024 * 1024
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(completion()), completion())


def interim(answer: bytes, size: int) -> Callable[[Peer, asyncio.StreamWriter], Awaitable[None]]:
    """A play: so many bytes of interim answers, and then a right one."""

    async def play(peer: Peer, writer: asyncio.StreamWriter) -> None:
        await peer.send(writer, answer * (size // len(answer)))
        await peer.send(writer, WHOLE)

    return play


@asynccontextmanager
async def counted_events() -> AsyncIterator[list[str]]:
    """Yield a list with an item for each event that the HTTP parser is asked for in this thread."""
    asked: list[str] = []

    def observe(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "next_event":
            asked.append(event)

    before = sys.getprofile()
    sys.setprofile(observe)
    try:
        yield asked
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("answer", INTERIM)
async def test_interim_answers_are_bounded(answer: bytes) -> None:
    async with serving(interim(answer, MOST)) as peer, counted_events() as asked:
        assert (await naive(peer.url)).status_code == 200
        assert len(asked) > MOST // len(answer)
        asked.clear()
        assert "not HTTP" in await refused(peer.url)
        assert len(asked) < 2 * MAX_HEAD_BYTES // len(answer) + 100


async def test_other_tasks_run_between_interim_answers() -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with serving(interim(INTERIM[0], MAX_HEAD_BYTES // 2)) as peer, counted_events() as asked:
        other = asyncio.create_task(take_turns())
        assert (await ask(peer.url)).content == "hi"
        other.cancel()
    assert turns >= 8
    assert len(asked) > MAX_HEAD_BYTES // 2 // len(INTERIM[0])


@pytest.mark.parametrize("answers", [0, 3])
async def test_few_interim_answers_are_ordinary(answers: int) -> None:
    async with serving(interim(INTERIM[0], answers * len(INTERIM[0]))) as peer:
        assert (await ask(peer.url)).content == "hi"
        assert (await ask(peer.url)).content == "hi"


async def test_parts_of_a_refusal_are_bounded() -> None:
    parts = MAX_REFUSAL_BYTES - 1

    async def play(peer: Peer, writer: asyncio.StreamWriter) -> None:
        await peer.send(writer, b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n")
        await peer.send(writer, b"1\r\n \r\n" * parts + b"0\r\n\r\n")

    async with serving(play) as peer, counted_events() as asked:
        assert (await naive(peer.url)).status_code == httpx.codes.INTERNAL_SERVER_ERROR
        assert len(asked) > parts
        asked.clear()
        assert "500" in await refused(peer.url)
        assert len(asked) < 4 * MAX_REFUSAL_BYTES // PART_BYTES + 100
