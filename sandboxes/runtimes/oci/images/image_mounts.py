"""Docker's images as layers for sandboxes. A pin keeps the daemon from removing an image while sandboxes use it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.cancellation import shielded
from sandboxes.docker_engine.answers import Image
from sandboxes.docker_engine.api import Engine, EngineError
from sandboxes.errors import ImageError, SandboxError, SpecError
from sandboxes.ownership.labels import LABEL_PIN, labels, labels_of_container, pin_name
from sandboxes.ownership.owner import Owner
from sandboxes.runtimes.oci.images.image_user import ImageUser, find_user
from sandboxes.runtimes.oci.images.layers import image_layers, sweep_copies
from sandboxes.runtimes.oci.starter import LAYERS_MAX

log = logging.getLogger(__name__)

IDLE_S = 600.0
"""An unused image stays pinned for this time."""


@dataclass(slots=True)
class MountedImage:
    """A pinned image. ``layers``: topmost first. ``pin``: a container that never runs and keeps the daemon from
    removing the image, until it is removed itself, for example by ``docker system prune``.

    ``pin_at``: directory that exists as long as the pin; None if the daemon's directories cannot be seen.
    """

    id: str
    workdir: str
    env: Mapping[str, str]
    user: ImageUser
    layers: tuple[Path, ...]
    pin: str
    pin_at: Path | None = None
    users: int = 0
    idle_since: float = field(default_factory=time.monotonic)

    def is_pinned(self) -> bool:
        return self.pin_at is None or self.pin_at.is_dir()

    def is_complete(self) -> bool:
        """Return True if all layers exist. While the pin exists they do, which is faster to check."""
        return (self.pin_at is not None and self.pin_at.is_dir()) or all(layer.is_dir() for layer in self.layers)


class MountedImages:
    """Pins and looks up each image once, because that takes more than a moment."""

    def __init__(self, engine: Engine, owner: Owner) -> None:
        self._engine = engine
        self._owner = owner
        self._mounted: dict[str, MountedImage] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def take(self, name: str) -> MountedImage:
        """Return the image ``name`` (or id) and count a use, which ends with ``give_back``.

        Raises ImageError or SpecError.
        """
        image = self._mounted.get(name) or await self._find(name)
        if not image.is_pinned():
            await self._pin_again(image)
            image = self._mounted.get(image.id) or await self._find(name)
        image.users += 1
        return image

    def give_back(self, image: MountedImage) -> None:
        image.users -= 1
        image.idle_since = time.monotonic()

    async def sweep(self, idle_s: float = IDLE_S) -> None:
        """Unpin images that were unused for ``idle_s``."""
        for image in list(self._mounted.values()):
            async with self._locks.setdefault(image.id, asyncio.Lock()):  # or a new pin would collide with the old one
                idle = not image.users and time.monotonic() - image.idle_since >= idle_s
                if idle and self._mounted.get(image.id) is image:
                    del self._mounted[image.id]
                    await self._engine.remove(image.pin)
            if image.users and not image.is_pinned():
                with contextlib.suppress(ImageError):  # the next ``take`` raises it
                    await self._pin_again(image)
        await sweep_copies(self._engine, self._owner.state_dir, self._mounted)

    async def close(self) -> None:
        with contextlib.suppress(SandboxError):  # the reaper finds the pins
            for image in self._mounted.values():
                image.users = 0
            await self.sweep(idle_s=0.0)

    async def drop_strays(self) -> None:
        """Remove pins of an earlier process of this owner that are not needed."""
        for container in await self._engine.containers(LABEL_PIN):
            owner_labels = labels_of_container(container)
            if (
                owner_labels
                and owner_labels.pin
                and owner_labels.owner == self._owner.identity
                and not self._is_held(owner_labels.pin)
            ):
                await self._engine.remove(container.id)

    def _is_held(self, image_id: str) -> bool:
        lock = self._locks.get(image_id)
        return image_id in self._mounted or (lock is not None and lock.locked())

    async def _pin_again(self, image: MountedImage) -> None:
        """Pin an image again whose pin was removed. Drop it if layers are missing."""
        async with self._locks.setdefault(image.id, asyncio.Lock()):
            if image.is_pinned() or self._mounted.get(image.id) is not image:
                return
            log.warning("the pin of image %s was removed from outside; it is made again", image.id)
            del self._mounted[image.id]
            if image.is_complete():
                async with self._pinned(image) as pin:
                    image.pin, image.pin_at = pin, _directory_of(pin, image.layers)
                    self._mounted[image.id] = image

    async def _find(self, name: str) -> MountedImage:
        image = await self._engine.image(name)
        async with self._locks.setdefault(image.id, asyncio.Lock()):
            if image.id not in self._mounted:
                await self._mount(image)
        return self._mounted[image.id]

    async def _mount(self, image: Image) -> None:
        async with self._pinned(image) as pin:
            layers = await image_layers(self._engine, image, pin, self._owner)
            if len(layers) > LAYERS_MAX:
                raise SpecError(
                    f"image {image.id} has {len(layers)} layers, at most {LAYERS_MAX} can be mounted; squash it"
                )
            user = await asyncio.to_thread(find_user, image.user, layers)
            mounted = MountedImage(image.id, image.workdir, image.env, user, tuple(layers), pin)
            mounted.pin_at = _directory_of(pin, mounted.layers)
            self._mounted[image.id] = mounted

    @contextlib.asynccontextmanager
    async def _pinned(self, image: Image | MountedImage) -> AsyncIterator[str]:
        name = pin_name(self._owner.identity, image.id)
        pin_labels = labels(self._owner, pin=image.id)
        # The daemon would look up the image's own working directory and create it if it is missing.
        config = {
            "Image": image.id,
            "Entrypoint": ["/"],
            "WorkingDir": "/",
            "Labels": pin_labels,
            "NetworkDisabled": True,
        }
        try:
            yield await shielded(self._pin(name, config))
        except BaseException as error:
            if image.id not in self._mounted:  # it is, if the caller was cancelled at the last moment
                await shielded(self._engine.remove(name))
            if isinstance(error, EngineError) and error.status == 404:
                raise ImageError(f"image {image.id} was just removed; build or pull it again") from None
            raise

    async def _pin(self, name: str, config: Mapping[str, object]) -> str:
        try:
            return await self._engine.create(name, config)
        except EngineError as error:
            if error.status != 409:
                raise
            return await self._engine.id_of(name)  # left by an earlier process of this owner


def _directory_of(container: str, layers: tuple[Path, ...]) -> Path | None:
    """Return the directory of a container at the daemon, or None if it cannot be seen."""
    directory = layers[0].parents[2] / "containers" / container
    return directory if directory.is_dir() else None
