"""The images of a Docker daemon: inspect, build, pull, import, remove."""

import asyncio
import contextlib
import logging
import tarfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import docker
from docker.errors import APIError, DockerException, ImageNotFound
from docker.models.images import Image

from sandboxes.docker_engine.api import DEFAULT_HOST, Engine
from sandboxes.docker_engine.socket import explain_socket
from sandboxes.errors import ImageError, RuntimeUnavailable, SandboxError, SpecError
from sandboxes.images.build import BuildOrder, BuildSettings, OnLine, build, read_dockerfile, write_context
from sandboxes.images.build_logs import BuildOutput
from sandboxes.images.confinement.screening import DockerfileRefused, ScreenedDockerfile, Sources, screen_triggers
from sandboxes.images.digest_pins import ImageOrigins
from sandboxes.images.last_used import ImageUses
from sandboxes.images.pull import OnProgress, PullProgress, pull, split_name
from sandboxes.ownership.scratch_dirs import scratch
from sandboxes.spec import check_image_name

__all__ = ["BuildSettings", "ImageInfo", "ImageStore", "OnLine", "OnProgress", "PullProgress"]

_API_TIMEOUT_S = 300
_BAD_REQUEST = 400
_CONFLICT = 409
_LOG_EVERY_S = 10.0

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """An image. ``digest`` is its id on this machine, ``sha256:`` and 64 hex digits; ``layers`` begin with the lowest.

    ``tagged_at``: when the image was tagged on this machine, in Unix seconds; 0 for one that was pulled under its name.
    ``user``: as whom its programs run; "" is root.
    """

    name: str
    digest: str
    env: Mapping[str, str]
    workdir: str
    size_bytes: int
    labels: Mapping[str, str]
    layers: tuple[str, ...] = ()
    tagged_at: float = 0.0
    user: str = ""


class ImageStore:
    """The images of one Docker daemon. Any call may raise RuntimeUnavailable, and ImageError for an invalid request.

    At most ``builds`` builds and ``pulls`` pulls run at once; a second build of a name waits for the first. Pulls are
    recorded in ``uses`` and use the sources and pins of ``origins``, if these are given.
    """

    def __init__(
        self,
        docker_host: str | None = None,
        settings: BuildSettings | None = None,
        *,
        uses: ImageUses | None = None,
        origins: ImageOrigins | None = None,
        builds: int = 2,
        pulls: int = 2,
    ) -> None:
        self._docker_host = docker_host
        self._settings = settings or BuildSettings()
        self._uses = uses
        self._origins = origins
        self._client: docker.DockerClient | None = None
        self._builds = asyncio.Semaphore(builds)
        self._pulls = asyncio.Semaphore(pulls)
        self._names: dict[str, asyncio.Lock] = {}

    async def inspect(self, name: str) -> ImageInfo | None:
        """Return an image, None if it does not exist. Raises SpecError for an invalid name."""
        check_image_name(name)
        try:
            return _info(name, await self._ask(lambda client: client.images.get(name)))
        except ImageNotFound:
            return None

    async def list(self, prefix: str = "") -> tuple[ImageInfo, ...]:
        """Return the images whose name begins with ``prefix``, sorted by name.

        An untagged image is listed under its repository digest.
        """

        def collect(client: docker.DockerClient) -> list[ImageInfo]:
            found: list[ImageInfo] = []
            for row in client.api.images():
                names = [name for name in _names(row) if name.startswith(prefix)]
                with contextlib.suppress(ImageNotFound):  # removed in the meantime
                    image = client.images.get(row["Id"]) if names else None
                    found += [_info(name, image) for name in names if image is not None]
            return found

        return tuple(sorted(await self._ask(collect), key=lambda info: info.name))

    async def occupied(self) -> frozenset[str]:
        """Return the digests of images with containers, running or not."""
        rows = await self._ask(lambda client: client.api.containers(all=True))
        return frozenset(str(row["ImageID"]) for row in rows)

    async def root(self) -> Path | None:
        """Return the daemon's data root; None if it is not visible from this machine."""
        info = await self._ask(lambda client: client.info())
        root = Path(info["DockerRootDir"])
        return root if await asyncio.to_thread(root.is_dir) else None

    async def prune_cache(self) -> int:
        """Prune build cache entries that no image shares; return the bytes freed."""
        pruned = await self._ask(lambda client: client.api.prune_builds())
        return int(pruned.get("SpaceReclaimed") or 0)

    async def remove(self, name: str) -> bool:
        """Remove an image; return False if it did not exist or a container uses it."""
        try:
            await self._call(lambda client: client.images.remove(name))
        except ImageNotFound:
            return False
        except APIError as error:
            if error.status_code == _CONFLICT:
                return False
            raise ImageError(f"{name} cannot be removed: {error.explanation}") from None
        return True

    def admit(self, name: str) -> None:
        """Check that the operator admits the registry of an image that a task names.

        The daemon fetches images in the machine's own network, so a task could make it connect to any address. Raises
        ImageError.
        """
        try:
            Sources(frozenset(self._settings.registries)).admit(name)
        except DockerfileRefused as refused:
            raise ImageError(str(refused)) from None

    async def pull(self, name: str, on_progress: OnProgress | None = None, *, anew: bool = False) -> ImageInfo:
        """Pull an image. The first pull pins the name to its digest; later pulls fetch this digest unless ``anew``.

        Raises ImageError if the registry refuses the image, DiskFull, and RuntimeUnavailable for a temporary failure.
        """
        new = await self.inspect(name) is None
        source = self._origins.source(name, anew=anew) if self._origins else name
        async with self._pulls:
            began = time.monotonic()
            engine = Engine(self._docker_host)
            try:
                await engine.connect()
                await pull(engine, source, _logging_progress(source, on_progress))
            finally:
                await engine.close()
            log.info("pulled %s in %.1f s", source, time.monotonic() - began)
        await self._tag_and_pin(name, source)
        if new and self._uses:
            self._uses.note_pulled(name)
        return await self._existing(name)

    async def _tag_and_pin(self, name: str, source: str) -> None:
        """Tag the image pulled as ``source`` with its name, and pin the name."""
        repository = split_name(source)[0]

        def tag(client: docker.DockerClient) -> str:
            image = client.images.get(source)
            digests = [split_name(known) for known in image.attrs.get("RepoDigests") or ()]
            if source != name:
                image.tag(*split_name(name))
                if repository != split_name(name)[0]:  # else the mirror's tag would keep the image after removal
                    client.images.remove(source)
            return next((digest for known, digest in digests if known == repository), "")

        try:
            digest = await self._ask(tag)
        except ImageNotFound:
            raise ImageError(
                f"image {source} was removed before it was tagged; check what else removes images on this machine"
            ) from None
        if self._origins:
            self._origins.note(name, digest)

    async def import_rootfs(self, path: Path, name: str) -> ImageInfo:
        """Create a single-layer image from a directory or a tar file."""
        repository, tag = split_name(name)
        with scratch() as place:
            source = await asyncio.to_thread(_as_archive, path, place)
            try:
                await self._call(lambda client: client.api.import_image_from_file(str(source), repository, tag))
            except APIError as error:
                raise ImageError(f"{path} cannot be imported as {name}: {error.explanation}") from None
        return await self._existing(name)

    async def build(
        self,
        name: str,
        files: Mapping[str, bytes] | Path,
        *,
        timeout_s: float,
        executables: Collection[str] = (),
        on_line: OnLine | None = None,
    ) -> ImageInfo:
        """Build the context in ``files`` and tag the image ``name``.

        ``files`` is a directory, or contents by relative path, with ``executables`` marked executable. ``on_line`` is
        called with each line of the builder's output. The build is killed at the time-out and on cancellation. The
        error of a failed build names the file with its whole output, if the settings have ``logs``.
        """
        async with self._names.setdefault(name, asyncio.Lock()), self._builds:
            with scratch() as root:
                context = files if isinstance(files, Path) else write_context(root / "context", files, executables)
                screened = await self._screen(name, context)
                output = BuildOutput()
                take = _tee(output.take, on_line)
                order = BuildOrder(name, context, screened.text, timeout_s, self._docker_host, await self.root(), take)
                try:
                    await build(order, self._settings, root)
                except (ImageError, RuntimeUnavailable) as error:
                    raise await asyncio.to_thread(self._with_log, name, error, output) from None
        if self._uses:
            self._uses.note(name)
        return await self._existing(name)

    def _with_log(self, name: str, error: SandboxError, output: BuildOutput) -> SandboxError:
        """Keep the log of a failed build, and return the error with the log's path."""
        path = self._settings.logs and self._settings.logs.keep(name, output)
        return type(error)(f"{error}; its whole log is {path}") if path else error

    async def _screen(self, name: str, context: Path) -> ScreenedDockerfile:
        """Read and screen the Dockerfile. Missing base images are pulled, because they may hold ``ONBUILD``
        instructions.

        Raises ImageError and RuntimeUnavailable.
        """
        rows = await self._ask(lambda client: client.api.images())
        present = frozenset(known for row in rows for known in _names(row))
        sources = Sources(frozenset(self._settings.registries), present)
        screened = await asyncio.to_thread(read_dockerfile, name, context, sources)
        for base in (*screened.bases, *screened.stages):
            try:
                if await self.inspect(base) is None:
                    await self.pull(base)
            except (ImageError, SpecError) as error:
                if base in screened.stages:  # no image has the name: it is a stage
                    continue
                raise ImageError(f"{name} does not build: {error}") from None
            except RuntimeUnavailable as error:
                if base in screened.stages:
                    continue
                raise RuntimeUnavailable(f"{name} does not build just now: {error}") from None
            triggers = await self._triggers(base)
            try:
                await asyncio.to_thread(screen_triggers, triggers, sources)
            except ImageError as error:
                raise ImageError(f"{name} does not build: ONBUILD of {base}: {error}") from None
        return screened

    async def _triggers(self, base: str) -> tuple[str, ...]:
        image = await self._ask(lambda client: client.images.get(base))
        return tuple((image.attrs.get("Config") or {}).get("OnBuild") or ())

    async def engine(self) -> str:
        """Describe the daemon: its version, storage driver and cgroup version."""
        info = await self._ask(lambda client: client.info())
        return f"Docker {info['ServerVersion']}, {info['Driver']}, cgroup v{info.get('CgroupVersion', '1')}"

    async def close(self) -> None:
        if self._client is not None:
            await asyncio.to_thread(self._client.close)
            self._client = None

    async def _existing(self, name: str) -> ImageInfo:
        found = await self.inspect(name)
        if found is None:
            raise ImageError(
                f"image {name} was removed after it was created; check what else removes images on this machine"
            )
        return found

    async def _ask(self, ask: Callable[[docker.DockerClient], T]) -> T:
        """Call the daemon; map its errors, except a missing image, to ImageError (invalid name) or
        RuntimeUnavailable.
        """
        try:
            return await self._call(ask)
        except ImageNotFound:
            raise
        except APIError as error:
            if error.status_code == _BAD_REQUEST:
                raise ImageError(f"{error.explanation}; check the image's name") from None
            raise RuntimeUnavailable(f"the Docker daemon refused a request: {error.explanation}; see its log") from None

    async def _call(self, ask: Callable[[docker.DockerClient], T]) -> T:
        host = self._docker_host or DEFAULT_HOST

        def call() -> T:
            if self._client is None:
                self._client = docker.DockerClient(base_url=host, timeout=_API_TIMEOUT_S)
            return ask(self._client)

        try:
            return await asyncio.to_thread(call)
        except APIError:
            raise
        except (DockerException, OSError) as error:
            if host.startswith("unix://"):
                explain_socket(Path(host.removeprefix("unix://")))
            raise RuntimeUnavailable(
                f"Docker does not answer at {host} ({type(error).__name__}); start the daemon, or run farm doctor"
            ) from error


def _tee(take: OnLine, on_line: OnLine | None) -> OnLine:
    def tee(line: str) -> None:
        take(line)
        if on_line is not None:
            on_line(line)

    return tee


def _info(name: str, image: Image) -> ImageInfo:
    config = image.attrs.get("Config") or {}
    pairs = (item.partition("=") for item in config.get("Env") or ())
    return ImageInfo(
        name=name,
        digest=str(image.id),
        env={key: value for key, _, value in pairs},
        workdir=config.get("WorkingDir") or "/",
        size_bytes=int(image.attrs.get("Size") or 0),
        labels=dict(config.get("Labels") or {}),
        layers=tuple((image.attrs.get("RootFS") or {}).get("Layers") or ()),
        tagged_at=_tagged_at(image),
        user=str(config.get("User") or ""),
    )


def _names(row: Mapping[str, Any]) -> "list[str]":
    """Return the names of an image in the daemon's list: its tags, or else its repository digests."""
    for key in ("RepoTags", "RepoDigests"):
        if names := [name for name in row.get(key) or () if "<none>" not in name]:
            return names
    return []


def _tagged_at(image: Image) -> float:
    """Return the time of the last tagging; 0 if the daemon reports its zero time, which means never."""
    text = (image.attrs.get("Metadata") or {}).get("LastTagTime") or ""
    try:
        return max(datetime.fromisoformat(text).timestamp(), 0.0)
    except ValueError:
        return 0.0


def _logging_progress(name: str, on_progress: OnProgress | None) -> OnProgress:
    """Log the start of a pull, and its progress every few seconds."""
    log.info("pulling %s", name)
    logged_at = time.monotonic()

    def report(progress: PullProgress) -> None:
        nonlocal logged_at
        if on_progress is not None:
            on_progress(progress)
        if time.monotonic() - logged_at > _LOG_EVERY_S:
            logged_at = time.monotonic()
            log.info("pulling %s: %s", name, progress)

    return report


def _as_archive(path: Path, place: Path) -> Path:
    """Return ``path`` if it is a tar file, otherwise a tar file of the directory."""
    if not path.is_dir():
        return path
    target = place / "rootfs.tar"
    with tarfile.open(target, "w") as archive:
        for child in sorted(path.iterdir()):
            archive.add(child, arcname=child.name)
    return target
