"""Snapshots as images of the daemon. Each is reference-counted, because it cannot be removed while it is used."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from weakref import WeakValueDictionary

from sandboxes.cancellation import shielded
from sandboxes.docker_engine.answers import ListedImage
from sandboxes.docker_engine.api import Engine, EngineError
from sandboxes.errors import SnapshotError
from sandboxes.interface import MIB
from sandboxes.ownership.labels import LABEL_SNAPSHOT, SNAPSHOTS, labels, labels_of_snapshot
from sandboxes.ownership.owner import Owner
from sandboxes.runtimes.docker.pausing import pause, unpause


@dataclass(slots=True)
class _SnapshotImage:
    """A snapshot. ``image``: id of its image, once made. ``parent``: snapshot that its sandbox was started from."""

    parent: str | None
    image: str = ""
    users: int = 1


class SnapshotImages:
    """Snapshot images of one owner, by name. Each ``make`` and ``use`` needs one ``give_back``."""

    def __init__(self, engine: Engine, owner: Owner) -> None:
        self._engine = engine
        self._owner = owner
        self._snapshots: dict[str, _SnapshotImage] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Container → lock: one snapshot at a time, because a paused container cannot be paused again."""

    async def make(self, name: str, container: str, parent: str | None, *, limit_mib: int) -> None:
        """Make an image of ``container``. Raises SnapshotError, also if its changed files exceed ``limit_mib``.

        After an error no ``give_back`` is needed. The limit exists because the daemon fills the holes of sparse files.
        """
        if parent is not None:
            self.use(parent)
        self._snapshots[name] = _SnapshotImage(parent)
        try:
            await shielded(self._make(name, container, limit_mib))
        except BaseException as error:
            await shielded(self.give_back(name))
            if isinstance(error, EngineError):
                raise SnapshotError(f"Docker cannot make an image of {container}: {error.message}; retry") from None
            raise

    async def _make(self, name: str, container: str, limit_mib: int) -> None:
        image_labels = labels(self._owner, snapshot=name)
        lock = self._locks.setdefault(container, asyncio.Lock())
        async with lock, self._paused(container):  # paused, so that files do not grow after they are measured
            written = await self._engine.written_bytes(container)
            if written is None or written > limit_mib * MIB:
                size = "an unknown size" if written is None else f"{written // MIB} MiB, holes included"
                raise SnapshotError(
                    f"no snapshot of {container}: its changed files have {size}, of {limit_mib} allowed; remove some",
                    unfit=True,
                )
            self._snapshots[name].image = await self._engine.commit(container, SNAPSHOTS, name, image_labels)

    @contextlib.asynccontextmanager
    async def _paused(self, container: str) -> AsyncIterator[None]:
        """Pause a container during the block."""
        try:
            await pause(self._engine, container)
            yield
        finally:
            await unpause(self._engine, container)

    def use(self, name: str) -> None:
        """Count a further use. Raises SnapshotError if the snapshot was removed."""
        if name not in self._snapshots:
            raise SnapshotError(f"snapshot {name} was removed; take a new one")
        self._snapshots[name].users += 1

    def image(self, name: str) -> str:
        """Return the image id of a snapshot in use."""
        return self._snapshots[name].image

    async def give_back(self, name: str) -> None:
        """End one use, and remove the image after the last. Unknown names are ignored."""
        snapshot = self._snapshots.get(name)
        if snapshot is None:
            return
        snapshot.users -= 1
        if snapshot.users:
            return
        del self._snapshots[name]
        if snapshot.image:
            await self._engine.remove_image(snapshot.image)
        if snapshot.parent is not None:
            await self.give_back(snapshot.parent)

    async def recall(self) -> None:
        """Find the snapshots of an earlier process of this owner. Call ``use`` for each use, then ``drop_unused``."""
        found = {image.id: image for image in await self._own_images()}
        for image in found.values():
            parent = found[image.parent].labels[LABEL_SNAPSHOT] if image.parent in found else None
            self._snapshots[image.labels[LABEL_SNAPSHOT]] = _SnapshotImage(parent, image.id, users=0)
        for snapshot in self._snapshots.values():
            if snapshot.parent is not None:
                self._snapshots[snapshot.parent].users += 1

    async def drop_unused(self) -> None:
        for name in [name for name, snapshot in self._snapshots.items() if not snapshot.users]:
            self._snapshots[name].users = 1
            await self.give_back(name)

    async def close(self) -> None:
        self._snapshots.clear()
        await self.remove_strays()

    async def remove_strays(self) -> None:
        """Remove this owner's snapshots that this process does not count: leftovers of a process or a clean-up."""
        own = await self._own_images()
        await self._engine.remove_images(
            image.id for image in own if image.labels[LABEL_SNAPSHOT] not in self._snapshots
        )

    async def _own_images(self) -> list[ListedImage]:
        found = [(image, labels_of_snapshot(image)) for image in await self._engine.images(LABEL_SNAPSHOT)]
        return [image for image, owner_labels in found if owner_labels and owner_labels.owner == self._owner.identity]
