"""Try once whether a verifier gives a result in the task's own image with nothing changed, and remember it.

If it gives none for a change, either the change broke it, which is worth 0, or the image cannot run the tests, which is
the task's fault and no reward. No policy can influence the run that tells them apart.
"""

from dataclasses import replace

from farm.async_lru import AsyncLru
from farm.core.change import Change
from farm.core.task import GradingMode
from farm.grading.errors import UnfitTask, VerifierError
from farm.grading.grader import grade
from farm.grading.request import GradingRequest
from farm.grading.separate_verifier import take_pristine_artifacts
from farm.grading.work import Artifacts
from sandboxes.errors import LossCause, SandboxGone

_KEPT = 1024


class VerifierCheck:
    """A node's memory of verifiers, by the digests of task and image."""

    def __init__(self) -> None:
        self._faults = AsyncLru[tuple[str, str], str](_KEPT)

    async def require(self, request: GradingRequest, image_digest: str) -> None:
        """Return if the verifier of ``request`` gives a result with nothing changed, and some test passes that should.

        Raises UnfitTask if not, VerifierError if it does not end in time, which is tried again the next time,
        and what ``grade`` raises.
        """
        key = (request.bundle.task.digest, image_digest)
        fault = await self._faults.get(key, lambda: _find_fault(request))
        if fault:
            raise UnfitTask(fault)


async def _find_fault(request: GradingRequest) -> str:
    """Return why the verifier gives no result; empty: it gives one."""
    try:
        verdict = await grade(await _with_nothing_changed(request))
    except VerifierError as error:
        if error.retryable:
            raise
        return str(error)
    except SandboxGone as error:
        if error.by is LossCause.OUTSIDE:
            raise
        return f"with nothing changed, the tests lost their sandbox: {error}"
    if verdict.none_passed and not verdict.unreported:
        return f"with nothing changed, no test passes that should: {verdict.reason}"
    return f"with nothing changed, {verdict.reason}" if verdict.unreported else ""


async def _with_nothing_changed(request: GradingRequest) -> GradingRequest:
    """Return the request to grade untouched work in fresh sandboxes."""
    bundle, verifier = request.bundle, request.verifier
    bare = GradingRequest(
        bundle,
        Change(),
        request.runtime,
        verify_s=request.verify_s,
        boot_timeout_s=request.boot_timeout_s,
        test_slots=request.test_slots,
        single_run=True,
    )
    if verifier.separate is not None:
        return replace(bare, work=Artifacts(await take_pristine_artifacts(bare, verifier.separate)))
    fresh = replace(bundle, task=replace(bundle.task, verifier=replace(verifier, mode=GradingMode.PATCH)))
    return replace(bare, bundle=fresh)
