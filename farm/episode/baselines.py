"""What a node knows of pristine images: the walk of a workspace, and whether the verifier works there."""

import asyncio
from collections import OrderedDict

from farm.grading import VerifierCheck, WorkspaceBaseline, take_baseline
from sandboxes.interface import Sandbox

_KEPT = 256


class Baselines:
    """A node's baselines by image digest and workspace. One is taken before any policy has touched the sandbox."""

    def __init__(self) -> None:
        self.soundness = VerifierCheck()
        self._known: OrderedDict[tuple[str, str], WorkspaceBaseline] = OrderedDict()
        self._taking: dict[tuple[str, str], asyncio.Lock] = {}

    def known(self, sandbox: Sandbox, workspace: str) -> WorkspaceBaseline | None:
        return self._known.get((sandbox.image_digest, workspace))

    async def of(self, sandbox: Sandbox, workspace: str) -> WorkspaceBaseline:
        """The baseline of the image that ``sandbox`` has just booted from; walked only where it is not yet known."""
        key = (sandbox.image_digest, workspace)
        async with self._taking.setdefault(key, asyncio.Lock()):
            if key not in self._known:
                self._known[key] = await take_baseline(sandbox, workspace)
        self._known.move_to_end(key)
        while len(self._known) > _KEPT:
            gone, _ = self._known.popitem(last=False)
            self._taking.pop(gone, None)
        return self._known[key]
