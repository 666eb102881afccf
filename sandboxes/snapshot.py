"""A copy of a sandbox's files, to start sandboxes from."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from sandboxes.cancellation import shielded
from sandboxes.spec import SandboxSpec


class Snapshot:
    """What ``Sandbox.snapshot`` gives and ``Runtime.create`` takes; ``async with`` removes it at the end.

    ``spec`` and ``image_digest`` are those of the sandbox that it was taken of. It does not outlive its runtime.
    """

    def __init__(
        self, snapshot_id: str, spec: SandboxSpec, image_digest: str, forget: Callable[[str], Awaitable[None]]
    ) -> None:
        self.id = snapshot_id
        self.spec = spec
        self.image_digest = image_digest
        self._forget = forget

    async def remove(self) -> None:
        """Idempotent; safe under cancellation. Sandboxes that were started from it live on."""
        await shielded(self._remove())

    async def _remove(self) -> None:
        await self._forget(self.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.remove()
