"""Docker's images as layers that sandboxes can be mounted on; each held as long as a sandbox is made of it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.cancellation import shielded
from sandboxes.docker_engine.api import Engine, EngineError, Image
from sandboxes.errors import ImageError, SandboxError, SpecError
from sandboxes.ownership.labels import LABEL_PIN, labels, of_container, pin_name
from sandboxes.ownership.owner import Owner
from sandboxes.runtimes.oci.images.image_user import ImageUser, find_user
from sandboxes.runtimes.oci.images.layers import directories, sweep_copies
from sandboxes.runtimes.oci.starter import LAYERS_MAX

log = logging.getLogger(__name__)

IDLE_S = 600.0
"""So long an image that nobody uses stays mounted."""


@dataclass(slots=True)
class MountedImage:
    """``layers``: topmost first. ``pin``: a container that never runs, which keeps the daemon from removing them until
    somebody removes it, as ``docker system prune`` does. ``pin_at``: it is there as long as this directory is; None
    where the daemon's are not to be seen."""

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

    def is_whole(self) -> bool:
        """As long as the pin is there the layers are; a look at them all takes longer."""
        return (self.pin_at is not None and self.pin_at.is_dir()) or all(layer.is_dir() for layer in self.layers)


class MountedImages:
    """What costs more than a moment is done once an image: asking the daemon, and holding the layers."""

    def __init__(self, engine: Engine, owner: Owner) -> None:
        self._engine = engine
        self._owner = owner
        self._mounted: dict[str, MountedImage] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def take(self, name: str) -> MountedImage:
        """``name``, an id too, as the daemon knows it. To be given back. Raises ImageError or SpecError."""
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
        """Let go of what has not been used for so long."""
        for image in list(self._mounted.values()):
            async with self._locks.setdefault(image.id, asyncio.Lock()):  # else a new pin would meet the old one
                idle = not image.users and time.monotonic() - image.idle_since >= idle_s
                if idle and self._mounted.get(image.id) is image:
                    del self._mounted[image.id]
                    await self._engine.remove(image.pin)
            if image.users and not image.is_pinned():
                with contextlib.suppress(ImageError):  # then whoever asks for it next is told
                    await self._pin_again(image)
        await sweep_copies(self._engine, self._owner.state_dir, self._mounted)

    async def close(self) -> None:
        with contextlib.suppress(SandboxError):  # then the reaper finds the pins
            for image in self._mounted.values():
                image.users = 0
            await self.sweep(idle_s=0.0)

    async def drop_strays(self) -> None:
        """Of the pins that an earlier process of this owner left, those that nothing needs."""
        for container in await self._engine.containers(LABEL_PIN):
            mark = of_container(container)
            if mark and mark.pin and mark.owner == self._owner.identity and not self._is_held(mark.pin):
                await self._engine.remove(container.id)

    def _is_held(self, image_id: str) -> bool:
        making = self._locks.get(image_id)
        return image_id in self._mounted or (making is not None and making.locked())

    async def _pin_again(self, image: MountedImage) -> None:
        """What is left of an image whose pin was removed is held again; forgotten where too little is left."""
        async with self._locks.setdefault(image.id, asyncio.Lock()):
            if image.is_pinned() or self._mounted.get(image.id) is not image:
                return
            log.warning("what holds image %s was removed, and is made anew", image.id)
            del self._mounted[image.id]
            if image.is_whole():
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
            layers = await directories(self._engine, image, pin, self._owner)
            if len(layers) > LAYERS_MAX:
                raise SpecError(f"image {image.id} has {len(layers)} layers; at most {LAYERS_MAX} can be mounted")
            user = await asyncio.to_thread(find_user, image.user, layers)
            found = MountedImage(image.id, image.workdir, image.env, user, tuple(layers), pin)
            found.pin_at = _directory_of(pin, found.layers)
            self._mounted[image.id] = found

    @contextlib.asynccontextmanager
    async def _pinned(self, image: Image | MountedImage) -> AsyncIterator[str]:
        name = pin_name(self._owner.identity, image.id)
        marked = labels(self._owner, pin=image.id)
        # A directory of its own: the image's the daemon would look up, and make.
        config = {
            "Image": image.id,
            "Entrypoint": ["/"],
            "WorkingDir": "/",
            "Labels": marked,
            "NetworkDisabled": True,
        }
        try:
            yield await shielded(self._pin(name, config))
        except BaseException as error:
            if image.id not in self._mounted:  # cancelled as it was ready: the next to ask has it
                await shielded(self._engine.remove(name))
            if isinstance(error, EngineError) and error.status == 404:
                raise ImageError(f"image {image.id} was removed just now; build or pull it again") from None
            raise

    async def _pin(self, name: str, config: Mapping[str, object]) -> str:
        try:
            return await self._engine.create(name, config)
        except EngineError as error:
            if error.status != 409:
                raise
            return await self._engine.id_of(name)  # an earlier process of this owner left it


def _directory_of(container: str, layers: tuple[Path, ...]) -> Path | None:
    """Where the daemon that keeps ``layers`` has a container; None where that cannot be seen."""
    place = layers[0].parents[2] / "containers" / container
    return place if place.is_dir() else None
