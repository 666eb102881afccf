"""Images on this machine: looked at, built, pulled, imported, removed."""

import asyncio
import tarfile
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import docker
from docker.errors import APIError, DockerException, ImageNotFound
from docker.models.images import Image

from sandboxes.builds import BuildSettings, OnLine, build, write_context
from sandboxes.errors import ImageError, RuntimeUnavailable

__all__ = ["BuildSettings", "ImageInfo", "ImageStore", "OnLine"]

_SOCKET = "unix:///var/run/docker.sock"
_API_TIMEOUT_S = 300
_IN_USE = 409

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """``digest`` is the image's id on this machine, ``sha256:`` and 64 hex digits."""

    name: str
    digest: str
    env: Mapping[str, str]
    workdir: str
    size_bytes: int
    labels: Mapping[str, str]


class ImageStore:
    """The images of one Docker daemon. Any call may raise RuntimeUnavailable, and ImageError about what it was asked.

    At most ``builds`` builds run at once; a second build of a name waits for the first.
    """

    def __init__(
        self, docker_host: str | None = None, settings: BuildSettings | None = None, *, builds: int = 2
    ) -> None:
        self._docker_host = docker_host
        self._settings = settings or BuildSettings()
        self._client: docker.DockerClient | None = None
        self._slots = asyncio.Semaphore(builds)
        self._names: dict[str, asyncio.Lock] = {}

    async def inspect(self, name: str) -> ImageInfo | None:
        """None where no such image is here."""
        try:
            return _info(name, await self._call(lambda client: client.images.get(name)))
        except ImageNotFound:
            return None

    async def list(self, prefix: str = "") -> tuple[ImageInfo, ...]:
        """Images whose name begins with ``prefix``, sorted by name."""
        found = await self._call(lambda client: client.images.list())
        return tuple(sorted(_named(found, prefix), key=lambda info: info.name))

    async def remove(self, name: str) -> bool:
        """False where it was not here, or a container still uses it."""
        try:
            await self._call(lambda client: client.images.remove(name))
        except ImageNotFound:
            return False
        except APIError as error:
            if error.status_code == _IN_USE:
                return False
            raise ImageError(f"{name} cannot be removed: {error.explanation}") from None
        return True

    async def pull(self, name: str) -> ImageInfo:
        repository, tag = _split(name)
        try:
            await self._call(lambda client: client.images.pull(repository, tag))
        except APIError as error:
            raise ImageError(
                f"{name} cannot be pulled: {error.explanation}; check the name and the way to its registry"
            ) from None
        return await self._existing(name)

    async def import_rootfs(self, path: Path, name: str) -> ImageInfo:
        """Make an image of one layer from a directory or a tar file."""
        repository, tag = _split(name)
        with tempfile.TemporaryDirectory(prefix="farm-import-") as scratch:
            source = await asyncio.to_thread(_as_archive, path, Path(scratch))
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
        """Build the context in ``files`` (a directory, or contents by relative path, those in
        ``executables`` marked so) and tag it ``name``.

        ``on_line`` gets each line of the builder's output. At the time-out, or when cancelled, the build is killed.
        """
        async with self._names.setdefault(name, asyncio.Lock()), self._slots:
            with tempfile.TemporaryDirectory(prefix="farm-build-") as scratch:
                root = Path(scratch)
                await build(
                    name,
                    files if isinstance(files, Path) else write_context(root / "context", files, executables),
                    settings=self._settings,
                    docker_host=self._docker_host,
                    scratch=root,
                    timeout_s=timeout_s,
                    on_line=on_line,
                )
        return await self._existing(name)

    async def engine(self) -> str:
        """What answers: its version, storage driver and control groups, in words."""
        told = await self._call(lambda client: client.info())
        return f"Docker {told['ServerVersion']}, {told['Driver']}, cgroup v{told.get('CgroupVersion', '1')}"

    async def close(self) -> None:
        if self._client is not None:
            await asyncio.to_thread(self._client.close)
            self._client = None

    async def _existing(self, name: str) -> ImageInfo:
        found = await self.inspect(name)
        if found is None:
            raise ImageError(f"{name} is not here after it was made; is something removing images on this machine?")
        return found

    async def _call(self, ask: Callable[[docker.DockerClient], T]) -> T:
        def call() -> T:
            if self._client is None:
                self._client = docker.DockerClient(base_url=self._docker_host or _SOCKET, timeout=_API_TIMEOUT_S)
            return ask(self._client)

        try:
            return await asyncio.to_thread(call)
        except APIError:
            raise
        except (DockerException, OSError) as error:
            raise RuntimeUnavailable(
                f"the Docker daemon at {self._docker_host or _SOCKET} does not answer "
                f"({type(error).__name__}); start it, or ask farm doctor"
            ) from error


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
    )


def _named(images: "list[Image]", prefix: str) -> "list[ImageInfo]":
    return [_info(tag, image) for image in images for tag in image.tags if tag.startswith(prefix)]


def _split(name: str) -> tuple[str, str]:
    """Repository and tag; a colon before a slash belongs to a registry's port."""
    repository, colon, tag = name.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (name, "latest")


def _as_archive(path: Path, scratch: Path) -> Path:
    """``path`` itself where it is a tar file, else a tar file of the directory."""
    if not path.is_dir():
        return path
    target = scratch / "rootfs.tar"
    with tarfile.open(target, "w") as archive:
        for child in sorted(path.iterdir()):
            archive.add(child, arcname=child.name)
    return target
