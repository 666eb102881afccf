"""The images of a node: each made once, however many episodes ask for it at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from farm.tasks import TaskBundle

EnsureImage = Callable[[TaskBundle], Awaitable[object]]
"""Makes the image of a task where it is missing; raises ImageError."""


class ImageShelf:
    def __init__(self, ensure: EnsureImage, here: Iterable[str] = ()) -> None:
        self._ensure = ensure
        self._here = set(here)
        self._making: dict[str, asyncio.Task[object]] = {}

    @property
    def images(self) -> frozenset[str]:
        """What is here or on its way, so that a group's episodes come to where their image is being made."""
        return frozenset(self._here | self._making.keys())

    async def take(self, bundle: TaskBundle) -> None:
        """Return when the image of the task is here. Nobody who waits can cancel the making for the others."""
        image = bundle.task.image
        if image in self._here:
            return
        making = self._making.get(image)
        if making is None:
            making = self._making[image] = asyncio.create_task(self._make(bundle))
        await asyncio.shield(making)

    async def _make(self, bundle: TaskBundle) -> object:
        image = bundle.task.image
        try:
            made = await self._ensure(bundle)
            self._here.add(image)
            return made
        finally:
            del self._making[image]

    def forget(self, image: str) -> None:
        """The image has turned out to be gone; the next episode that needs it makes it again."""
        self._here.discard(image)

    async def close(self) -> None:
        making = list(self._making.values())
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)
