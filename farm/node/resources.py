"""The configuration of the scheduler and of node agents, and the resources of an agent on its machine."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

from farm.agents import ensure_agent_image
from farm.archive import ArchiveSettings
from farm.build_config import read_build_settings
from farm.config import BuildOptions
from farm.core.run import ReplyTimeouts
from farm.node.host_stats import max_sandboxes, short_of
from farm.node.image_cache import ImageCache
from farm.node.metrics import NodeMetrics
from farm.policy.endpoint_access import EndpointAccess
from farm.policy.openai_endpoint import DEFAULT_TIMEOUTS
from farm.rewards import Plugins
from farm.scheduler.nodes import SchedulerSettings
from farm.tasks import TASK_PREFIX, ensure_image
from sandboxes import Runtime, RuntimeKind, WarmPool, open_runtime
from sandboxes.egress import Grants
from sandboxes.images.digest_pins import ImageOrigins
from sandboxes.images.eviction import ImageRetention, Watermarks
from sandboxes.images.last_used import ImageUses
from sandboxes.images.store import ImageStore
from sandboxes.search.index_store import IndexStore

AGENT_OWNER = "agent"
"""The owner of a node's sandboxes: one agent for each state directory, also if its node id has changed."""

GRACE_S = 300.0
"""An agent that died has this time to adopt its sandboxes."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The configuration of the scheduler, as values that travel to its process.

    ``life`` names the ``farm up`` that the scheduler belongs to.
    """

    redis_url: str
    settings: SchedulerSettings
    retention_s: float
    log_dir: Path
    log_level: str = "info"
    life: str = ""
    archive: ArchiveSettings | None = None


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The configuration of a node agent, as values that travel to its process.

    ``join`` names the ``farm up`` that the agent belongs to.
    ``warm``: sandboxes are prewarmed. ``equip`` names the function, ``module:name``, that opens its resources.
    ``image_disk``: how full Docker's disk may be; ``image_pulls``: pulls at once; ``image_mirror``: a registry to use.
    ``access``: the endpoints that it may call. ``timeouts``: of an endpoint's reply.
    ``granted``: hosts that sandboxes may reach beside the internet. ``build``: access and limits of image builds.
    ``embedder``: as ``IndexStore`` takes it. ``test_tracebacks``: as ``GradingRequest`` has them.
    ``tests_unobserved``: as ``Standstill`` has it as ``is_on``.
    """

    node_id: str
    redis_url: str
    state_dir: Path
    slots: int
    runtime: RuntimeKind = "auto"
    docker_host: str | None = None
    access: EndpointAccess = field(default_factory=EndpointAccess)
    timeouts: ReplyTimeouts = DEFAULT_TIMEOUTS
    granted: Grants = field(default_factory=Grants)
    warm: bool = False
    image_disk: Watermarks = field(default_factory=Watermarks)
    image_pulls: int = 2
    image_mirror: str | None = None
    build: BuildOptions = field(default_factory=BuildOptions)
    embedder: str = "words"
    test_tracebacks: bool = False
    tests_unobserved: bool = True
    join: str = ""
    equip: str = "farm.node.resources:open_node_resources"


@dataclass(frozen=True, slots=True)
class NodeResources:
    """The resources of an agent. Their opener closes them when the agent has ended. ``pool`` is the runtime itself if
    that prewarms sandboxes. ``image_disk`` is a directory on the disk of the images."""

    runtime: Runtime
    image_cache: ImageCache
    pool: WarmPool | None = None
    image_disk: Path | None = None
    index_store: IndexStore | None = None
    plugins: Plugins | None = None
    metrics: NodeMetrics = field(default_factory=NodeMetrics)


ResourceFactory = Callable[[NodeConfig], AbstractAsyncContextManager[NodeResources]]


def load_resource_factory(name: str) -> ResourceFactory:
    module, _, function = name.partition(":")
    return cast(ResourceFactory, getattr(importlib.import_module(module), function))


@asynccontextmanager
async def open_node_resources(plan: NodeConfig) -> AsyncIterator[NodeResources]:
    """Open the sandbox runtime, the images and the search index. Raises RuntimeUnavailable."""
    async with AsyncExitStack() as stack:
        runtime = await open_runtime(
            plan.runtime,
            state_dir=plan.state_dir,
            owner=AGENT_OWNER,
            grace_s=GRACE_S,
            docker_host=plan.docker_host,
            disk_shares=max_sandboxes(plan.slots),
            granted=plan.granted,
        )
        series = NodeMetrics()
        runtime = series.measured(runtime)
        pool = WarmPool(runtime, shortage=partial(short_of, plan.state_dir)) if plan.warm else None
        runtime = pool or runtime
        stack.push_async_callback(runtime.close)
        uses = ImageUses.of(plan.state_dir)
        settings = await asyncio.to_thread(read_build_settings, plan.build, state_dir=plan.state_dir)
        origins = ImageOrigins.of(plan.state_dir, plan.image_mirror)
        images = ImageStore(plan.docker_host, settings, uses=uses, origins=origins, pulls=plan.image_pulls)
        stack.push_async_callback(images.close)
        release = runtime.release_images
        retention = ImageRetention(images, uses, prefix=TASK_PREFIX, marks=plan.image_disk, release=release)
        stack.callback(retention.close)
        series.image_bytes = retention.own_bytes
        present = [info.name for info in await images.list(TASK_PREFIX)]
        image_cache = ImageCache(
            partial(ensure_image, images=images),
            present,
            evictor=retention,
            ensure_agent=partial(ensure_agent_image, images=images),
        )
        index_store = await stack.enter_async_context(IndexStore(plan.state_dir / "search", embedder=plan.embedder))
        plugins = await asyncio.to_thread(Plugins.installed)
        yield NodeResources(runtime, image_cache, pool, await images.root(), index_store, plugins, series)
