"""What an oci runtime stands on: where images are, the disk of its sandboxes, and what starts them."""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path

from sandboxes.cgroups.cgroups import Hierarchies, find_hierarchies
from sandboxes.docker_engine.api import Engine
from sandboxes.docker_engine.image_names import DRIVER
from sandboxes.errors import RuntimeUnavailable
from sandboxes.ownership.owner import Owner
from sandboxes.runtimes.oci import starter
from sandboxes.runtimes.oci.images.common_layer import ensure_layer
from sandboxes.runtimes.oci.oci_programs import OciProgram, sealed
from sandboxes.runtimes.oci.starter import Starter
from sandboxes.runtimes.oci.storage import mounts
from sandboxes.runtimes.oci.storage.btrfs import IMAGE, QuotaDisk
from sandboxes.runtimes.oci.storage.disk import SandboxDisk, open_disk
from sandboxes.toolserver.toolbox import Toolbox


@dataclass(slots=True)
class OciHost:
    """``undo`` takes it all away. ``images``: where the daemon keeps its own. ``lacks``: what the machine cannot, a
    line each. ``layer``: see ``sandboxes.runtimes.oci.images.common_layer``. ``disk`` changes where it is renewed."""

    engine: Engine
    images: Path
    owner: Owner
    toolbox: Toolbox
    layer: Path
    disk: SandboxDisk
    places: int
    hierarchies: Hierarchies
    undo: contextlib.AsyncExitStack
    degraded: tuple[str, ...]

    @classmethod
    async def prepare(
        cls, undo: contextlib.AsyncExitStack, engine: Engine, owner: Owner, toolbox: Toolbox, places: int
    ) -> "OciHost":
        """``places``: for so many sandboxes. Raises RuntimeUnavailable."""
        hierarchies = find_hierarchies()
        if not hierarchies.mounts:
            raise RuntimeUnavailable("the oci runtime needs control groups; mount them at /sys/fs/cgroup")
        images = (await engine.root()).resolve()
        if hidden := [place for place in (images, owner.state_dir) if place.is_relative_to(starter.PLACE)]:
            raise RuntimeUnavailable(f"{hidden[0]} lies below {starter.PLACE}, which the oci runtime hides; move it")
        home = owner.sandbox_dir("")
        layer = await asyncio.to_thread(ensure_layer, home, toolbox.path)
        disk, lack = await asyncio.to_thread(open_disk, home, places)
        lacks = (lack,) if lack else ()
        ground = cls(engine, images, owner, toolbox, layer, disk, places, hierarchies, undo, lacks)
        undo.callback(lambda: ground.disk.close())
        return ground

    def seen_by(self, program: OciProgram) -> Hierarchies:
        """The control groups that ``program`` is to see."""
        return self.hierarchies.needed() if program.is_crun else self.hierarchies

    def renew_disk(self) -> None:
        """What lives on the old one goes on until it is removed. Raises RuntimeUnavailable; blocks."""
        home = self.layer.parent
        (home / IMAGE).unlink(missing_ok=True)  # or the old one would be found again
        failed = self.disk
        self.disk = QuotaDisk(home, self.places)
        failed.close()

    async def launch(self, program: OciProgram) -> Starter:
        """Raises RuntimeUnavailable."""
        narrow = program.is_crun and not self.hierarchies.unified
        try:
            with (
                mounts.closing(self.disk.tree()) as disk,
                mounts.closing(mounts.clone(self.layer, read_only=True)) as layer,
                mounts.closing(sealed(program.path)) as copy,
            ):
                return await Starter.launch(
                    self.toolbox.starter,
                    program=copy,
                    inside=self.toolbox.starter_library if program.loaded_once else None,
                    disk=disk,
                    layer=layer,
                    needed=[program.path, program.path.resolve(), self.images / DRIVER, self.owner.state_dir],
                    hierarchies=self.seen_by(program).roots if narrow else [],
                )
        except OSError as error:
            raise RuntimeUnavailable(f"mounts of its own: {error.strerror}; the oci runtime needs Linux 5.12") from None
