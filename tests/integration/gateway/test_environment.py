"""The environment in Gymnasium's style, over a real gateway and real sandboxes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from farm.client import FarmClient, SandboxEnvironment
from farm.client.environment import AFTER_SUBMIT, Action
from sandboxes.runtimes.oci.runtime import OciRuntime
from tests.support.farm.sandbox_place import SandboxPlace, sandbox_place

pytestmark = [pytest.mark.docker, pytest.mark.redis]

MEND = Action(name="bash", arguments={"command": "echo 'def answer(): return 42' > tiny.py"})
SUBMIT = Action(name="submit", arguments="{}")


@pytest.fixture
async def place(tmp_path: Path, oci_runtime: OciRuntime, tiny_image: str) -> AsyncIterator[SandboxPlace]:
    async with sandbox_place(tmp_path, oci_runtime, tiny_image) as place:
        yield place


def environment(client: FarmClient, **chosen: Any) -> SandboxEnvironment:
    return SandboxEnvironment(client, task_id="tiny", taskset="demo", **chosen)


async def test_submitted_solution_earns_its_reward(place: SandboxPlace) -> None:
    def play(client: FarmClient) -> None:
        with environment(client) as env:
            observation, info = env.reset(seed=1)
            assert observation == {"instruction": "answer() must return 42.", "result": ""}
            assert "submit" in [tool["function"]["name"] for tool in info["tools"]]
            observation, reward, terminated, truncated, info = env.step(MEND)
            assert (reward, terminated, truncated) == (0.0, False, False)
            observation, reward, terminated, truncated, info = env.step([SUBMIT, MEND])
            assert observation["result"] == f"Submitted.\n\n{AFTER_SUBMIT}"
            assert (reward, terminated, truncated) == (1.0, True, False)
            assert info["verdict"]["verdict"] == "resolved"
            with pytest.raises(RuntimeError, match=r"call reset\(\)"):
                env.step(MEND)
            env.reset()
            assert env.step([]).terminated, "a turn without a call ends the work"

    await place.in_client(play)
    assert await place.lives() == 0


async def test_last_turn_is_graded_and_truncated(place: SandboxPlace) -> None:
    def play(client: FarmClient) -> None:
        with environment(client, max_turns=2) as env:
            env.reset()
            assert not env.step(Action(name="nonsense", arguments="{")).truncated
            last = env.step(MEND)
            assert (last.reward, last.terminated, last.truncated) == (1.0, False, True)

    await place.in_client(play)


class AnyText(spaces.Space[str]):
    """All texts. ``gymnasium.spaces.Text`` lists its characters, and tools print any."""

    def __init__(self, *samples: str) -> None:
        super().__init__((), str)
        self._samples = samples

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return str(self.np_random.choice(self._samples))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        return False


class Wrapped(gymnasium.Env[dict[str, str], dict[str, str]]):
    """All that Gymnasium wants beside the farm's environment: spaces, and a seeded generator."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, env: SandboxEnvironment) -> None:
        self._env = env
        observations: Any = spaces.Dict({"instruction": AnyText("a"), "result": AnyText("b")})
        names, arguments = AnyText("bash", "grep", "none"), AnyText("{}", '{"command": "pwd"}', "[")
        actions: Any = spaces.Dict({"name": names, "arguments": arguments})
        self.observation_space, self.action_space = observations, actions

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        super().reset(seed=seed)
        return self._env.reset(seed=seed, options=options)

    def step(self, action: dict[str, str]) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        return self._env.step(Action(name=action["name"], arguments=action["arguments"]))

    def close(self) -> None:
        self._env.close()


@pytest.mark.filterwarnings("ignore::UserWarning")
async def test_thin_wrapper_passes_gymnasium_check(place: SandboxPlace) -> None:
    def check(client: FarmClient) -> None:
        with environment(client) as env:
            check_env(Wrapped(env), skip_render_check=True)

    await place.in_client(check)
    assert await place.lives() == 0
