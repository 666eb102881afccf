"""A Dockerfile built in the naive way and by the farm, under a name of its own."""

import asyncio
import base64
import io
import re
import secrets
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import docker

from farm.tasks import BASE_IMAGE
from sandboxes.images.build import find_client
from sandboxes.images.store import BuildSettings, ImageStore
from tests.support.services import missing


@contextmanager
def unused_name(docker_client: docker.DockerClient) -> Iterator[str]:
    """Yield a name for an image, and remove the images that were made under it."""
    if not docker_client.images.list(BASE_IMAGE):
        missing(f"the image {BASE_IMAGE}", "run `farm images base`, or run tests/run.sh")
    name = f"farm-test-attack:{secrets.token_hex(6)}"
    yield name
    for tag in (name, f"{name}-base"):
        if docker_client.images.list(tag):
            docker_client.images.remove(tag, force=True)


class Builder:
    """Build the same Dockerfile in the naive way and by the farm."""

    def __init__(self, settings: BuildSettings, place: Path) -> None:
        self.settings = settings
        self.place = place
        self.output = ""

    async def naive(self, name: str, text: str, *arguments: str) -> bool:
        (self.place / "Dockerfile").write_text(text)
        process = await asyncio.create_subprocess_exec(
            *(await find_client(self.settings), "build", "--progress", "plain", "--network", "host"),
            *(*arguments, "--tag", name, str(self.place)),
            env={**self.settings.environment, "DOCKER_BUILDKIT": "1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        self.output = output.decode(errors="replace")
        return process.returncode == 0

    async def farm(self, name: str, text: str, **changes: object) -> None:
        """Raises ImageError."""
        lines: list[str] = []
        store = ImageStore(None, replace(self.settings, **changes))  # type: ignore[arg-type]  # any field
        try:
            await store.build(name, {"Dockerfile": text.encode()}, timeout_s=120, on_line=lines.append)
        finally:
            await store.close()
            self.output = "\n".join(lines)

    @property
    def wins(self) -> list[str]:
        return sorted(re.findall(r"WON:(\S+)", self.output))


def dockerfile(*lines: str) -> str:
    """A Dockerfile that no cache knows."""
    return "\n".join([f"FROM {BASE_IMAGE}", f"LABEL once={secrets.token_hex(8)}", *lines, ""])


def python(code: str) -> str:
    packed = base64.b64encode(code.encode()).decode()
    return f"RUN python3 -c \"import base64; exec(base64.b64decode('{packed}'))\" # {secrets.token_hex(8)}"


def everything_in(client: docker.DockerClient, name: str) -> bytes:
    """All bytes of an image: its configuration and history, and each file of each layer by its own bytes."""
    with tarfile.open(fileobj=io.BytesIO(b"".join(client.images.get(name).save()))) as image:
        members = [image.extractfile(member) for member in image if member.isreg()]
        return b"".join(member.read() for member in members if member is not None)
