"""A runtime of in-memory sandboxes for tests: the same contract, without isolation and daemon.

Failures are configured as values: an error for the n-th boot, or a number of calls after which the n-th sandbox is lost
and the cause of the loss. ``FakeSandbox.die`` ends a sandbox while a call is in progress.
"""

import itertools
from collections.abc import AsyncIterator, Iterable, Mapping

from sandboxes.errors import ImageError, LossCause, SandboxError, SpecError
from sandboxes.interface import Sandbox, sandbox_scope
from sandboxes.snapshot import Snapshot
from sandboxes.spec import SandboxSpec, check_spec
from sandboxes.testing.fake_sandbox import FakeSandbox
from sandboxes.testing.files import FakeFiles, digest_of_files
from sandboxes.testing.programs import Program


class FakeRuntime:
    """An in-memory runtime. ``images`` maps an image's name to its files. ``programs`` are added to every sandbox.

    The n-th ``create`` raises the n-th of ``boot_errors`` (None: boots). The n-th sandbox that boots answers as many
    calls as the n-th of ``lifetimes`` (None: any number), then is lost with the cause ``by``. After the end of a
    sequence nothing fails.
    """

    name = "fake"
    degraded = ()

    def __init__(
        self,
        images: Mapping[str, Mapping[str, bytes]],
        *,
        programs: Mapping[str, Program] | None = None,
        boot_errors: Iterable[SandboxError | None] = (),
        lifetimes: Iterable[int | None] = (),
        by: LossCause = LossCause.OUTSIDE,
    ) -> None:
        self._images = images
        self._programs = programs or {}
        self._boot_errors = iter(boot_errors)
        self._lifetimes = iter(lifetimes)
        self._by = by
        self._numbers = itertools.count(1)
        self.sandboxes: dict[str, FakeSandbox] = {}
        """Running sandboxes by id."""
        self._snapshots: dict[str, tuple[Snapshot, FakeFiles]] = {}

    async def create(self, spec: SandboxSpec, *, base: Snapshot | None = None, boot_timeout_s: float = 60.0) -> Sandbox:
        check_spec(spec)
        copy = self._files_of_snapshot(spec, base) if base else None
        image = self._files_of(spec.image)
        error = next(self._boot_errors, None)
        if error is not None:
            raise error
        sandbox = FakeSandbox(
            f"fake-{next(self._numbers)}",
            spec,
            copy or FakeFiles(image),
            self._programs,
            self,
            image_digest=digest_of_files(image),
            copied=base is not None,
            lifetime=next(self._lifetimes, None),
            by=self._by,
        )
        self.sandboxes[sandbox.id] = sandbox
        return sandbox

    def snapshot(self, sandbox: FakeSandbox) -> Snapshot:
        snapshot = Snapshot(f"copy-{next(self._numbers)}", sandbox.spec, sandbox.image_digest, self.forget)
        self._snapshots[snapshot.id] = snapshot, sandbox.files.copy()
        return snapshot

    def _files_of_snapshot(self, spec: SandboxSpec, base: Snapshot) -> FakeFiles:
        snapshot, files = self._snapshots.get(base.id, (None, FakeFiles({})))
        if snapshot is not base:
            raise SpecError(f"snapshot {base.id} was removed or belongs to another runtime; take a new one")
        if spec.image != base.spec.image:
            raise SpecError(f"snapshot {base.id} is of image {base.spec.image}, not {spec.image}; use the same image")
        return files.copy()

    async def forget(self, snapshot_id: str) -> None:
        self._snapshots.pop(snapshot_id, None)

    scope = sandbox_scope

    async def digest_of(self, image: str) -> str:
        return digest_of_files(self._files_of(image))

    def _files_of(self, image: str) -> Mapping[str, bytes]:
        files = self._images.get(image)
        if files is None:
            raise ImageError(f"image {image} is not on this machine; build or pull it")
        return files

    async def release_images(self) -> None:
        """Do nothing: no images are held."""

    async def living(self) -> AsyncIterator[str]:
        for sandbox_id in list(self.sandboxes):
            yield sandbox_id

    async def adopt(self) -> list[Sandbox]:
        """Return all running sandboxes; they exist only in this process."""
        return list(self.sandboxes.values())

    async def reap(self) -> int:
        return 0

    async def close(self) -> None:
        for sandbox in list(self.sandboxes.values()):
            await sandbox.remove()
        self._snapshots.clear()
