"""The sandboxes of one grading, by the task's grading mode."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from farm.core.task import GradingMode
from farm.grading.errors import ChangeRefused, VerifierError
from farm.grading.request import GradingRequest
from farm.tasks.images import sandbox_spec
from sandboxes.errors import LossCause, SandboxGone, SnapshotError
from sandboxes.interface import Sandbox

DROP_S = 60.0
_DROP = r"""
PATH=/.farm/bin
busybox find "$1" -type d -name __pycache__ -prune -exec busybox chmod -R u+rwx -- {} +
busybox find "$1" \( -name __pycache__ -prune -o -name '*.py[co]' \) -exec busybox rm -rf -- {} +
[ -z "$(busybox find "$1" \( -name __pycache__ -o -name '*.py[co]' \) ! -type d \( -user $EUID -o -perm /022 \))" ]
"""


@dataclass(frozen=True, slots=True)
class GradingSandboxes:
    """``pristine``: a sandbox of the image without any change. ``tests``: the sandbox in which the tests run. It is the
    pristine one in mode ``patch``; else it holds what the agent left, all over its file system."""

    pristine: Sandbox
    tests: Sandbox

    @property
    def holds_agent_state(self) -> bool:
        return self.tests is not self.pristine


@asynccontextmanager
async def open_grading_sandboxes(request: GradingRequest) -> AsyncIterator[GradingSandboxes]:
    """Boot what the task's grading mode needs. Every process of the agent's sandbox is dead.

    Raises VerifierError if the mode needs the agent's sandbox and there is none, ChangeRefused if no sandbox starts on
    what the agent left, and the errors of ``sandboxes``.
    """
    task, mode, agent_sandbox = request.bundle.task, request.verifier.mode, request.agent_sandbox
    spec = sandbox_spec(task, labels={"task": task.id, "purpose": "grading"}, hides_tests=True)
    boot = partial(request.runtime.scope, spec, boot_timeout_s=request.boot_timeout_s)
    async with AsyncExitStack() as undo:
        pristine = await undo.enter_async_context(boot())
        if mode is GradingMode.PATCH:
            yield GradingSandboxes(pristine, pristine)
            return
        if agent_sandbox is None:
            raise VerifierError(f"a task graded by {mode.value} needs the sandbox of an episode; play an episode")
        if mode is GradingMode.SHARED:
            yield GradingSandboxes(pristine, agent_sandbox)
            return
        try:
            copy = await undo.enter_async_context(await agent_sandbox.snapshot())
            tests = await undo.enter_async_context(boot(base=copy))
        except SandboxGone as error:
            if error.by is LossCause.OUTSIDE:
                raise
            raise ChangeRefused(f"the work was lost: {error}") from None
        except SnapshotError as error:
            if not error.unfit:
                raise
            raise ChangeRefused(f"no sandbox starts on what was left: {error}") from None
        yield GradingSandboxes(pristine, tests)


async def drop_bytecode(sandbox: Sandbox, workspace: str) -> None:
    """Remove files of bytecode, because one can stand in for the source beside it, also for a test's source.

    A removal that times out runs once more, because the machine can be the cause.

    Raises ChangeRefused if some cannot be removed, unless they belong to another user and the policy cannot write them.
    """
    remove = partial(sandbox.exec, ("/.farm/bin/bash", "-c", _DROP, "drop", workspace), timeout_s=DROP_S)
    result = await remove()
    if result.timed_out:
        result = await remove()
    if result.timed_out:
        raise ChangeRefused(f"bytecode that was left in the workspace was not removed within {DROP_S:g} s, twice")
    if result.exit_code != 0:
        raise ChangeRefused("bytecode that was left in the workspace cannot be removed")
