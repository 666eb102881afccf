"""The engine: many requests advance together, one token each round, and weights change between two rounds.

After a change of weights the context of each running request is computed again with the new weights, as in vLLM with
``clear_cache``. So each token's log-probability is the one that a fresh pass over the whole context gives.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from farm.model_server.errors import ContextTooLong, EngineFrozen, RequestError
from farm.model_server.generation import ABORT, Disturbance, Generation, Span
from farm.model_server.model import PrefixCache, State, check_ids, load_model
from farm.model_server.sampling import Sampler, SamplingParams, check_params, top_tokens

_log = logging.getLogger(__name__)

Mode = Literal["keep", "abort", "wait"]
"""The fate of running requests at a pause or a change of weights: they go on, end at once, or end before it."""

PREFILL_TOKENS = 2048
"""The maximum number of prompt tokens in one round, so that a long prompt does not hold up running requests."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """``latency_s``: the time that each token takes in addition to its computation. ``max_running``: batch size."""

    seed: int = 0
    version: int = 1
    max_model_len: int = 32_768
    latency_s: float = 0.0
    max_running: int = 256


@dataclass(slots=True)
class EngineMetrics:
    """Counts since the start. ``finished`` counts requests by their finish reason."""

    requests: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_hit_tokens: int = 0
    weight_updates: int = 0


class Engine:
    """The engine of one model. Use it as ``async with running_engine(config)``. ``closed`` is set at its end."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.metrics = EngineMetrics()
        self.model = load_model(config.seed, config.version)
        self._cache = PrefixCache()
        self._waiting: deque[Generation] = deque()
        self._running: dict[int, Generation] = {}
        self._numbers = 0
        self._frozen = False
        self._paused = False
        self._draining = 0
        self.closed = asyncio.Event()
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def version(self) -> int:
        return self.model.version

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_paused(self) -> bool:
        return self._paused

    def room(self, prompt_tokens: int) -> int:
        """Return the number of tokens that a reply to a prompt may have. Raises ContextTooLong if it is zero."""
        room = self.config.max_model_len - prompt_tokens
        if room < 1:
            raise ContextTooLong(
                f"This model's maximum context length is {self.config.max_model_len} tokens. However, your request has "
                f"{prompt_tokens} input tokens. Please reduce the length of the input messages."
            )
        return room

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str = "",
        disturbance: Disturbance | None = None,
    ) -> Generation:
        """Add a request. Raises ContextTooLong, and RequestError for ids or parameters that are out of range."""
        check_params(params)
        check_ids(prompt_ids, self.model.tokenizer.size)
        if not prompt_ids:
            raise RequestError("the prompt has no tokens", "prompt")
        if params.max_tokens > self.room(len(prompt_ids)):
            raise ContextTooLong(
                f"This model's maximum context length is {self.config.max_model_len} tokens. However, you requested "
                f"{len(prompt_ids) + params.max_tokens} tokens ({len(prompt_ids)} in the messages, {params.max_tokens} "
                "in the completion). Please reduce the length of the messages or completion."
            )
        self._numbers += 1
        sampler = Sampler(params, self.config.seed + self._numbers)
        generation = Generation(self._numbers, prompt_ids, params, sampler, request_id or f"request-{self._numbers}")
        generation.disturbance = disturbance or Disturbance()
        self.metrics.requests += 1
        self.metrics.prompt_tokens += len(prompt_ids)
        if self.closed.is_set():
            self._finish(generation, ABORT)
        else:
            self._waiting.append(generation)
            self._wake.set()
        return generation

    def abort(self, generation: Generation) -> None:
        """End a request with its tokens so far. A request that has ended stays as it is."""
        if generation.finish_reason is None:
            with suppress(ValueError):
                self._waiting.remove(generation)
            self._finish(generation, ABORT)

    def abort_id(self, request_id: str) -> None:
        """End the requests of this id."""
        for generation in [*self._running.values(), *self._waiting]:
            if generation.id == request_id:
                self.abort(generation)

    def abort_all(self) -> None:
        """End all requests, also those that wait."""
        for generation in [*self._running.values(), *self._waiting]:
            self.abort(generation)

    def clear_cache(self) -> None:
        """Empty the prefix cache."""
        self._cache = PrefixCache()

    async def set_version(self, version: int, mode: Mode = "keep") -> None:
        """Load the weights of a version. Raises EngineFrozen if ``wait`` would wait for requests that a pause keeps.

        ``keep``: running requests continue with the new weights. ``abort``: they end with their tokens so far.
        ``wait``: they end first, and new requests wait for the new weights.
        """
        await self._end_running(mode)
        self.model = load_model(self.config.seed, version)
        self._cache = PrefixCache()
        for generation in self._running.values():
            generation.state = None
        self.metrics.weight_updates += 1
        self._wake.set()

    async def pause(self, mode: Mode = "abort") -> None:
        """Stop until ``resume``; new requests wait. Raises EngineFrozen as ``set_version`` does.

        ``keep``: running requests stop and keep their tokens. ``abort`` and ``wait``: as for ``set_version``.
        """
        await self._end_running(mode)
        self._frozen = self._frozen or mode == "keep"
        self._paused = True

    def resume(self) -> None:
        self._frozen = self._paused = False
        self._wake.set()

    async def run(self) -> None:
        """Serve until ``close``. All requests end when this ends."""
        try:
            while not self.closed.is_set():
                self._wake.clear()
                pause_s = self._round(time.monotonic())
                if pause_s == 0.0:
                    await asyncio.sleep(0)
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause_s):
                            await self._wake.wait()
        except Exception:  # a bug must not leave callers waiting; `running_engine` raises it again
            _log.exception("the engine failed; this is a bug in the farm")
            raise
        finally:
            self.closed.set()
            self.abort_all()

    def close(self) -> None:
        """End all requests, also later ones, and make ``run`` return."""
        self.closed.set()
        self.abort_all()
        self._wake.set()

    async def _end_running(self, mode: Mode) -> None:
        """End running requests as a mode demands. With ``wait``, no request is admitted meanwhile."""
        if mode == "abort":
            self.abort_all()
        if mode != "wait":
            return
        if self._frozen and self._running:
            raise EngineFrozen(f"{len(self._running)} requests are kept by a pause; resume the engine before mode wait")
        self._draining += 1
        try:
            await self._drained.wait()
        finally:
            self._draining -= 1
            self._wake.set()

    def _round(self, now: float) -> float | None:
        """Sample one token for each request that is due. Return the seconds until the next one, None for no request."""
        if self._frozen:
            return None
        self._admit()
        due = [generation for generation in self._running.values() if generation.next_at <= now]
        ready = self._prefill(due)
        if ready:
            self._sample(ready, now)
        if not self._running:
            return 0.0 if self._waiting and not self._holds else None
        return max(0.0, min(generation.next_at for generation in self._running.values()) - now)

    @property
    def _holds(self) -> bool:
        return self._paused or self._draining > 0

    def _admit(self) -> None:
        while self._waiting and not self._holds and len(self._running) < self.config.max_running:
            generation = self._waiting.popleft()
            self._running[generation.number] = generation
            self._drained.clear()

    def _prefill(self, due: Sequence[Generation]) -> list[Generation]:
        """Compute contexts within the limit of a round. Return the requests whose context is complete."""
        ready, left = [], PREFILL_TOKENS
        for generation in due:
            if generation.state is None:
                context = [*generation.prompt_ids, *generation.tokens]
                generation.state = State(self.model, context, self._cache)
                if not generation.tokens:
                    generation.cached_tokens = generation.state.cached
                    self.metrics.prefix_hit_tokens += generation.state.cached
            if generation.state.missing and left:
                left -= generation.state.prefill(left)
            if not generation.state.missing:
                ready.append(generation)
        return ready

    def _sample(self, ready: Sequence[Generation], now: float) -> None:
        states = [generation.state for generation in ready if generation.state is not None]
        rows = self.model.logprobs(states)
        tokens: list[int] = []
        for generation, state, row in zip(ready, states, rows, strict=True):
            params = generation.params
            allowed = self.model.prior.allowed(state.position) if params.require_call else None
            token = generation.sampler.draw(row, self._forbidden(generation), allowed)
            tokens.append(token)
            generation.tokens.append(token)
            generation.logprobs.append(float(row[token]))
            generation.top.append(top_tokens(row, params.top_logprobs))
        self.model.advance(states, tokens)
        self.metrics.generated_tokens += len(tokens)
        for generation in ready:
            self._settle(generation, now)

    def _forbidden(self, generation: Generation) -> Sequence[int]:
        """Return the tokens that may not be sampled next: those that end a reply before its ``min_tokens``."""
        params = generation.params
        if len(generation.tokens) >= params.min_tokens:
            return ()
        return (*self.model.tokenizer.ends, *params.stop_token_ids)

    def _settle(self, generation: Generation, now: float) -> None:
        """Record the span of the newest token, and end the request if it stops here."""
        number, version = len(generation.tokens), self.model.version
        if generation.spans and generation.spans[-1].version == version:
            generation.spans[-1].end = number
        else:
            generation.spans.append(Span(version, number - 1, number))
        generation.version = version
        disturbance = generation.disturbance
        latency_s = self.config.latency_s if disturbance.latency_s is None else disturbance.latency_s
        stall_s = disturbance.stall_s if number == disturbance.stall_after else 0.0
        generation.next_at = now + latency_s + stall_s if latency_s or stall_s else 0.0
        reason = self._reason(generation)
        if reason is None:
            generation.notify()
        else:
            self._finish(generation, reason)

    def _reason(self, generation: Generation) -> str | None:
        params, token = generation.params, generation.tokens[-1]
        number = len(generation.tokens)
        if token in params.stop_token_ids or (token in self.model.tokenizer.ends and not params.ignore_eos):
            generation.matched = token
            return "stop"
        if params.stop and number >= params.min_tokens:
            longest = max(len(stop.encode()) for stop in params.stop)
            tail = self.model.tokenizer.decode(generation.tokens[-longest:], skip_control=True)
            generation.matched = next((stop for stop in params.stop if stop in tail), None)
            if generation.matched is not None:
                return "stop"
        if number >= params.max_tokens:
            return "length"
        return ABORT if number == generation.disturbance.abort_after else None

    def _finish(self, generation: Generation, reason: str) -> None:
        generation.finish_reason = reason
        generation.version = generation.version or self.model.version
        generation.state = None
        self._running.pop(generation.number, None)
        self.metrics.finished[reason] += 1
        if not self._running:
            self._drained.set()
        generation.notify()


@asynccontextmanager
async def running_engine(config: EngineConfig) -> AsyncIterator[Engine]:
    """Run an engine for the length of the block."""
    engine = Engine(config)
    task = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        engine.close()
        await task
