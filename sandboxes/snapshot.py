"""A copy of a sandbox's files, to start sandboxes from."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from sandboxes.cancellation import shielded
from sandboxes.spec import SandboxSpec


class Snapshot:
    """The result of ``Sandbox.snapshot`` and an argument of ``Runtime.create``. ``async with`` removes it at the end.

    ``spec`` and ``image_digest``: those of the copied sandbox. A snapshot does not outlive its runtime.
    """

    def __init__(
        self, snapshot_id: str, spec: SandboxSpec, image_digest: str, remove_files: Callable[[str], Awaitable[None]]
    ) -> None:
        self.id = snapshot_id
        self.spec = spec
        self.image_digest = image_digest
        self._remove_files = remove_files

    async def remove(self) -> None:
        """Remove the copy. Idempotent; safe under cancellation. Sandboxes that were started from it live on."""
        await shielded(self._remove())

    async def _remove(self) -> None:
        await self._remove_files(self.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.remove()
