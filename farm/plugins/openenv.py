"""An OpenEnv server whose environments are sandboxes of a running farm, over HTTP.

    python -m farm.plugins.openenv --task-id pathspec-0.11.1 --port 8000

Each session of a client has one sandbox. An action is a tool call; the last step is graded.
"""

import argparse
import math
from collections.abc import Mapping
from typing import Any, cast

from farm.client import FarmClient, SandboxEnvironment
from farm.client import environment as gymnasium_style
from farm.plugins.requirement import required

with required("openenv"):
    import uvicorn
    from fastapi import FastAPI
    from openenv.core.env_server import Action, Environment, Observation, State, create_app
    from openenv.core.env_server.types import EnvironmentMetadata
    from pydantic import Field

SESSIONS_MAX = 8
"""Default number of sessions at the same time. A sandbox takes a slot of a node while its session has it."""


class FarmAction(Action):
    """A tool call of the policy. ``submit`` ends the work."""

    name: str = Field(description="Name of a tool, of the observation's `tools`")
    arguments: dict[str, Any] | str = Field(default_factory=dict, description="An object, or JSON text of a model")


class FarmObservation(Observation):
    """``reward`` is null until the work is graded, and if it was not judged: leave it out of the loss."""

    instruction: str = Field(description="Instruction of the task, the same at every step")
    result: str = Field(default="", description="Results of the tool calls of the last step")
    tools: list[dict[str, Any]] = Field(default_factory=list, description="Schemas of the tools, after a reset")


class FarmState(State):
    sandbox_id: str = ""
    task_id: str = ""


class FarmEnvironment(Environment):
    """One session. ``sandbox``: the keyword arguments of ``SandboxesClient.create``."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, client: FarmClient, *, max_turns: int, sandbox: Mapping[str, Any]) -> None:
        super().__init__()
        self._environment = SandboxEnvironment(client, max_turns=max_turns, **sandbox)
        self._state = FarmState()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task_id: str | None = None, **kwargs: Any
    ) -> FarmObservation:
        """Remove the sandbox of the last episode and start another. ``task_id``: another task of the task set.

        ``seed`` has no effect, because nothing here is random.
        """
        self._state = FarmState()
        observation, info = self._environment.reset(options={} if task_id is None else {"task_id": task_id})
        self._state = FarmState(
            episode_id=episode_id or info["sandbox_id"], sandbox_id=info["sandbox_id"], task_id=info["task_id"]
        )
        return FarmObservation(instruction=observation["instruction"], tools=[dict(tool) for tool in info["tools"]])

    def step(self, action: FarmAction, timeout_s: float | None = None, **kwargs: Any) -> FarmObservation:
        """Run a tool call. ``timeout_s`` has no effect: each tool has a time-out of its own."""
        call = gymnasium_style.Action(name=action.name, arguments=action.arguments)
        observation, reward, terminated, truncated, info = self._environment.step(call)
        done = terminated or truncated
        self._state.step_count += 1
        return FarmObservation(
            instruction=observation["instruction"],
            result=observation["result"],
            done=done,
            reward=reward if done and not math.isnan(reward) else None,
            metadata={"truncated": truncated, **{key: info[key] for key in ("error_kinds", "verdict") if key in info}},
        )

    @property
    def state(self) -> FarmState:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="farm", description="A coding task in a sandbox of a rollout farm")

    def close(self) -> None:
        self._environment.close()


def make_app(
    client: FarmClient, *, sessions: int = SESSIONS_MAX, max_turns: int = 50, sandbox: Mapping[str, Any]
) -> FastAPI:
    """Return the server's application. ``sandbox``: the keyword arguments of ``SandboxesClient.create``."""

    def make_environment() -> FarmEnvironment:
        return FarmEnvironment(client, max_turns=max_turns, sandbox=sandbox)

    app = create_app(
        make_environment,
        FarmAction,
        FarmObservation,
        env_name="farm",
        max_concurrent_envs=sessions,
        state_cls=FarmState,
    )
    return cast(FastAPI, app)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m farm.plugins.openenv", description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8710", help="address of the farm's gateway")
    parser.add_argument("--task-id", required=True, help="the task of an episode unless reset names another")
    parser.add_argument("--taskset", help="task set of the task; by default that of the newest run")
    parser.add_argument("--max-turns", type=int, default=50, help="steps of an episode (default: 50)")
    parser.add_argument("--sessions", type=int, default=SESSIONS_MAX, help=f"at the same time ({SESSIONS_MAX})")
    parser.add_argument("--host", default="127.0.0.1", help="OpenEnv has no tokens: let only trusted clients reach it")
    parser.add_argument("--port", type=int, default=8000)
    chosen = parser.parse_args()
    sandbox = {"task_id": chosen.task_id, "taskset": chosen.taskset, "wait_s": 60.0}
    with FarmClient(chosen.url) as client:
        app = make_app(client, sessions=chosen.sessions, max_turns=chosen.max_turns, sandbox=sandbox)
        uvicorn.run(app, host=chosen.host, port=chosen.port)


if __name__ == "__main__":
    main()
