"""The engine: batches, limits of replies, changes of weights in the middle of replies, pauses, and the prefix cache."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from farm.model_server.chat_template import ChatTemplate, parse_reply
from farm.model_server.engine import Engine, EngineConfig, running_engine
from farm.model_server.errors import ContextTooLong, EngineFrozen, RequestError
from farm.model_server.generation import Disturbance, Generation, reply_text
from farm.model_server.model import BLOCK
from farm.model_server.sampling import SamplingParams
from farm.model_server.tokenizer import load_tokenizer
from farm.model_server.verify import count_mismatches, recompute_logprobs

TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
PROMPT = ChatTemplate(load_tokenizer()).render([{"role": "user", "content": "Fix the tests."}], TOOLS)
LONG = SamplingParams(max_tokens=200, ignore_eos=True, seed=1)
CONFIG = EngineConfig()


async def reached(generation: Generation, tokens: int) -> None:
    """Wait until a reply has so many tokens."""
    async for _ in generation.updates():
        if len(generation.tokens) >= tokens:
            return


async def finished(engine: Engine, params: SamplingParams, prompt: Sequence[int] = PROMPT, **more: Any) -> Generation:
    generation = engine.submit(prompt, params, **more)
    await generation.ended.wait()
    return generation


def versions(generation: Generation) -> list[int]:
    return [span.version for span in generation.spans]


def assert_reproduced(generation: Generation) -> None:
    fresh = recompute_logprobs(CONFIG.seed, generation.prompt_ids, generation.tokens, generation.spans)
    assert count_mismatches(generation.logprobs, fresh.tolist(), 1e-9) == 0


async def test_batched_replies_equal_lone_replies() -> None:
    async with running_engine(CONFIG) as engine:
        alone = [await finished(engine, SamplingParams(60, seed=seed)) for seed in range(6)]
        batch = [engine.submit(PROMPT, SamplingParams(60, seed=seed)) for seed in range(6)]
        await asyncio.gather(*(generation.ended.wait() for generation in batch))
    assert [generation.tokens for generation in batch] == [generation.tokens for generation in alone]
    for generation in batch:
        assert_reproduced(generation)


async def test_reply_ends_by_its_limits() -> None:
    async with running_engine(CONFIG) as engine:
        cut = await finished(engine, SamplingParams(5, ignore_eos=True))
        assert (cut.finish_reason, len(cut.tokens)) == ("length", 5)
        ended = await finished(engine, SamplingParams(400, seed=3))
        assert (ended.finish_reason, ended.tokens[-1]) == ("stop", ended.matched)
        number = len(ended.tokens)
        longer = await finished(engine, SamplingParams(400, seed=3, min_tokens=number + 1))
        assert len(longer.tokens) > number
        chosen = ended.tokens[3]
        early = await finished(engine, SamplingParams(400, seed=3, stop_token_ids=frozenset([chosen])))
        assert early.tokens == ended.tokens[: ended.tokens.index(chosen) + 1]


async def test_stop_string_ends_the_text_before_it() -> None:
    tokenizer = load_tokenizer()
    async with running_engine(CONFIG) as engine:
        whole = await finished(engine, replace(LONG, max_tokens=60))
        text = reply_text(whole, tokenizer)
        stop = text[20:24]
        cut = await finished(engine, replace(LONG, max_tokens=60, stop=("never there", stop)))
    assert (cut.finish_reason, cut.matched) == ("stop", stop)
    assert reply_text(cut, tokenizer) == text.partition(stop)[0]
    assert stop in tokenizer.decode(cut.tokens)


async def test_required_call_is_well_formed() -> None:
    async with running_engine(CONFIG) as engine:
        for seed in range(10):
            generation = await finished(engine, SamplingParams(300, seed=seed, temperature=1.5, require_call=True))
            calls = parse_reply(reply_text(generation, load_tokenizer())).calls
            assert calls
            assert {call.name for call in calls} == {"read_file"}
            assert_reproduced(generation)


async def test_kept_reply_continues_with_new_weights() -> None:
    async with running_engine(CONFIG) as engine:
        generation = engine.submit(PROMPT, LONG)
        await reached(generation, 20)
        await engine.set_version(2, "keep")
        await reached(generation, 60)
        await engine.set_version(7, "keep")
        await generation.ended.wait()
    assert versions(generation) == [1, 2, 7]
    assert [span.start for span in generation.spans[1:]] == [span.end for span in generation.spans[:-1]]
    assert generation.spans[-1].end == len(generation.tokens) == 200
    assert_reproduced(generation)


async def test_tokens_after_new_weights_differ_from_old_weights() -> None:
    async with running_engine(CONFIG) as engine:
        generation = engine.submit(PROMPT, LONG)
        await reached(generation, 20)
        await engine.set_version(2)
        await generation.ended.wait()
    spans = generation.spans
    wrong = [replace(span) for span in spans]
    wrong[1].version = 1
    fresh = recompute_logprobs(CONFIG.seed, PROMPT, generation.tokens, wrong)
    assert count_mismatches(generation.logprobs, fresh.tolist()) > 100


async def test_abort_returns_tokens_so_far() -> None:
    async with running_engine(CONFIG) as engine:
        generation = engine.submit(PROMPT, LONG)
        await reached(generation, 10)
        await engine.set_version(2, "abort")
        assert generation.finish_reason == "abort"
        assert versions(generation) == [1]
        assert_reproduced(generation)
        rest = await finished(engine, replace(LONG, max_tokens=20), [*PROMPT, *generation.tokens])
    assert versions(rest) == [2]
    assert_reproduced(rest)


async def test_wait_lets_running_replies_end_first() -> None:
    async with running_engine(CONFIG) as engine:
        old = engine.submit(PROMPT, LONG)
        await reached(old, 10)
        update = asyncio.create_task(engine.set_version(2, "wait"))
        await reached(old, 12)
        new = engine.submit(PROMPT, replace(LONG, max_tokens=5))
        await update
        assert old.finish_reason == "length"
        await new.ended.wait()
    assert (versions(old), versions(new)) == ([1], [2])


async def test_abort_ends_replies_that_others_wait_for() -> None:
    async with running_engine(CONFIG) as engine:
        stalled = engine.submit(PROMPT, LONG, disturbance=Disturbance(stall_after=4, stall_s=3600.0))
        await reached(stalled, 4)
        update = asyncio.create_task(engine.set_version(2, "wait"))
        await asyncio.sleep(0)
        assert not update.done()
        await engine.pause("abort")
        await update
        engine.resume()
        assert (stalled.finish_reason, engine.version) == ("abort", 2)
        assert versions(await finished(engine, replace(LONG, max_tokens=3))) == [2]


async def test_pause_keeps_replies_until_resume() -> None:
    async with running_engine(CONFIG) as engine:
        generation = engine.submit(PROMPT, LONG)
        await reached(generation, 10)
        await engine.pause("keep")
        number = len(generation.tokens)
        late = engine.submit(PROMPT, replace(LONG, max_tokens=3))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (len(generation.tokens), late.tokens, engine.is_paused) == (number, [], True)
        with pytest.raises(EngineFrozen, match="resume the engine"):
            await engine.set_version(2, "wait")
        await engine.set_version(2, "keep")
        engine.resume()
        await asyncio.gather(generation.ended.wait(), late.ended.wait())
    assert (versions(generation), versions(late)) == ([1, 2], [2])
    assert_reproduced(generation)


@pytest.mark.parametrize(("mode", "reason"), [("abort", "abort"), ("wait", "length")])
async def test_pause_ends_replies_in_its_mode(mode: Any, reason: str) -> None:
    async with running_engine(CONFIG) as engine:
        generation = engine.submit(PROMPT, LONG)
        await reached(generation, 10)
        await engine.pause(mode)
        assert generation.finish_reason == reason
        late = engine.submit(PROMPT, replace(LONG, max_tokens=3))
        for _ in range(20):
            await asyncio.sleep(0)
        assert late.tokens == []
        engine.resume()
        await late.ended.wait()
    assert len(late.tokens) == 3


async def test_requests_are_aborted_by_their_id() -> None:
    async with running_engine(replace(CONFIG, max_running=1)) as engine:
        running, waiting = (engine.submit(PROMPT, LONG, request_id=name) for name in ("a", "b"))
        await reached(running, 5)
        assert (engine.running, engine.waiting) == (1, 1)
        engine.abort_id("b")
        assert (waiting.finish_reason, running.finish_reason, waiting.tokens) == ("abort", None, [])
        engine.abort_id("a")
        assert running.finish_reason == "abort"
        assert engine.metrics.finished == {"abort": 2}


async def test_prefix_of_earlier_request_is_cached() -> None:
    async with running_engine(CONFIG) as engine:
        first = await finished(engine, replace(LONG, max_tokens=2 * BLOCK))
        turn = [*PROMPT, *first.tokens, *load_tokenizer().encode("more")]
        second = await finished(engine, replace(LONG, max_tokens=5), turn)
        whole_blocks = (len(turn) - 1) // BLOCK * BLOCK
        assert (first.cached_tokens, second.cached_tokens) == (0, whole_blocks)
        assert engine.metrics.prefix_hit_tokens == whole_blocks
        assert_reproduced(second)
        await engine.set_version(2)
        assert (await finished(engine, replace(LONG, max_tokens=5), turn)).cached_tokens == 0


async def test_long_prompt_is_computed_in_parts() -> None:
    async with running_engine(CONFIG) as engine:
        short = engine.submit(PROMPT, replace(LONG, max_tokens=3))
        long = engine.submit(PROMPT * 60, replace(LONG, max_tokens=3))
        await short.ended.wait()
        assert long.tokens == []
        await long.ended.wait()
        assert_reproduced(long)


async def test_request_beyond_the_context_is_refused() -> None:
    async with running_engine(replace(CONFIG, max_model_len=len(PROMPT) + 4)) as engine:
        with pytest.raises(ContextTooLong, match=r"This model's maximum context length is \d+ tokens"):
            engine.submit(PROMPT, SamplingParams(5))
        with pytest.raises(ContextTooLong, match=r"This model's maximum context length is \d+ tokens"):
            engine.room(len(PROMPT) + 4)
        assert (await finished(engine, SamplingParams(4, ignore_eos=True))).finish_reason == "length"
        for prompt in ([], [10**6]):
            with pytest.raises(RequestError):
                engine.submit(prompt, SamplingParams(1))
    assert engine.metrics.requests == 1


async def test_disturbed_reply_is_aborted_after_its_tokens() -> None:
    async with running_engine(CONFIG) as engine:
        generation = await finished(engine, LONG, disturbance=Disturbance(abort_after=7))
    assert (generation.finish_reason, len(generation.tokens)) == ("abort", 7)


async def test_stalled_reply_lets_others_pass() -> None:
    async with running_engine(CONFIG) as engine:
        stalled = engine.submit(PROMPT, LONG, disturbance=Disturbance(stall_after=4, stall_s=3600.0))
        other = await finished(engine, LONG)
        assert (len(stalled.tokens), len(other.tokens)) == (4, 200)
        engine.abort(stalled)
        slow = engine.submit(PROMPT, LONG, disturbance=Disturbance(latency_s=3600.0))
        await finished(engine, LONG)
        assert len(slow.tokens) == 1


async def test_closed_engine_ends_every_request() -> None:
    async with running_engine(CONFIG) as engine:
        generation = engine.submit(PROMPT, LONG)
        await reached(generation, 5)
    assert generation.finish_reason == "abort"
    assert engine.submit(PROMPT, LONG).finish_reason == "abort"
