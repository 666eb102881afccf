"""An asyncio client for the part of the Docker Engine's HTTP API that sandboxes need.

A sandbox costs the daemon four requests: image, create, start, inspect. The Docker SDK is synchronous: each request
would hold a thread and could not be cancelled.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx

from sandboxes.docker_engine.answers import (
    ContainerState,
    Image,
    ListedContainer,
    ListedImage,
    layers_of,
    message_of,
)
from sandboxes.docker_engine.image_names import ImageNames
from sandboxes.docker_engine.socket import explain_socket
from sandboxes.errors import ImageError, RuntimeUnavailable, SandboxError
from sandboxes.linux.remove_tree import remove_tree

DEFAULT_HOST = "unix:///var/run/docker.sock"
REQUEST_TIMEOUT_S = 120.0
PULL_SILENCE_S = 300.0
CONNECTIONS = 16


class EngineError(SandboxError):
    """The daemon refused a request. ``status``: the HTTP status. ``message``: the daemon's error text."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"Docker refused a request: {message} (HTTP {status})")
        self.status = status
        self.message = message


class Engine:
    """One daemon on this machine. Calls raise EngineError if it refuses, RuntimeUnavailable if it does not answer."""

    def __init__(self, host: str | None = None) -> None:
        self.host = host or DEFAULT_HOST
        if not self.host.startswith("unix://"):
            raise RuntimeUnavailable(
                f"docker_host {self.host} is not local: sandboxes share files with the daemon, so it must run on this "
                "machine; set docker_host to unix:///path/to/docker.sock"
            )
        self._socket = Path(self.host.removeprefix("unix://"))
        self._prefix = ""
        self._names = ImageNames(self._image)
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=str(self._socket),
                limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
                verify=False,  # without TLS, loading the certificates is 30 ms for nothing
            ),
            base_url="http://docker",
            timeout=httpx.Timeout(REQUEST_TIMEOUT_S, pool=None),
        )

    async def connect(self) -> None:
        """Connect to the daemon and select its API version. Raises RuntimeUnavailable with the remedy."""
        explain_socket(self._socket)
        try:
            version = await self._request("GET", "/version")
            self._prefix = f"/v{version['ApiVersion']}"
        except (EngineError, KeyError, TypeError) as error:
            raise RuntimeUnavailable(f"{self.host} is not a Docker Engine: {error}; set docker_host") from None

    async def image(self, name: str) -> Image:
        """Return the image that ``name`` points to now. Raises ImageError if it does not exist."""
        return await self._names.find(name)

    async def _image(self, name: str) -> Image:
        try:
            details = await self._request("GET", f"/images/{name}/json")
        except EngineError as error:
            if error.status == 404:
                raise ImageError(f"image {name} is not on this machine; build or pull it") from None
            raise
        config = details.get("Config") or {}
        return Image(
            id=details["Id"],
            workdir=config.get("WorkingDir") or "/",
            env=dict(item.split("=", 1) for item in config.get("Env") or () if "=" in item),
            user=config.get("User") or "",
            layers=layers_of(details.get("GraphDriver") or {}),
            volumes=tuple(config.get("Volumes") or ()),
        )

    async def root(self) -> Path:
        """Return the daemon's data directory."""
        return Path((await self._request("GET", "/info"))["DockerRootDir"])

    async def oci_runtimes(self) -> tuple[str, ...]:
        """Return the names of the daemon's registered OCI runtimes, sorted."""
        return tuple(sorted((await self._request("GET", "/info")).get("Runtimes") or ()))

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Create a container. Return its id."""
        answer = await self._request("POST", "/containers/create", params={"name": name}, body=config)
        return str(answer["Id"])

    async def id_of(self, container: str) -> str:
        return str((await self._request("GET", f"/containers/{container}/json"))["Id"])

    async def labels(self, container: str) -> Mapping[str, str]:
        details = await self._request("GET", f"/containers/{container}/json")
        labels: Mapping[str, str] = details["Config"]["Labels"]
        return labels

    async def start(self, container: str) -> None:
        await self._request("POST", f"/containers/{container}/start")

    async def state(self, container: str) -> ContainerState | None:
        """Return the container's state, or None if it does not exist."""
        try:
            details = (await self._request("GET", f"/containers/{container}/json"))["State"]
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        return ContainerState(
            pid=int(details["Pid"]),
            running=bool(details["Running"]),
            paused=bool(details["Paused"]),
            out_of_memory=bool(details["OOMKilled"]),
            exit_code=int(details["ExitCode"]),
            error=str(details["Error"]),
        )

    async def until_stopped(self, container: str) -> None:
        """Wait until the container has stopped or does not exist."""
        try:
            await self._request("POST", f"/containers/{container}/wait", params={"condition": "not-running"})
        except EngineError as error:
            if error.status != 404:
                raise

    async def event_times_ns(self, container: str, event: str, *, last_s: float) -> list[int]:
        """Return the times of ``event`` (``oom``, ``die``, …) in the last seconds. The daemon keeps only some."""
        now = time.time()
        filters = json.dumps({"container": [container], "event": [event]})
        params = {"since": f"{now - last_s:.9f}", "until": f"{now:.9f}", "filters": filters}
        answer = await self._send("GET", "/events", params=params)
        return [int(json.loads(line)["timeNano"]) for line in answer.text.splitlines()]

    async def remove(self, container: str) -> bool:
        """Kill a container, and remove it with its volumes. Return False if it did not exist.

        Unpause a paused one before. Otherwise its shim stays.
        """
        try:
            await self._request("DELETE", f"/containers/{container}", params={"force": "1", "v": "1"})
        except EngineError as error:
            if error.status == 404:
                return False
            if error.status == 409:
                await self._until_removed(container)
            elif await self._remove_written_files(container):
                await self._request("DELETE", f"/containers/{container}", params={"force": "1", "v": "1"})
            else:
                raise
        return True

    async def _remove_written_files(self, container: str) -> bool:
        """Remove a container's written files in place of the daemon. Return False if that is impossible.

        The daemon holds a descriptor for each level of a tree, so it cannot remove a tree that is deeper than its
        limit of open files.
        """
        details = await self._request("GET", f"/containers/{container}/json")
        driver_data = (details.get("GraphDriver") or {}).get("Data") or {}
        with contextlib.suppress(KeyError, OSError):
            await asyncio.to_thread(remove_tree, Path(driver_data["UpperDir"]))
            return True
        return False

    async def remove_all(self, containers: Iterable[str]) -> int:
        """Remove all ``containers``. Return how many existed. The first error is raised after all were tried."""
        results = await asyncio.gather(*(self.remove(container) for container in containers), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return sum(bool(result) for result in results)

    async def containers(self, label: str) -> list[ListedContainer]:
        """Return every container, running or not, that has ``label`` (``key`` or ``key=value``)."""
        filters = json.dumps({"label": [label]})
        details = await self._request("GET", "/containers/json", params={"all": "1", "filters": filters})
        return [
            ListedContainer(
                id=item["Id"],
                names=tuple(name.removeprefix("/") for name in item["Names"] or ()),
                labels=item["Labels"] or {},
                paused=item["State"] == "paused",
            )
            for item in details
        ]

    async def pause(self, container: str) -> None:
        await self._request("POST", f"/containers/{container}/pause")

    async def unpause(self, container: str) -> None:
        await self._request("POST", f"/containers/{container}/unpause")

    async def written_bytes(self, container: str) -> int | None:
        """Return the apparent size of all changed files (holes count), or None if the daemon does not report it.

        The daemon walks all files, however long that takes.
        """
        details = await self._request("GET", f"/containers/{container}/json", params={"size": "1"}, timeout_s=None)
        size = details.get("SizeRw")
        return int(size) if size is not None and int(size) >= 0 else None

    async def commit(self, container: str, repository: str, tag: str, labels: Mapping[str, str]) -> str:
        """Make an image of a container, which is paused meanwhile. Return the image's id.

        A commit cannot be stopped, so there is no time-out.
        """
        params = {"container": container, "repo": repository, "tag": tag, "pause": "1"}
        answer = await self._request("POST", "/commit", params=params, body={"Labels": dict(labels)}, timeout_s=None)
        return str(answer["Id"])

    async def images(self, label: str) -> list[ListedImage]:
        """Return the images that have ``label``, named or not."""
        filters = json.dumps({"label": [label]})
        details = await self._request("GET", "/images/json", params={"all": "1", "filters": filters})
        return [
            ListedImage(
                id=item["Id"],
                names=tuple(item["RepoTags"] or ()),
                parent=item["ParentId"],
                labels=item["Labels"] or {},
            )
            for item in details
        ]

    async def remove_image(self, image_id: str) -> bool:
        """Remove an image by id, but not its parents. Return False if it does not exist or is in use.

        Removal by name would only untag the image.
        """
        try:
            await self._request("DELETE", f"/images/{image_id}", params={"noprune": "1"})
        except EngineError as error:
            if error.status not in (404, 409):
                raise
            return False
        return True

    async def remove_images(self, image_ids: Iterable[str]) -> None:
        """Remove images, children before parents. Images that others are built on stay."""
        remaining = set(image_ids)
        while removed := {image_id for image_id in remaining if await self.remove_image(image_id)}:
            remaining -= removed

    async def export(self, container: str) -> AsyncIterator[bytes]:
        """Yield the container's file system as a tar stream."""
        try:
            async with self._http.stream("GET", f"{self._prefix}/containers/{container}/export") as answer:
                if answer.is_error:
                    await answer.aread()
                    raise EngineError(answer.status_code, message_of(answer))
                async for chunk in answer.aiter_raw(1 << 20):
                    yield chunk
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    async def pull(self, repository: str, tag: str, login: str | None) -> AsyncGenerator[Mapping[str, Any], None]:
        """Pull an image. Yield the daemon's progress messages. Closing the generator stops the pull.

        ``tag``: a tag or digest. ``login``: value of the ``X-Registry-Auth`` header.
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
                    raise EngineError(answer.status_code, message_of(answer))
                async for line in answer.aiter_lines():
                    if line.strip():
                        yield json.loads(line)
        except httpx.ReadTimeout:
            raise RuntimeUnavailable(
                f"pull of {repository}:{tag}: no data for {PULL_SILENCE_S:g} s; check the network to the registry"
            ) from None
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    async def close(self) -> None:
        await self._http.aclose()

    async def _until_removed(self, container: str) -> None:
        """Wait until another request has removed the container."""
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
            raise self._unreachable(error) from None
        if answer.is_error:
            raise EngineError(answer.status_code, message_of(answer))
        return answer

    def _unreachable(self, error: httpx.TransportError) -> RuntimeUnavailable:
        cause = str(error) or type(error).__name__
        return RuntimeUnavailable(f"Docker does not answer at {self.host}: {cause}; start the daemon")
