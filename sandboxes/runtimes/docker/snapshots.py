"""Snapshots as images of the daemon, each kept as long as anything is made of it: before that it cannot be removed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from weakref import WeakValueDictionary

from sandboxes.cancellation import shielded
from sandboxes.docker_engine.api import Engine, EngineError, ListedImage
from sandboxes.errors import RuntimeUnavailable, SnapshotError
from sandboxes.interface import MIB
from sandboxes.ownership.labels import LABEL_SNAPSHOT, SNAPSHOTS, labels, of_image
from sandboxes.ownership.owner import Owner
from sandboxes.runtimes.docker.exit_cause import is_ending


@dataclass(slots=True)
class _Kept:
    """``image``: its id, once it is made. ``below``: the snapshot that the copied sandbox itself was made of."""

    below: str | None
    image: str = ""
    users: int = 1


class SnapshotImages:
    """Each has a name of its own, and is counted: whoever makes or uses it has to give it back."""

    def __init__(self, engine: Engine, owner: Owner) -> None:
        self._engine = engine
        self._owner = owner
        self._kept: dict[str, _Kept] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By container: only one snapshot of it is made at a time, because a paused container cannot be paused."""

    async def make(self, name: str, container: str, below: str | None, *, at_most_mib: int) -> None:
        """Raises SnapshotError, with nothing to be given back; also for files of more than ``at_most_mib``.

        The daemon fills the holes of sparse files when it makes an image.
        """
        if below is not None:
            self.use(below)
        self._kept[name] = _Kept(below)
        try:
            await shielded(self._make(name, container, at_most_mib))
        except BaseException as error:
            await shielded(self.give_back(name))
            if isinstance(error, EngineError):
                raise SnapshotError(f"Docker makes no image of it: {error.message}") from None
            raise

    async def _make(self, name: str, container: str, at_most_mib: int) -> None:
        marked = labels(self._owner, snapshot=name)
        turn = self._turns.setdefault(container, asyncio.Lock())
        async with turn, self._paused(container):  # or files could grow once they are measured
            written = await self._engine.written_bytes(container)
            if written is None or written > at_most_mib * MIB:
                size = "an unknown size" if written is None else f"{written // MIB} MiB, holes included"
                raise SnapshotError(
                    f"no snapshot of it: its changed files have {size}, of {at_most_mib} allowed; remove some",
                    unfit=True,
                )
            self._kept[name].image = await self._engine.commit(container, SNAPSHOTS, name, marked)

    @contextlib.asynccontextmanager
    async def _paused(self, container: str) -> AsyncIterator[None]:
        """Let no process of a container run during the block."""
        try:
            try:
                await self._engine.pause(container)
            except EngineError:
                state = await self._engine.state(container)
                if state is not None and state.running and not is_ending(state.pid):
                    raise
            yield
        finally:
            await self._go_on(container)

    async def _go_on(self, container: str) -> None:
        """Unpause a container. A daemon that answers late is asked once more: else the container would stay paused."""
        try:
            await self._engine.unpause(container)
        except EngineError:  # it has ended, is gone, or was not paused
            return
        except RuntimeUnavailable:
            with contextlib.suppress(EngineError, RuntimeUnavailable):
                await self._engine.unpause(container)

    def use(self, name: str) -> None:
        """Raises SnapshotError where it is not there any more."""
        if name not in self._kept:
            raise SnapshotError(f"snapshot {name} was removed")
        self._kept[name].users += 1

    def image(self, name: str) -> str:
        """The id of one that is held."""
        return self._kept[name].image

    async def give_back(self, name: str) -> None:
        """Of one that is gone already: nothing."""
        kept = self._kept.get(name)
        if kept is None:
            return
        kept.users -= 1
        if kept.users:
            return
        del self._kept[name]
        if kept.image:
            await self._engine.remove_image(kept.image)
        if kept.below is not None:
            await self.give_back(kept.below)

    async def recall(self) -> None:
        """Take up those that an earlier process of this owner made. Whoever uses one says so; ``drop_unused`` then."""
        found = {image.id: image for image in await self._mine()}
        for image in found.values():
            below = found[image.parent].labels[LABEL_SNAPSHOT] if image.parent in found else None
            self._kept[image.labels[LABEL_SNAPSHOT]] = _Kept(below, image.id, users=0)
        for kept in self._kept.values():
            if kept.below is not None:
                self._kept[kept.below].users += 1

    async def drop_unused(self) -> None:
        for name in [name for name, kept in self._kept.items() if not kept.users]:
            self._kept[name].users = 1
            await self.give_back(name)

    async def close(self) -> None:
        self._kept.clear()
        await self.remove_strays()

    async def remove_strays(self) -> None:
        """Those of this owner that nobody here knows of: an earlier process left them, or a clean-up failed."""
        mine = await self._mine()
        await self._engine.remove_images(image.id for image in mine if image.labels[LABEL_SNAPSHOT] not in self._kept)

    async def _mine(self) -> list[ListedImage]:
        found = [(image, of_image(image)) for image in await self._engine.images(LABEL_SNAPSHOT)]
        return [image for image, mark in found if mark and mark.owner == self._owner.identity]
