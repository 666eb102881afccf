"""The confinement of one build: its steps have resource limits and can connect only to package indexes."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandboxes.cgroups.cgroups import Hierarchies, find_hierarchies
from sandboxes.egress import EgressLog, EgressProxy, UpstreamProxies, proxy_environment
from sandboxes.errors import RuntimeUnavailable, SandboxError
from sandboxes.host.uncounted_excess import FindExcess
from sandboxes.images.confinement.indexes import PackageIndexes
from sandboxes.images.confinement.limits import NEEDED, BuildLimits
from sandboxes.images.confinement.mirror import IndexMirror, MirrorAccess, MirrorListener
from sandboxes.images.confinement.progress import CopyCount
from sandboxes.images.confinement.steps import Reports, StepListeners, StepWatch

REMEDY = "build on a machine whose Docker daemon is local, with the farm as root, or pull a built image instead"


class Confinement:
    """The proxies and limits of one build's steps. Use ``confine`` to create one."""

    def __init__(self, token: str, indexes: PackageIndexes, mirror: IndexMirror, upstreams: UpstreamProxies) -> None:
        self._token = token
        self._allowed, self._granted = indexes.allowed(), indexes.granted()
        self._indexes = indexes
        self._mirror = mirror
        self._upstreams = upstreams
        self._proxies: dict[str, list[EgressProxy]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.log = EgressLog()
        self._copies = CopyCount()
        self.failed: asyncio.Future[SandboxError] = asyncio.get_running_loop().create_future()
        self.watch: StepWatch | None = None

    @property
    def proxy_arguments(self) -> dict[str, str]:
        """Return the predefined build arguments, which enter neither an image's history nor a cache key."""
        found = proxy_environment()
        marked = f"{found['no_proxy']},{self._token}.invalid"
        return {**found, "no_proxy": marked, "NO_PROXY": marked}

    @property
    def variables(self) -> dict[str, str]:
        """Return the build arguments that point package managers at the mirror, the same for each build."""
        return self._indexes.variables()

    @property
    def was_late(self) -> bool:
        return self.watch is not None and self.watch.late

    def open(self, listeners: StepListeners) -> None:
        self._proxies[listeners.step_id] = [
            EgressProxy(
                self._token,
                self._allowed,
                listeners.proxy,
                self.log,
                grants=self._granted,
                upstreams=self._upstreams,
            ),
            MirrorListener(self._token, listeners.mirror, self._mirror),
        ]

    def shut(self, step_id: str) -> None:
        for proxy in self._proxies.pop(step_id, ()):
            task = asyncio.create_task(proxy.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def fail(self, error: SandboxError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    def read_progress(self, line: str) -> None:
        """Process a line of the builder's plain progress."""
        self._copies.read(line)
        if self.watch is not None:
            self.watch.copies = self._copies.count

    async def close(self) -> None:
        for step_id in list(self._proxies):
            self.shut(step_id)
        if self._closing:
            await asyncio.wait(self._closing)


@asynccontextmanager
async def confine(
    root: Path | None,
    indexes: PackageIndexes,
    access: MirrorAccess,
    limits: BuildLimits,
    find_uncounted_excess: FindExcess | None = None,
) -> AsyncIterator[Confinement]:
    """Confine the steps of one build of the engine with data root ``root``, for the duration of the context.

    Raises RuntimeUnavailable if this process cannot enter the network namespaces of the engine's steps or limit them.
    """
    executor, hierarchies = _require(root)
    token = f"farm-build-{secrets.token_hex(8)}"
    loop = asyncio.get_running_loop()
    async with IndexMirror.open(indexes, access) as mirror:
        confinement = Confinement(token, indexes, mirror, access.upstreams())
        reports = Reports(
            opened=lambda listeners: _call_in_loop(loop, confinement.open, listeners),
            closed=lambda step_id: _call_in_loop(loop, confinement.shut, step_id),
            failed=lambda error: _call_in_loop(loop, confinement.fail, error),
        )
        confinement.watch = StepWatch(executor, token, limits, hierarchies, reports, find_uncounted_excess)
        confinement.watch.start()
        try:
            yield confinement
        finally:
            await asyncio.shield(_end(confinement, confinement.watch))


async def _end(confinement: Confinement, watch: StepWatch) -> None:
    await asyncio.to_thread(watch.stop)
    await asyncio.sleep(0)  # runs pending callbacks, so that listeners reported last are closed too
    await confinement.close()


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: object, argument: object) -> None:
    assert callable(call)
    loop.call_soon_threadsafe(call, argument)


def find_obstacle(root: Path | None) -> str:
    """Return why builds of the engine with data root ``root`` cannot be confined on this machine; "" if they can."""
    if os.geteuid() != 0:
        return "the farm is not root"
    if root is None or not (root / "buildkit").is_dir():
        return "the engine's build steps are not visible, because its daemon is not local"
    hierarchies = find_hierarchies()
    if not hierarchies.unified and not NEEDED.issubset(hierarchies.mounts):
        return "no cgroups for memory, processes and processor time"
    return ""


def _require(root: Path | None) -> tuple[Path, Hierarchies]:
    obstacle = find_obstacle(root)
    if root is None or obstacle:
        raise RuntimeUnavailable(f"an image build cannot be confined: {obstacle}; {REMEDY}")
    return root / "buildkit" / "executor", find_hierarchies()
