"""The pristine workspaces of a node's images."""

from farm.async_lru import AsyncLru
from farm.grading import WorkspaceBaseline, take_baseline
from sandboxes.interface import Sandbox

_KEPT = 256


class Baselines:
    """A node's baselines by image digest and workspace. One is taken before any policy has touched the sandbox."""

    def __init__(self) -> None:
        self._kept = AsyncLru[tuple[str, str], WorkspaceBaseline](_KEPT)

    def known(self, sandbox: Sandbox, workspace: str) -> WorkspaceBaseline | None:
        """Return the baseline of the sandbox's image if it is kept."""
        return self._kept.peek((sandbox.image_digest, workspace))

    async def of(self, sandbox: Sandbox, workspace: str) -> WorkspaceBaseline:
        """Return the baseline of the image that ``sandbox`` has just booted from; walk the workspace only if needed."""
        return await self._kept.get((sandbox.image_digest, workspace), lambda: take_baseline(sandbox, workspace))
