"""Harness documents, their effective settings, and the digest by which two runs are compared."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.core.harness import DEFAULT_HARNESS, Harness, Thinking
from farm.core.rollout import Split
from farm.core.run import EpisodeLimits, PolicySpec, RunSpec
from farm.core.summaries import DEFAULT_QUERY, SummarySettings
from farm.scheduler.messages import RunSubmitted
from farm.scheduler.runs.run_progress import RunProgress
from farm.schemas.harness import BadHarness, harness_digest, harness_settings, parse_harness
from farm.schemas.requests import CreateRun
from farm.schemas.run_encoding import dump_run_spec, load_run_spec
from tests.support.farm.episode_values import order
from tests.support.pages import ROOT
from tests.support.rollouts import run_spec

DOCUMENT = """
system_prompt = "Work."
thinking = "drop"
tools = ["codex", "-update_plan"]
parallel_calls = false

[limits]
max_turns = 200
max_tokens = 400_000
agent_s = 7200
tool_s = 60.5

[summaries]
trigger_tokens = 100_000
max_tokens = 2_000
query = "Sum up."
max_summaries = 20
"""
WHOLE = Harness("Work.", Thinking.DROP, False, SummarySettings(100_000, 2_000, "Sum up.", 20))
RUN: dict[str, Any] = {"taskset": "demo", "policy": "nop", "group_size": 1}

SUMMARIES = st.builds(
    SummarySettings,
    st.integers(2, 10**8),
    st.just(1),
    st.text(min_size=1, max_size=20),
    st.none() | st.integers(1, 9),
)
HARNESSES = st.builds(
    Harness,
    st.none() | st.text(min_size=1, max_size=20),
    st.sampled_from(Thinking),
    st.booleans(),
    st.none() | SUMMARIES,
)


def test_document_has_equal_meaning_in_both_forms() -> None:
    by_toml = parse_harness(DOCUMENT.encode())
    document = by_toml.model_dump(mode="json", exclude_unset=True)
    by_json = parse_harness(json.dumps(document).encode(), is_json=True)
    assert by_toml == by_json
    assert by_toml.to_core() == WHOLE
    asked = CreateRun.model_validate(RUN | {"harness": document})
    assert asked.effective_tools() == ("codex", "-update_plan")
    expected = EpisodeLimits(max_turns=200, max_tokens=400_000, agent_s=7200.0, tool_s=60.5)
    assert asked.episode_limits() == expected


def test_empty_document_is_default_harness() -> None:
    assert parse_harness(b"").to_core() == DEFAULT_HARNESS
    assert CreateRun.model_validate(RUN | {"harness": None}).episode_limits() == EpisodeLimits()


def test_fields_of_run_replace_those_of_harness() -> None:
    harness = {"tools": ["codex"], "limits": {"max_turns": 5, "tool_s": 7.0}}
    limits = {"max_turns": 9, "max_tokens": None, "verify_s": 3.0}
    asked = CreateRun.model_validate(RUN | {"harness": harness, "tools": ["bash"], "limits": limits})
    assert asked.effective_tools() == ("bash",)
    assert asked.episode_limits() == EpisodeLimits(max_turns=9, tool_s=7.0, verify_s=3.0)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("thinkin = 1", "thinkin: there is no such field (did you mean thinking?); there are: system_prompt, "),
        ("thinking = 'off'", "thinking: should be 'keep' or 'drop'"),
        ("[summaries]\ntrigger_token = 9", "summaries.trigger_token: there is no such field (did you mean trigger_tok"),
        ("[summaries]\ntrigger_tokens = 9", "summaries.max_tokens: is missing"),
        ("[summaries]\ntrigger_tokens = 9\nmax_tokens = 9", "summaries: max_tokens is not below trigger_tokens"),
        ("[limits]\nboot_s = 9", "limits.boot_s: there is no such field"),
        ("tools = ['cursr']", "tools: no tool named 'cursr' (did you mean cursor?)"),
        ("system_prompt = ''", "system_prompt: should have at least 1 character"),
        ("summaries = 3", "summaries: should be a JSON object"),
        ("x", "the harness is not TOML: "),
        ("a = " + "[" * 200 + "]" * 200, "the harness is nested too deeply"),
        ("#" * 300_000, "the harness is too long"),
    ],
)
def test_invalid_document_is_refused_with_remedy(document: str, message: str) -> None:
    with pytest.raises(BadHarness) as caught:
        parse_harness(document.encode())
    assert str(caught.value).startswith(message)


@settings(max_examples=50)
@given(st.binary(max_size=50), st.booleans())
def test_any_bytes_raise_only_bad_harness(content: bytes, is_json: bool) -> None:
    with contextlib.suppress(BadHarness):
        parse_harness(content, is_json=is_json)


def test_example_document_is_valid() -> None:
    parsed = parse_harness((ROOT / "farm" / "examples" / "summaries.toml").read_bytes())
    assert parsed.summaries is not None


@given(HARNESSES)
def test_run_with_harness_round_trips(harness: Harness) -> None:
    spec = replace(run_spec(), harness=harness)
    restored = load_run_spec(dump_run_spec(spec))
    assert restored == spec
    assert harness_digest(restored) == harness_digest(spec)


def test_stored_run_without_harness_is_read() -> None:
    stored = json.loads(dump_run_spec(run_spec()))
    del stored["harness"]
    assert load_run_spec(json.dumps(stored).encode()) == run_spec()


def test_assignment_has_harness_of_run() -> None:
    spec = replace(run_spec(), harness=WHOLE, tools=("bash",))
    assignment = RunProgress(RunSubmitted(spec)).assignment(0, 1)
    assert assignment.harness == WHOLE
    assert harness_digest(assignment) == harness_digest(spec)


@given(HARNESSES, HARNESSES)
def test_digests_are_equal_if_settings_are(one: Harness, other: Harness) -> None:
    digests = {harness_digest(order(harness=harness)) for harness in (one, other)}
    assert (len(digests) == 1) == (one == other)
    assert all(len(digest) == 64 for digest in digests)


SAME: dict[str, Callable[[RunSpec], RunSpec]] = {
    "split": lambda run: replace(run, split=Split.EVAL),
    "policy": lambda run: replace(run, policy=PolicySpec("nop")),
    "tasks": lambda run: replace(run, tasks=()),
    "seed": lambda run: replace(run, seed=9),
    "spelling of tools": lambda run: replace(run, tools=("submit", "bash", "default")),
    "whole seconds": lambda run: replace(run, limits=replace(run.limits, agent_s=60)),
    "limits of the infrastructure": lambda run: replace(run, limits=replace(run.limits, boot_s=1.0, verify_s=1.0)),
    "named default query": lambda run: replace(
        run, harness=replace(run.harness, summaries=SummarySettings(9, 1, DEFAULT_QUERY))
    ),
}
OTHER: dict[str, Callable[[RunSpec], RunSpec]] = {
    "tools": lambda run: replace(run, tools=("bash",)),
    "no tools": lambda run: replace(run, tools=()),
    "pack": lambda run: replace(run, tools=("swe-agent", "bash", "submit")),
    "unknown tools": lambda run: replace(run, tools=("gone",)),
    "turns": lambda run: replace(run, limits=replace(run.limits, max_turns=3)),
    "tokens": lambda run: replace(run, limits=replace(run.limits, max_tokens=3)),
    "seconds": lambda run: replace(run, limits=replace(run.limits, agent_s=61.0)),
    "seconds of a call": lambda run: replace(run, limits=replace(run.limits, tool_s=61.0)),
    "no summaries": lambda run: replace(run, harness=replace(run.harness, summaries=None)),
}
BASE = replace(
    run_spec(),
    tools=("bash", "submit"),
    limits=EpisodeLimits(agent_s=60.0),
    harness=Harness(summaries=SummarySettings(9, 1)),
)


@pytest.mark.parametrize("change", SAME.values(), ids=SAME.keys())
def test_digest_ignores_what_no_policy_notices(change: Callable[[RunSpec], RunSpec]) -> None:
    assert harness_digest(change(BASE)) == harness_digest(BASE)


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER.keys())
def test_digest_depends_on_each_setting(change: Callable[[RunSpec], RunSpec]) -> None:
    assert harness_digest(change(BASE)) != harness_digest(BASE)


def test_digest_is_stable_across_versions() -> None:
    """The digests of stored rollouts would lose their meaning."""
    fixed = replace(BASE, harness=replace(WHOLE, summaries=SummarySettings(9, 1, "Sum up.")))
    assert harness_settings(fixed)["tools"] == {"pack": "default", "tools": ["bash", "submit"]}
    assert harness_digest(fixed) == "c25b878f93517cedaedf1789d325b410b279bb5c6c925b0689519fce0df28b33"
