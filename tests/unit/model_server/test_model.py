"""The model: one distribution for incremental sampling and fresh passes, that weights and the whole context change."""

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.model_server.chat_template import ChatTemplate, parse_reply
from farm.model_server.errors import RequestError
from farm.model_server.model import BLOCK, LanguageModel, PrefixCache, load_model
from farm.model_server.sampling import Sampler, SamplingParams
from farm.model_server.tokenizer import load_tokenizer


def tool(name: str, properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


SPECIAL = sorted(load_tokenizer().special.values())
TOOLS = [
    tool("read_file", {"path": {"type": "string"}, "limit": {"type": "integer"}}, ["path"]),
    tool("read", {"names": {"type": "array", "items": {"type": "string"}}}, ["names"]),
    tool(
        "frob", {"mode": {"enum": ["fast", "slow"]}, "n": {"type": "integer"}, "x": {"type": "boolean"}}, ["mode", "n"]
    ),
    tool("submit", {}, []),
]
REQUIRED = {"read_file": {"path"}, "read": {"names"}, "frob": {"mode", "n"}, "submit": set()}


@cache
def prompt(with_tools: bool = True) -> tuple[int, ...]:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Fix src/main.py"}]
    return tuple(ChatTemplate(load_tokenizer()).render(messages, TOOLS if with_tools else []))


def sample(model: LanguageModel, ids: Sequence[int], seed: int) -> tuple[list[int], list[float]]:
    """Return a reply and its log-probabilities, token by token."""
    state, sampler = model.start(ids), Sampler(SamplingParams(max_tokens=300), seed)
    tokens: list[int] = []
    logprobs: list[float] = []
    while len(tokens) < 300 and not (tokens and tokens[-1] in model.tokenizer.ends):
        row = state.logprobs()
        token = sampler.draw(row, ())
        tokens.append(token)
        logprobs.append(float(row[token]))
        state.push(token)
    return tokens, logprobs


@cache
def replies() -> tuple[tuple[list[int], list[float]], ...]:
    return tuple(sample(load_model(0, 1), prompt(), seed) for seed in range(80))


def test_every_distribution_is_finite_and_sums_to_one() -> None:
    model = load_model(0, 1)
    for tokens, _ in replies()[:10]:
        state = model.start(prompt())
        for token in tokens:
            row = state.logprobs()
            assert np.isfinite(row).all()
            assert np.exp(row).sum() == pytest.approx(1.0, abs=1e-12)
            state.push(token)


def test_fresh_pass_gives_the_sampled_logprobs() -> None:
    model = LanguageModel(0, 1)
    for tokens, logprobs in replies()[:20]:
        assert model.logprobs_of(prompt(), tokens) == pytest.approx(logprobs, abs=1e-9)


def test_logprobs_do_not_depend_on_prompt_boundary() -> None:
    model = load_model(0, 1)
    tokens, logprobs = replies()[0]
    half = len(tokens) // 2
    assert model.logprobs_of([*prompt(), *tokens[:half]], tokens[half:]) == pytest.approx(logprobs[half:], abs=1e-9)


def test_batched_steps_equal_single_steps() -> None:
    model = load_model(0, 1)
    chosen = [tokens[:20] for tokens, _ in replies() if len(tokens) >= 20][:8]
    states = [model.start(prompt()) for _ in chosen]
    for step in range(20):
        rows = model.logprobs(states)
        for index, tokens in enumerate(chosen):
            single = model.logprobs_of(prompt(), tokens[: step + 1])[step]
            assert rows[index, tokens[step]] == pytest.approx(single, abs=1e-9)
        model.advance(states, [tokens[step] for tokens in chosen])


@given(st.lists(st.integers(0, load_tokenizer().size - 1) | st.sampled_from(SPECIAL), max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_tokens_give_a_finite_distribution(tokens: list[int]) -> None:
    model = load_model(0, 1)
    state = model.start(prompt())
    for token in tokens:
        state.push(token)
    assert model.prior.locate(state.ids) == state.position
    row = state.logprobs()
    assert np.isfinite(row).all()
    assert np.exp(row).sum() == pytest.approx(1.0, abs=1e-12)


def test_versions_and_seeds_differ_in_logprobs() -> None:
    for other in (load_model(0, 2), load_model(1, 1)):
        differences = [np.abs(other.logprobs_of(prompt(), tokens) - logprobs).mean() for tokens, logprobs in replies()]
        assert np.mean(differences) > 0.05
    again = LanguageModel(0, 1)
    assert again.logprobs_of(prompt(), replies()[0][0]) == pytest.approx(replies()[0][1], abs=1e-12)


def test_first_token_of_long_context_changes_logprobs() -> None:
    model = load_model(0, 1)
    rest = model.tokenizer.encode("x = 1\n" * 500)
    first, second = (model.start([token, *rest]).logprobs() for token in (65, 66))
    assert 1e-9 < np.abs(first - second).max() < 1.0


def test_most_replies_call_an_offered_tool() -> None:
    texts = [load_tokenizer().decode(tokens, skip_control=True) for tokens, _ in replies()]
    named = [[call.name for call in parse_reply(text).calls] for text in texts]
    good = [calls for calls in named if calls and set(calls) <= set(REQUIRED)]
    assert len(good) > 0.6 * len(texts)
    assert len(Counter(name for calls in good for name in calls)) == len(REQUIRED)


def test_calls_have_their_required_arguments() -> None:
    texts = [load_tokenizer().decode(tokens, skip_control=True) for tokens, _ in replies()]
    calls = [call for text in texts for call in parse_reply(text).calls if call.name in REQUIRED]
    complete = [call for call in calls if set(json.loads(call.arguments)) == REQUIRED[call.name]]
    assert len(complete) > 0.9 * len(calls)


def test_reply_without_tools_has_no_call() -> None:
    model = load_model(0, 1)
    texts = [model.tokenizer.decode(sample(model, prompt(with_tools=False), seed)[0]) for seed in range(20)]
    assert sum("<tool_call>" in text for text in texts) <= 2
    assert sum(text.endswith("<|im_end|>") for text in texts) > 15


def test_some_replies_differ_from_their_encoded_text() -> None:
    tokenizer = load_tokenizer()
    special = tuple(tokenizer.special)
    canonical = [tokenizer.encode(tokenizer.decode(tokens), special) == tokens for tokens, _ in replies()]
    assert 0 < sum(canonical) < len(canonical)


def test_cached_prefix_gives_equal_logprobs() -> None:
    model, cache = load_model(0, 1), PrefixCache()
    cold = model.start(prompt(), cache)
    warm = model.start(prompt(), cache)
    assert (cold.cached, warm.cached) == (0, len(prompt()) - len(prompt()) % BLOCK)
    assert warm.logprobs() == pytest.approx(cold.logprobs(), abs=1e-12)
    other = model.start([*prompt()[:BLOCK], 65, *prompt()[BLOCK:]], cache)
    assert other.cached == BLOCK


def test_prefix_cache_evicts_least_recently_used() -> None:
    model, cache = load_model(0, 1), PrefixCache(blocks=2)
    first, second = ([byte] * BLOCK for byte in (65, 66))
    model.start(first, cache)
    model.start(second, cache)
    assert model.start(first, cache).cached == BLOCK
    model.start([67] * BLOCK, cache)
    assert model.start(first, cache).cached == BLOCK
    assert model.start(second, cache).cached == 0


@pytest.mark.parametrize("ids", [[-1], [load_tokenizer().size], [5, 10**9]])
def test_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    with pytest.raises(RequestError, match="out of vocabulary"):
        load_model(0, 1).start(ids)
    with pytest.raises(RequestError, match="out of vocabulary"):
        load_model(0, 1).logprobs_of([65], ids)


@pytest.mark.parametrize("line", ["", "{", "[]", '{"function": 3}', '{"function": {"name": "a b"}}', "[" * 5000])
def test_broken_tool_lines_are_left_out(line: str) -> None:
    tokenizer = load_tokenizer()
    special = tuple(tokenizer.special)
    system = f"<|im_start|>system\n<tools>\n{line}\n</tools><|im_end|>\n<|im_start|>assistant\n"
    row = load_model(0, 1).start(tokenizer.encode(system, special)).logprobs()
    assert np.exp(row[tokenizer.special["<tool_call>"]]) < 0.01
