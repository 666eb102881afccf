"""What the Docker Engine answers about images and containers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

MESSAGE_MAX = 500
"""Maximum characters of a daemon's error message, which can quote paths that a sandbox has chosen."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image. ``user``: as in a Dockerfile. ``layers``: directories, topmost first; empty if the driver has none.

    ``volumes``: paths that the daemon stores outside of a container's own files.
    """

    id: str
    workdir: str
    env: Mapping[str, str]
    user: str
    layers: tuple[Path, ...]
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerState:
    """The state of a container. ``pid``: the init process in this machine's PID namespace, 0 if it does not run.

    ``out_of_memory``: an OOM kill hit some process of the container, not necessarily the init process.
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
    paused: bool


@dataclass(frozen=True, slots=True)
class ListedImage:
    """``names``: with tags. ``parent``: id of the image that this one was built on, empty if the daemon has none."""

    id: str
    names: tuple[str, ...]
    parent: str
    labels: Mapping[str, str]


def layers_of(driver: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the layer directories of overlay2, the only driver that stores each layer as overlayfs mounts it."""
    if driver.get("Name") != "overlay2":
        return ()
    data = driver.get("Data") or {}
    return tuple(Path(name) for key in ("UpperDir", "LowerDir") for name in (data.get(key) or "").split(":") if name)


def message_of(answer: httpx.Response) -> str:
    """Return the daemon's error, without the middle of a long one."""
    try:
        text = " ".join(str(answer.json()["message"]).split())
    except (ValueError, KeyError, TypeError):
        return answer.reason_phrase
    if len(text) <= MESSAGE_MAX:
        return text
    return f"{text[: MESSAGE_MAX // 2]} … {text[-MESSAGE_MAX // 2 :]}"  # the cause is at the end, behind long paths
