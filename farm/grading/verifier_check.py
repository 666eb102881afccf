"""Try once whether a verifier gives a result in the task's own image with nothing changed, and remember it.

If it gives none for a change, either the change broke it, which is worth 0, or the image cannot run the tests, which is
the task's fault and no reward. No policy can influence the run that tells them apart.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace

from farm.core.change import Change
from farm.core.run import EpisodeLimits
from farm.core.task import GradingMode
from farm.grading.errors import UnfitTask, VerifierError
from farm.grading.grader import grade
from farm.grading.separate_verifier import collect, grade_artifacts, take_artifacts
from farm.grading.verdict import Verdict
from farm.tasks.bundle import TaskBundle
from farm.tasks.images import sandbox_spec
from sandboxes.errors import LossCause, SandboxGone
from sandboxes.interface import Runtime

_KEPT = 1024


class VerifierCheck:
    """A node's memory of verifiers, by the digests of task and image."""

    def __init__(self) -> None:
        self._faults: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._trying: dict[tuple[str, str], asyncio.Lock] = {}

    async def require(
        self,
        bundle: TaskBundle,
        image_digest: str,
        runtime: Runtime,
        limits: EpisodeLimits,
        turns: asyncio.Semaphore | None = None,
    ) -> None:
        """Return if the verifier gives a result with nothing changed.

        Raises UnfitTask if it gives none, VerifierError if it does not end in time, which is tried again the next time,
        and what ``grade`` raises.
        """
        key = (bundle.task.digest, image_digest)
        async with self._trying.setdefault(key, asyncio.Lock()):
            if key not in self._faults:
                self._faults[key] = await _fault(lambda: _try(bundle, runtime, limits, turns))
        self._faults.move_to_end(key)
        while len(self._faults) > _KEPT:
            gone, _ = self._faults.popitem(last=False)
            self._trying.pop(gone, None)
        if self._faults[key]:
            raise UnfitTask(self._faults[key])


async def _fault(run: Callable[[], Awaitable[Verdict]]) -> str:
    """Return why the verifier gives no result; empty: it gives one."""
    try:
        verdict = await run()
    except VerifierError as error:
        if error.retryable:
            raise
        return str(error)
    except SandboxGone as error:
        if error.by is LossCause.OUTSIDE:
            raise
        return f"with nothing changed, the tests lost their sandbox: {error}"
    return f"with nothing changed, {verdict.reason}" if verdict.unreported else ""


async def _try(bundle: TaskBundle, runtime: Runtime, limits: EpisodeLimits, turns: asyncio.Semaphore | None) -> Verdict:
    verifier, boot_timeout_s = bundle.task.verifier, limits.boot_s
    if verifier.separate is not None:
        spec = sandbox_spec(bundle.task, labels={"task": bundle.task.id, "purpose": "grading"})
        async with runtime.scope(spec, boot_timeout_s=boot_timeout_s) as untouched:
            await collect(untouched, bundle.task.workspace, verifier.separate)
            artifacts = await take_artifacts(untouched, verifier.separate)
        return await grade_artifacts(
            bundle, artifacts, runtime, verify_s=limits.verify_s, boot_timeout_s=boot_timeout_s, turns=turns
        )
    fresh = replace(bundle, task=replace(bundle.task, verifier=replace(verifier, mode=GradingMode.PATCH)))
    return await grade(
        fresh,
        Change(),
        runtime,
        verify_s=limits.verify_s,
        rng=random.SystemRandom(),
        boot_timeout_s=boot_timeout_s,
        turns=turns,
        alone=True,
    )
