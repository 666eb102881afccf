"""The Docker Engine's HTTP interface, as much of it as sandboxes need, without blocking the event loop.

A sandbox costs the daemon four requests: image, create, start, inspect. The Docker SDK is synchronous, so that each
would hold a thread and could not be cancelled; over its socket the interface is plain HTTP with JSON.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sandboxes.docker_engine.image_names import ImageNames
from sandboxes.docker_engine.socket import explain_socket
from sandboxes.errors import ImageError, RuntimeUnavailable, SandboxError
from sandboxes.linux.remove_tree import remove_tree

DEFAULT_HOST = "unix:///var/run/docker.sock"
REQUEST_TIMEOUT_S = 120.0
PULL_SILENCE_S = 300.0
CONNECTIONS = 16
MESSAGE_MAX = 500
"""Characters of the daemon's words; it quotes paths, which are the sandboxes' to choose."""


class EngineError(SandboxError):
    """The daemon refused: its HTTP status and its words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"Docker: {message} ({status})")
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Image:
    """``user`` as a Dockerfile has it. ``layers``: where the daemon keeps them, topmost first; none where it keeps no
    directories. ``volumes``: what the daemon keeps outside of a container's own files."""

    id: str
    workdir: str
    env: Mapping[str, str]
    user: str
    layers: tuple[Path, ...]
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerState:
    """``pid`` is the init process as this machine numbers it, 0 when it does not run.

    ``out_of_memory``: some process of it was killed for want of memory, not necessarily the first and last.
    """

    pid: int
    running: bool
    paused: bool
    out_of_memory: bool
    exit_code: int
    error: str


@dataclass(frozen=True, slots=True)
class ListedContainer:
    id: str
    names: tuple[str, ...]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ListedImage:
    """``names`` with their tags. ``parent``: the image that it was made of, empty where the daemon does not know."""

    id: str
    names: tuple[str, ...]
    parent: str
    labels: Mapping[str, str]


class Engine:
    """One daemon on this machine. Calls raise EngineError, or RuntimeUnavailable where it does not answer."""

    def __init__(self, host: str | None = None) -> None:
        self.host = host or DEFAULT_HOST
        if not self.host.startswith("unix://"):
            raise RuntimeUnavailable(
                f"docker_host {self.host}: sandboxes share files with the daemon, which must be on this machine; "
                "give unix:///path/to/docker.sock"
            )
        self._socket = Path(self.host.removeprefix("unix://"))
        self._prefix = ""
        self._names = ImageNames(self._image)
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=str(self._socket),
                limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
            ),
            base_url="http://docker",
            timeout=httpx.Timeout(REQUEST_TIMEOUT_S, pool=None),
        )

    async def connect(self) -> None:
        """Find the daemon and agree on a version. Raises RuntimeUnavailable with the remedy."""
        explain_socket(self._socket)
        try:
            version = await self._request("GET", "/version")
            self._prefix = f"/v{version['ApiVersion']}"
        except (EngineError, KeyError, TypeError) as error:
            raise RuntimeUnavailable(f"{self.host} is not a Docker Engine ({error}); set docker_host") from None

    async def image(self, name: str) -> Image:
        """What the name means now. Raises ImageError where there is no such image here."""
        return await self._names.find(name)

    async def _image(self, name: str) -> Image:
        try:
            found = await self._request("GET", f"/images/{name}/json")
        except EngineError as error:
            if error.status == 404:
                raise ImageError(f"image {name} is not on this machine; build or pull it first") from None
            raise
        config = found.get("Config") or {}
        return Image(
            id=found["Id"],
            workdir=config.get("WorkingDir") or "/",
            env=dict(item.split("=", 1) for item in config.get("Env") or () if "=" in item),
            user=config.get("User") or "",
            layers=_layers(found.get("GraphDriver") or {}),
            volumes=tuple(config.get("Volumes") or ()),
        )

    async def root(self) -> Path:
        """Where the daemon keeps all that it has, as it says."""
        return Path((await self._request("GET", "/info"))["DockerRootDir"])

    async def oci_runtimes(self) -> tuple[str, ...]:
        """Those that the daemon was told of, sorted."""
        return tuple(sorted((await self._request("GET", "/info")).get("Runtimes") or ()))

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        """The id of a new container."""
        made = await self._request("POST", "/containers/create", params={"name": name}, body=config)
        return str(made["Id"])

    async def id_of(self, container: str) -> str:
        return str((await self._request("GET", f"/containers/{container}/json"))["Id"])

    async def labels(self, container: str) -> Mapping[str, str]:
        found: Mapping[str, str] = (await self._request("GET", f"/containers/{container}/json"))["Config"]["Labels"]
        return found

    async def start(self, container: str) -> None:
        await self._request("POST", f"/containers/{container}/start")

    async def state(self, container: str) -> ContainerState | None:
        """None where there is no such container."""
        try:
            found = (await self._request("GET", f"/containers/{container}/json"))["State"]
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        return ContainerState(
            pid=int(found["Pid"]),
            running=bool(found["Running"]),
            paused=bool(found["Paused"]),
            out_of_memory=bool(found["OOMKilled"]),
            exit_code=int(found["ExitCode"]),
            error=str(found["Error"]),
        )

    async def until_stopped(self, container: str) -> None:
        """Wait until it does not run, or is not there."""
        try:
            await self._request("POST", f"/containers/{container}/wait", params={"condition": "not-running"})
        except EngineError as error:
            if error.status != 404:
                raise

    async def event_times_ns(self, container: str, event: str, *, last_s: float) -> list[int]:
        """When ``event`` (``oom``, ``die``, …) befell it in the last seconds; the daemon remembers only so many."""
        now = time.time()
        filters = json.dumps({"container": [container], "event": [event]})
        span = {"since": f"{now - last_s:.9f}", "until": f"{now:.9f}", "filters": filters}
        answer = await self._send("GET", "/events", params=span)
        return [int(json.loads(line)["timeNano"]) for line in answer.text.splitlines()]

    async def remove(self, container: str) -> bool:
        """Kill it and remove it and its volumes; when this returns it is gone. False where there was none."""
        try:
            await self._request("DELETE", f"/containers/{container}", params={"force": "1", "v": "1"})
        except EngineError as error:
            if error.status == 404:
                return False
            if error.status == 409:
                await self._until_removed(container)
            elif await self._emptied(container):
                await self._request("DELETE", f"/containers/{container}", params={"force": "1", "v": "1"})
            else:
                raise
        return True

    async def _emptied(self, container: str) -> bool:
        """Whether what it wrote could be removed in the daemon's stead, which holds a descriptor for each level of a
        tree, and so keeps for ever what is deeper than it may have descriptors."""
        found = await self._request("GET", f"/containers/{container}/json")
        written = (found.get("GraphDriver") or {}).get("Data") or {}
        with contextlib.suppress(KeyError, OSError):
            await asyncio.to_thread(remove_tree, Path(written["UpperDir"]))
            return True
        return False

    async def remove_all(self, containers: Iterable[str]) -> int:
        """How many there were. One that cannot be removed keeps none of the others; its error is raised at the end."""
        results = await asyncio.gather(*(self.remove(container) for container in containers), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return sum(bool(result) for result in results)

    async def containers(self, label: str) -> list[ListedContainer]:
        """Every container, running or not, that carries ``label`` (``key`` or ``key=value``)."""
        filters = json.dumps({"label": [label]})
        found = await self._request("GET", "/containers/json", params={"all": "1", "filters": filters})
        return [
            ListedContainer(
                id=item["Id"],
                names=tuple(name.removeprefix("/") for name in item["Names"] or ()),
                labels=item["Labels"] or {},
            )
            for item in found
        ]

    async def pause(self, container: str) -> None:
        await self._request("POST", f"/containers/{container}/pause")

    async def unpause(self, container: str) -> None:
        await self._request("POST", f"/containers/{container}/unpause")

    async def written_bytes(self, container: str) -> int | None:
        """The sizes of all files that a container has changed, holes included; None if the daemon cannot say.

        Each file is looked at, however long that takes.
        """
        found = await self._request("GET", f"/containers/{container}/json", params={"size": "1"}, timeout_s=None)
        size = found.get("SizeRw")
        return int(size) if size is not None and int(size) >= 0 else None

    async def commit(self, container: str, repository: str, tag: str, labels: Mapping[str, str]) -> str:
        """The id of an image made of a container, which the daemon pauses meanwhile. It cannot be stopped, so however
        long that takes is waited for."""
        params = {"container": container, "repo": repository, "tag": tag, "pause": "1"}
        made = await self._request("POST", "/commit", params=params, body={"Labels": dict(labels)}, timeout_s=None)
        return str(made["Id"])

    async def images(self, label: str) -> list[ListedImage]:
        """Those that carry ``label``, with a name or without."""
        filters = json.dumps({"label": [label]})
        found = await self._request("GET", "/images/json", params={"all": "1", "filters": filters})
        return [
            ListedImage(
                id=item["Id"],
                names=tuple(item["RepoTags"] or ()),
                parent=item["ParentId"],
                labels=item["Labels"] or {},
            )
            for item in found
        ]

    async def remove_image(self, image_id: str) -> bool:
        """And none that it was made of. False where it is not there, or something is made of it.

        By a name the daemon would take that away and leave the image.
        """
        try:
            await self._request("DELETE", f"/images/{image_id}", params={"noprune": "1"})
        except EngineError as error:
            if error.status not in (404, 409):
                raise
            return False
        return True

    async def remove_images(self, image_ids: Iterable[str]) -> None:
        """Where one is made of the other, that one first; what something else is made of stays."""
        left = set(image_ids)
        while gone := {image_id for image_id in left if await self.remove_image(image_id)}:
            left -= gone

    async def export(self, container: str) -> AsyncIterator[bytes]:
        """The container's file system as a tar."""
        try:
            async with self._http.stream("GET", f"{self._prefix}/containers/{container}/export") as answer:
                if answer.is_error:
                    await answer.aread()
                    raise EngineError(answer.status_code, _message(answer))
                async for chunk in answer.aiter_raw(1 << 20):
                    yield chunk
        except httpx.TransportError as error:
            raise self._silent(error) from None

    async def pull(self, repository: str, tag: str, login: str | None) -> AsyncGenerator[Mapping[str, Any], None]:
        """What the daemon reports while it pulls, line by line; whoever stops reading stops the pull.

        ``tag`` may be a digest. ``login`` is the header of that name, as the daemon's interface has it.
        """
        params = {"fromImage": repository, "tag": tag}
        headers = {"X-Registry-Auth": login} if login else {}
        timeout = httpx.Timeout(REQUEST_TIMEOUT_S, read=PULL_SILENCE_S, pool=None)
        try:
            async with self._http.stream(
                "POST", f"{self._prefix}/images/create", params=params, headers=headers, timeout=timeout
            ) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise EngineError(answer.status_code, _message(answer))
                async for line in answer.aiter_lines():
                    if line.strip():
                        yield json.loads(line)
        except httpx.ReadTimeout:
            raise RuntimeUnavailable(f"nothing came for {PULL_SILENCE_S:g} s; see to the way to the registry") from None
        except httpx.TransportError as error:
            raise self._silent(error) from None

    async def close(self) -> None:
        await self._http.aclose()

    async def _until_removed(self, container: str) -> None:
        """Another is removing it: wait for that."""
        try:
            await self._request("POST", f"/containers/{container}/wait", params={"condition": "removed"})
        except EngineError as error:
            if error.status != 404:
                raise

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout_s: float | None = REQUEST_TIMEOUT_S,
    ) -> Any:
        answer = await self._send(method, path, params=params, body=body, timeout_s=timeout_s)
        return answer.json() if answer.content else None

    async def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout_s: float | None = REQUEST_TIMEOUT_S,
    ) -> httpx.Response:
        timeout = httpx.Timeout(timeout_s, pool=None)
        try:
            answer = await self._http.request(method, self._prefix + path, params=params, json=body, timeout=timeout)
        except httpx.TransportError as error:
            raise self._silent(error) from None
        if answer.is_error:
            raise EngineError(answer.status_code, _message(answer))
        return answer

    def _silent(self, error: httpx.TransportError) -> RuntimeUnavailable:
        said = str(error) or type(error).__name__
        return RuntimeUnavailable(f"Docker does not answer at {self.host} ({said}); start the daemon")


def _layers(driver: Mapping[str, Any]) -> tuple[Path, ...]:
    """Those of overlay2, which keeps each layer as an overlay would mount it."""
    if driver.get("Name") != "overlay2":
        return ()
    kept = driver.get("Data") or {}
    return tuple(Path(name) for key in ("UpperDir", "LowerDir") for name in (kept.get(key) or "").split(":") if name)


def _message(answer: httpx.Response) -> str:
    """Return the daemon's error, without the middle of a long one."""
    try:
        text = " ".join(str(answer.json()["message"]).split())
    except (ValueError, KeyError, TypeError):
        return answer.reason_phrase
    if len(text) <= MESSAGE_MAX:
        return text
    return f"{text[: MESSAGE_MAX // 2]} … {text[-MESSAGE_MAX // 2 :]}"  # the cause is at the end, behind long paths
