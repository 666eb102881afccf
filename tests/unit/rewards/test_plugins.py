"""Tests of reward plug-ins: the components they add, and the isolation of their failures."""

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farm.core.change import Change
from farm.episode import NodeServices, run_episode
from farm.rewards import JudgedEpisode, Plugins, parse_rules, score
from tests.support.farm.episode_values import DONE, FIX, Scripted, fake, order, say, task

EPISODE = JudgedEpisode("demo", Change(), "", (), {"verdict": 1.0})


async def test_plugin_components_have_name_and_weight() -> None:
    plugins = Plugins({"length": lambda episode: {"words": len(episode.task_id), "half": 0.5}})
    found = await plugins.measure(EPISODE)
    assert found.components == {"plugin.length.words": 4.0, "plugin.length.half": 0.5}
    rules = parse_rules('name = "long"\n[weights]\nplugin.length.words = 0.25\n')
    assert score(found.components, rules) == 1.0


def _exits(episode: JudgedEpisode) -> Mapping[str, float]:
    raise SystemExit(1)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda episode: 1 / 0, "ZeroDivisionError"),
        (_exits, "SystemExit"),
        (lambda episode: None, "NoneType, not a mapping"),
        (lambda episode: {"a": "1"}, "a is str, not a number"),
        (lambda episode: {"a": True}, "a is bool"),
        (lambda episode: {"a": float("nan")}, "a is nan"),
        (lambda episode: {"a": 1e300}, "at most 1e+12"),
        (lambda episode: {"a": 10**400}, "OverflowError"),
        (lambda episode: {"a.b": 1.0}, "not a plain name"),
        (lambda episode: {7: 1.0}, "not a plain name"),
        (lambda episode: {str(n): 1.0 for n in range(33)}, "at most 32"),
    ],
)
async def test_failed_plugin_loses_only_its_components(answer: Any, said: str) -> None:
    found = await Plugins({"bad": answer, "good": lambda episode: {"x": 1.0}}).measure(EPISODE)
    assert found.components == {"plugin.good.x": 1.0}
    assert said in found.failures["bad"]


async def test_plugin_cannot_modify_components() -> None:
    def spoil(episode: JudgedEpisode) -> Mapping[str, float]:
        components: Any = episode.components
        components["verdict"] = 5.0
        return {"x": 1.0}

    known = {"verdict": 1.0}
    found = await Plugins({"spoil": spoil}).measure(replace(EPISODE, components=known))
    assert (known, found.components) == ({"verdict": 1.0}, {})
    assert "TypeError" in found.failures["spoil"]


async def test_plugin_is_skipped_until_all_calls_end() -> None:
    gates = [threading.Event(), threading.Event()]
    waiting = iter(gates)

    def hang(episode: JudgedEpisode) -> Mapping[str, float]:
        next(waiting).wait()
        return {}

    plugins = Plugins({"slow": hang}, timeout_s=0.05)
    both = await asyncio.gather(plugins.measure(EPISODE), plugins.measure(EPISODE))
    assert all("did not return" in one.failures["slow"] for one in both)
    threads = plugins._running["slow"]
    gates[1].set()
    while sum(thread.is_alive() for thread in threads) == 2:  # noqa: ASYNC110 - a thread has no event to await
        await asyncio.sleep(0.005)
    assert "an earlier episode" in (await plugins.measure(EPISODE)).failures["slow"]
    gates[0].set()


async def test_hanging_plugin_is_skipped_until_it_ends() -> None:
    release, asked = threading.Event(), []

    def hang(episode: JudgedEpisode) -> Mapping[str, float]:
        asked.append(episode)
        release.wait()
        return {"x": 1.0}

    plugins = Plugins({"slow": hang}, timeout_s=0.05)
    assert "did not return within 0.05 s" in (await plugins.measure(EPISODE)).failures["slow"]
    assert "an earlier episode" in (await plugins.measure(EPISODE)).failures["slow"]
    while not asked:  # noqa: ASYNC110 - a thread has no event to await
        await asyncio.sleep(0.005)
    assert len(asked) == 1
    release.set()
    while any(thread.is_alive() for thread in plugins._running["slow"]):  # noqa: ASYNC110 - a thread has no event to await
        await asyncio.sleep(0.005)
    assert (await Plugins({"slow": hang}).measure(EPISODE)).components == {"plugin.slow.x": 1.0}


async def test_episode_has_plugin_components_despite_failures() -> None:
    seen: list[JudgedEpisode] = []

    def look(episode: JudgedEpisode) -> Mapping[str, float]:
        seen.append(episode)
        return {"files": len(episode.change.files)}

    def fail(episode: JudgedEpisode) -> Mapping[str, float]:
        raise RuntimeError("no")

    plugins = Plugins({"look": look, "fail": fail})
    rollout = await run_episode(order(), task(), Scripted(FIX, DONE), NodeServices("n", fake(), plugins=plugins))
    assert (rollout.reward, rollout.reward_components["plugin.look.files"]) == (1.0, 1.0)
    assert rollout.metrics["plugin_failed.fail"] == 1.0
    assert (seen[0].patch, seen[0].turns) == (rollout.patch, rollout.turns)
    broken = Scripted(RuntimeError("the endpoint is gone"))
    unjudged = await run_episode(order(), task(), broken, NodeServices("n", fake(), plugins=plugins))
    assert (unjudged.reward, len(seen)) == (None, 1)


async def test_episode_components_describe_work_and_result() -> None:
    twice = say(*FIX.tool_calls, *FIX.tool_calls, completion_tokens=5)
    rollout = await run_episode(order(), task(), Scripted(twice, DONE), NodeServices("n", fake()))
    found = rollout.reward_components
    assert (found["verdict"], found["fail_to_pass"], found["misuse_repeated"]) == (1.0, 1.0, 1.0)
    assert (found["effort_turns"], found["effort_calls"], found["effort_completion_tokens"]) == (2.0, 3.0, 5.0)
    assert (found["diff_added"], found["diff_removed"], found["style_delta"]) == (1.0, 1.0, 0.0)
    assert (found["audit_tests"], rollout.audit) == (0.0, ())


MODULE = """
def measure(episode):
    return {"one": 1.0}

no_function = 7
"""
POINTS = """[farm.rewards]
good = plugged:measure
odd = plugged:no_function
gone = plugged:nothing
missing = no_such_module_anywhere:measure
"""


async def test_plugins_are_loaded_from_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugged.py").write_text(MODULE)
    about = tmp_path / "plugged-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    plugins = Plugins.installed()
    assert plugins.names == ("good",)
    assert (await plugins.measure(replace(EPISODE, task_id="x"))).components == {"plugin.good.one": 1.0}
