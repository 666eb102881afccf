"""Where the tests run, by the task's grading mode."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from farm.core.task import GradingMode
from farm.grading.errors import ChangeRefused, VerifierError
from sandboxes.errors import LossCause, SandboxGone, SnapshotError
from sandboxes.interface import Runtime, Sandbox
from sandboxes.spec import SandboxSpec

_DROP = r"""
PATH=/.farm/bin
busybox find "$1" -type d -name __pycache__ -prune -exec busybox chmod -R u+rwx -- {} +
busybox find "$1" \( -name __pycache__ -prune -o -name '*.py[co]' \) -exec busybox rm -rf -- {} +
[ -z "$(busybox find "$1" \( -name __pycache__ -o -name '*.py[co]' \) ! -type d \( -user $EUID -o -perm /022 \))" ]
"""


@dataclass(frozen=True, slots=True)
class GradingSandboxes:
    """``pristine``: a sandbox of the image that nobody has touched. ``tests``: where the tests run, which is the same
    one in mode ``patch``; else it holds what the agent left, all over its file system."""

    pristine: Sandbox
    tests: Sandbox

    @property
    def holds_agent_state(self) -> bool:
        return self.tests is not self.pristine


@asynccontextmanager
async def open_grading_sandboxes(
    runtime: Runtime, spec: SandboxSpec, mode: GradingMode, worked_in: Sandbox | None, *, boot_timeout_s: float
) -> AsyncIterator[GradingSandboxes]:
    """Every process of ``worked_in``, the agent's sandbox, is dead.

    Raises VerifierError where it lacks, ChangeRefused where no sandbox starts on what the agent left, and the errors of
    ``sandboxes``.
    """
    async with AsyncExitStack() as undo:
        pristine = await undo.enter_async_context(runtime.scope(spec, boot_timeout_s=boot_timeout_s))
        if mode is GradingMode.PATCH:
            yield GradingSandboxes(pristine, pristine)
            return
        if worked_in is None:
            raise VerifierError(f"a task graded by {mode.value} is judged in an episode, where its sandbox lives")
        if mode is GradingMode.SHARED:
            yield GradingSandboxes(pristine, worked_in)
            return
        try:
            copy = await undo.enter_async_context(await worked_in.snapshot())
            tests = await undo.enter_async_context(runtime.scope(spec, base=copy, boot_timeout_s=boot_timeout_s))
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
    """A file of bytecode can stand in for the source beside it, also for a test's, and one of a package for a module.

    Raises ChangeRefused where some cannot be removed, unless it is of a user who left the policy no way to write to it.
    """
    result = await sandbox.exec(("/.farm/bin/bash", "-c", _DROP, "drop", workspace), timeout_s=60.0)
    if result.exit_code != 0:
        raise ChangeRefused("bytecode that was left in the workspace cannot be removed")
