"""One reply in the making: its tokens, log-probabilities and weight spans, and how it ends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from farm.model_server.model import State
from farm.model_server.sampling import Sampler, SamplingParams
from farm.model_server.tokenizer import Tokenizer

ABORT = "abort"


@dataclass(slots=True)
class Span:
    """The tokens from ``start`` to before ``end`` of a reply were sampled by the weights ``version``."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A fault of one reply: a time for each token, a pause after some tokens, or an end after some tokens."""

    latency_s: float | None = None
    stall_after: int | None = None
    stall_s: float = 0.0
    abort_after: int | None = None


class Generation:
    """One reply in the making. ``finish_reason`` is ``stop``, ``length`` or ``abort``, or None until the end.

    ``matched`` is the stop string or the token id that ended the reply, None if neither did. ``cached_tokens`` counts
    prompt tokens from the prefix cache. ``version`` is the newest weight version that the reply has met.
    """

    def __init__(
        self, number: int, prompt_ids: Sequence[int], params: SamplingParams, sampler: Sampler, request_id: str
    ) -> None:
        self.number = number
        self.id = request_id
        self.prompt_ids = list(prompt_ids)
        self.params = params
        self.sampler = sampler
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.top: list[tuple[tuple[int, float], ...]] = []
        self.spans: list[Span] = []
        self.finish_reason: str | None = None
        self.matched: str | int | None = None
        self.cached_tokens = 0
        self.version = 0
        self.state: State | None = None
        self.next_at = 0.0
        self.disturbance = Disturbance()
        self._changed = asyncio.Event()
        self.ended = asyncio.Event()

    async def updates(self) -> AsyncIterator[None]:
        """Yield after new tokens, and a last time after the end. Only one caller may iterate."""
        is_last = False
        while not is_last:
            await self._changed.wait()
            self._changed.clear()
            is_last = self.finish_reason is not None
            yield

    def notify(self) -> None:
        self._changed.set()
        if self.finish_reason is not None:
            self.ended.set()


def reply_text(generation: Generation, tokenizer: Tokenizer) -> str:
    """Return the text of a reply so far, without the stop string and without a text that may become one."""
    tokens = generation.tokens
    if isinstance(generation.matched, int):
        tokens = tokens[:-1]
    data = tokenizer.decode_bytes(tokens, skip_control=True)
    if isinstance(generation.matched, str):
        return data.decode(errors="replace").partition(generation.matched)[0]
    if generation.finish_reason is not None:
        return data.decode(errors="replace")
    text = data[: len(data) - _open_bytes(data)].decode(errors="replace")
    held = max((len(stop) for stop in generation.params.stop), default=1) - 1
    return text[: len(text) - held]


def _open_bytes(data: bytes) -> int:
    """Return the number of bytes at the end that are the start of a longer UTF-8 character."""
    for size in range(1, min(4, len(data) + 1)):
        byte = data[-size]
        if byte >= 0xC0:
            return size if size < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            return 0
    return 0
