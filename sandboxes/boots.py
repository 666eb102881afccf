"""Why a sandbox did not come up, by whose fault that is."""

from sandboxes.errors import BootError, SnapshotError, SpecError
from sandboxes.runtimes.engine import EngineError
from sandboxes.spec import SandboxSpec


def why_not_booted(error: BaseException, spec: SandboxSpec, boot_timeout_s: float, *, copied: bool) -> BaseException:
    """What to raise of a boot that failed. Files that were copied are to blame, for what ran inside made them."""
    if isinstance(error, TimeoutError):
        return BootError(f"a sandbox of {spec.image} did not answer in {boot_timeout_s:g} s")
    if isinstance(error, EngineError):
        error = BootError(f"a sandbox of {spec.image} did not start: {error.message}")
    return SnapshotError(f"on copied files: {error}") if copied and isinstance(error, BootError | SpecError) else error
