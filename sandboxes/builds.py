"""One image build: BuildKit through the Docker command line, with what the machine lends it for the build only."""

import asyncio
import errno
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sandboxes.dockerfile import grant
from sandboxes.errors import DiskFull, ImageError, RuntimeUnavailable

OnLine = Callable[[str], None]

BUILDKIT_BY_DEFAULT = 23
"""The first Docker client whose ``build`` needs the buildx plugin for BuildKit; older ones bring their own."""

_CA_PATH = "/run/farm-build-ca.crt"
_PIP_PATH = "/run/farm-build-pip.conf"
_APT_PATH = "/run/farm-build-apt.conf"
_CA_VARIABLES = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)
_FAILED_STEP = re.compile(r"^#\d+ ERROR: ")
_FETCH = re.compile(
    r"#\d+ (?:\[internal\] load metadata for |resolve image config for |docker-image://|\[[^]]*\] FROM )"
)
"""Heads of the steps in which BuildKit fetches an image: a base, or what reads the Dockerfile."""
_REFUSED = re.compile(
    r"manifest unknown|not found|(?<!permission )denied|unauthorized|authentication required|no basic auth"
    r"|no matching manifest|invalid reference|does not exist",
    re.IGNORECASE,
)
_SAID = re.compile(r"^#\d+ [\d.]+ (.*)")
_MOUNT = re.compile(r"--mount=\S+\s+")
_COMPLAINT = re.compile(r"(?:\S+: )*(?:error|fatal|E|ERROR|Error|.*[Ss]yntax error)\b.*[: ]")
_EXIT_CODE = re.compile(r"exit code: (\d+)$")
_REASON_LIMIT = 300
_GRACE_S = 10
_LINE_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """What builds on this machine need of its surroundings; none of it remains in an image.

    ``clients``: Docker command lines to choose from. ``ca_bundle``: certificates a build step trusts. ``pip_conf``
    and ``apt_conf``: the text of a configuration file each, or empty. ``proxies``: ``HTTP_PROXY`` and its kin.
    ``environment``: what the Docker client itself runs with (``PATH``, ``HOME``, ``DOCKER_CONFIG``).
    """

    clients: tuple[Path, ...] = (Path("/usr/local/bin/docker"), Path("/usr/bin/docker"))
    ca_bundle: Path | None = None
    pip_conf: str = ""
    apt_conf: str = ""
    proxies: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lent:
    """A file that every ``RUN`` sees at ``target``, and the variables that point there."""

    id: str
    source: Path
    target: str
    variables: tuple[str, ...]


def write_context(root: Path, files: Mapping[str, bytes], executables: Collection[str] = ()) -> Path:
    """Lay out a build context. Raises ImageError for a path that would leave it."""
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise ImageError(f"the build context names {name!r}, which is not a path inside it; rename the file")
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o755 if name in executables else 0o644)
    return root


async def find_client(settings: BuildSettings) -> Path:
    """A Docker command line that builds with BuildKit. Raises ImageError with the remedy."""
    seen: list[str] = []
    for client in settings.clients:
        version = await _ask(client, settings, "--version")
        match = re.search(r"Docker version (\d+)", version or "")
        if match is None:
            continue
        if int(match[1]) < BUILDKIT_BY_DEFAULT or await _ask(client, settings, "buildx", "version"):
            return client
        seen.append(f"{client} {match[1]}.x has no buildx")
    found = "; ".join(seen) or "no docker command was found"
    raise ImageError(f"no Docker client here can build with BuildKit ({found}); apt-get install docker-buildx-plugin")


async def build(
    name: str,
    context: Path,
    *,
    settings: BuildSettings,
    docker_host: str | None,
    scratch: Path,
    timeout_s: float,
    on_line: OnLine | None,
) -> None:
    """Build ``context`` and tag it ``name``. The client is killed at the time-out and under cancellation.

    Raises ImageError, one line that holds the builder's own last error, DiskFull, and RuntimeUnavailable where a base
    image cannot be fetched for something that may pass.
    """
    dockerfile = context / "Dockerfile"
    if not dockerfile.is_file():
        raise ImageError(f"{name} does not build: its context has no Dockerfile; add one")
    client = await find_client(settings)
    lent = _lend(settings, scratch)
    rewritten = scratch / "Dockerfile"
    rewritten.write_text(_granted(dockerfile.read_text(errors="surrogateescape"), lent), errors="surrogateescape")
    # A killed farm cannot end its build; then ``timeout`` does.
    command = ["timeout", "--signal=KILL", f"{timeout_s + _GRACE_S:.0f}", str(client), "build"]
    command += ["--progress", "plain", "--network", "host", "--file", str(rewritten)]
    for item in lent:
        command += ["--secret", f"id={item.id},src={item.source}"]
        command += [flag for variable in item.variables for flag in ("--build-arg", f"{variable}={item.target}")]
    # Without a value the client takes it from its own environment: a proxy's password stays off the command line.
    command += [flag for proxy in settings.proxies for flag in ("--build-arg", proxy)]
    command += ["--tag", name, str(context)]
    environment = _environment(settings) | dict(settings.proxies)
    if docker_host:
        environment["DOCKER_HOST"] = docker_host
    await _run(name, command, environment, timeout_s, on_line)


def _environment(settings: BuildSettings) -> dict[str, str]:
    return {**settings.environment, "DOCKER_BUILDKIT": "1", "BUILDX_BUILDER": "default"}


def _lend(settings: BuildSettings, scratch: Path) -> tuple[Lent, ...]:
    lent: list[Lent] = []
    if settings.ca_bundle is not None:
        lent.append(Lent("farm-ca", settings.ca_bundle, _CA_PATH, _CA_VARIABLES))
    for text, id_, target, variable in (
        (settings.pip_conf, "farm-pip", _PIP_PATH, "PIP_CONFIG_FILE"),
        (_apt_conf(settings), "farm-apt", _APT_PATH, "APT_CONFIG"),
    ):
        if text:
            source = scratch / id_
            source.write_text(text)
            lent.append(Lent(id_, source, target, (variable,)))
    return tuple(lent)


def _apt_conf(settings: BuildSettings) -> str:
    trust = f'Acquire::https::CAInfo "{_CA_PATH}";\n' if settings.ca_bundle else ""
    return trust + settings.apt_conf


def _granted(text: str, lent: tuple[Lent, ...]) -> str:
    return grant(
        text,
        # Package managers drop root while they fetch, so the file is readable by all for the length of a step.
        mounts=[f"type=secret,id={item.id},target={item.target},mode=0444" for item in lent],
        arguments=[variable for item in lent for variable in item.variables],
    )


async def _ask(client: Path, settings: BuildSettings, *arguments: str) -> str | None:
    """The answer of a client, or None where it fails or is not there."""
    try:
        process = await asyncio.create_subprocess_exec(
            client,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(settings),
        )
    except OSError:
        return None
    answer, _ = await process.communicate()
    return answer.decode(errors="replace") if process.returncode == 0 else None


async def _run(
    name: str, command: list[str], environment: Mapping[str, str], timeout_s: float, on_line: OnLine | None
) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
        limit=_LINE_LIMIT,
    )
    last: deque[str] = deque(maxlen=60)
    try:
        async with asyncio.timeout(timeout_s):
            await _stream(process, last, on_line)
            code = await process.wait()
    except TimeoutError:
        raise ImageError(
            f"{name} does not build: not done after {timeout_s:g} s; raise build_timeout_sec or lighten the Dockerfile"
        ) from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.shield(process.wait())
    if code and is_disk_full("\n".join(last)):
        raise DiskFull(f"{name} does not build: {_reason(list(last))}; make room on Docker's disk: farm images gc")
    if code and _base_is_away(last):
        raise RuntimeUnavailable(
            f"{name} does not build just now: {_reason(list(last))}; see to the way to its base image's registry"
        )
    if code:
        raise ImageError(f"{name} does not build: {_reason(list(last))}")


def is_disk_full(said: str) -> bool:
    """Whether that is what a program says, in the kernel's words or the C library's."""
    return os.strerror(errno.ENOSPC).lower() in said.lower()


def is_refused(said: str) -> bool:
    """Whether that is what a registry that answers says of an image that it does not give, now or later; the daemon
    passes on its words."""
    return _REFUSED.search(said) is not None


def _base_is_away(lines: Collection[str]) -> bool:
    failed = next((line for line in lines if _FAILED_STEP.match(line)), None)
    if failed is None or is_refused(failed):
        return False
    return any(_FETCH.match(line) and _number(line) == _number(failed) for line in lines)


async def _stream(process: asyncio.subprocess.Process, last: deque[str], on_line: OnLine | None) -> None:
    assert process.stdout is not None
    while True:
        try:
            raw = await process.stdout.readline()
        except ValueError:  # a line beyond the limit: the reader has dropped it and goes on behind it
            continue
        if not raw:
            return
        line = raw.decode(errors="replace").rstrip()
        if line:
            last.append(line)
            if on_line is not None:
                on_line(line)


def _reason(lines: Sequence[str]) -> str:
    """One line: what the failing step itself said last, and how it ended; else the builder's own last word."""
    failed = next((index for index, line in enumerate(lines) if _FAILED_STEP.match(line)), None)
    if failed is None:
        complaints = [line for line in lines if line.lower().startswith("error")]
        return (complaints or lines or ["the builder said nothing"])[-1][:_REASON_LIMIT]
    step = f"#{_number(lines[failed])} "
    said = [match[1] for line in lines[:failed] if line.startswith(step) and (match := _SAID.match(line))]
    complaints = [line for line in said if _COMPLAINT.match(line)]
    exit_code = _EXIT_CODE.search(lines[failed])
    header = next((line for line in lines if line.startswith(f"{step}[")), "")
    what = _MOUNT.sub("", header.partition("] ")[2])[:_REASON_LIMIT] or "a step"
    ending = f"{what!r} ended with exit code {exit_code[1]}" if exit_code else _FAILED_STEP.sub("", lines[failed])
    return "; ".join(part[:_REASON_LIMIT] for part in (*(complaints or said)[-1:], ending))


def _number(line: str) -> str:
    return line[1:].partition(" ")[0]
