"""An environment of mini-SWE-agent: ``environment_class: farm.plugins.mini_swe_agent.FarmEnvironment``.

The sandbox is one of a running farm, over HTTP. It can be graded with the tests of its task.
"""

import platform
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from farm.client import FarmClient
from farm.plugins.requirement import required
from farm.schemas.sandboxes.answers import ExecAnswer, GradeAnswer

with required("mini-swe-agent"):
    from minisweagent.exceptions import Submitted
    from minisweagent.utils.serialize import recursive_merge

SUBMIT_LINE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class FarmEnvironmentConfig(BaseModel):
    """Keys under ``environment`` of a mini-SWE-agent configuration."""

    model_config = ConfigDict(extra="forbid")

    url: str = "http://127.0.0.1:8710"
    """Address of the farm's gateway."""
    token: SecretStr | None = Field(default=None, exclude=True)
    """None: ``FARM_TOKEN``, or the token of the farm that runs on this machine. It is not in trajectories."""
    task_id: str | None = None
    """A task of the farm; or ``image``."""
    taskset: str | None = None
    """Task set of the task; by default that of the newest run that has it."""
    image: str | None = None
    """An image that the farm admits; such a sandbox cannot be graded."""
    cwd: str = ""
    """Directory of commands; the task's workspace by default."""
    env: dict[str, str] = {}
    timeout: float = 30
    """Seconds for each command."""
    interpreter: list[str] = ["bash", "-lc"]
    """Program that gets the command as its last argument."""
    wait_s: float = 60.0
    """Seconds to wait for a free slot of the farm."""
    idle_s: float | None = None
    """The farm removes the sandbox after this many seconds without a command."""
    sandbox_timeout_s: float | None = None
    """The farm removes the sandbox at this age."""


class FarmEnvironment:
    """A sandbox of a running farm. Use it in ``with``, or call ``cleanup``. Every method may raise FarmError.

    A lost sandbox raises: it is no result of a command.
    """

    def __init__(self, *, config_class: type[FarmEnvironmentConfig] = FarmEnvironmentConfig, **kwargs: Any) -> None:
        self.config = config_class(**kwargs)
        token = self.config.token
        self._client = FarmClient(self.config.url, token.get_secret_value() if token else None)
        try:
            self._sandbox = self._client.sandboxes.create(
                self.config.task_id,
                taskset=self.config.taskset,
                image=self.config.image,
                wait_s=self.config.wait_s,
                idle_s=self.config.idle_s,
                timeout_s=self.config.sandbox_timeout_s,
            )
        except BaseException:
            self._client.close()
            raise
        self._removed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()

    @property
    def instruction(self) -> str:
        """The instruction of the sandbox's task, "" for an image."""
        return self._sandbox.instruction

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Run ``action["command"]``. Raises Submitted if the command submits the work."""
        limit_s = timeout or self.config.timeout
        done = self._sandbox.exec(
            ["sh", "-c", 'exec "$@" 2>&1', "sh", *self.config.interpreter, str(action.get("command", ""))],
            timeout_s=limit_s,
            cwd=cwd or self.config.cwd or None,
            env=self.config.env or None,
        )
        output = _output(done, limit_s)
        _raise_if_submitted(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return the configuration, the farm's machine architecture, and ``instruction``."""
        own = {"instruction": self.instruction, "cwd": self.config.cwd or self._sandbox.state.workdir}
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), platform.uname()._asdict(), own, kwargs)
        return merged

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        environment = {**self.config.model_dump(mode="json"), "sandbox_id": self._sandbox.id}
        return {"info": {"config": {"environment": environment, "environment_type": kind}}}

    def grade(self) -> GradeAnswer:
        """Grade the work so far; ``reward`` of the answer is None if it was not judged."""
        return self._sandbox.grade()

    def cleanup(self) -> None:
        """Remove the sandbox. Idempotent."""
        if not self._removed:
            self._removed = True
            try:
                self._sandbox.delete()
            finally:
                self._client.close()


def _output(done: ExecAnswer, limit_s: float) -> dict[str, Any]:
    text = done.stdout
    if done.stdout_elided:
        text += f"\n[{done.stdout_elided} bytes were omitted in the middle of the output]"
    if not done.timed_out:
        return {"output": text, "returncode": done.exit_code, "exception_info": ""}
    cause = f"command timed out after {limit_s:g} seconds"
    return {
        "output": text,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {cause}",
        "extra": {"exception_type": "TimeoutExpired", "exception": cause},
    }


def _raise_if_submitted(output: dict[str, Any]) -> None:
    first, _, submission = output["output"].lstrip().partition("\n")
    if first.strip() == SUBMIT_LINE and output["returncode"] == 0:
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})
