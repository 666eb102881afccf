"""How images are built on this machine: Docker clients, certificates, proxies and package indexes."""

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from farm.config import BuildOptions

if TYPE_CHECKING:  # commands that build nothing start without what builds need
    from sandboxes.images.build import BuildSettings
    from sandboxes.images.confinement import NpmRegistry, PackageIndexes, PipIndex

_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
_SYSTEM_CA = Path("/etc/ssl/certs/ca-certificates.crt")
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_CLIENT_VARIABLES = ("PATH", "HOME", "DOCKER_CONFIG")
_DEBIAN_HOSTS = ("deb.debian.org", "security.debian.org", "archive.ubuntu.com", "security.ubuntu.com")
_BUILD = BuildOptions()


def read_build_settings(
    options: BuildOptions = _BUILD, *, environ: Mapping[str, str] | None = None, state_dir: Path | None = None
) -> "BuildSettings":
    """Return how images are built here: Docker clients, package indexes, and the limits that ``options`` set.

    Logs of builds that fail are kept in ``state_dir``; nowhere if it is None. The package indexes are read at the first
    build, because asking pip and apt takes half a second and more.
    """

    from sandboxes.images.build import BuildSettings
    from sandboxes.images.build_logs import BuildLogs
    from sandboxes.images.confinement import BuildLimits
    from sandboxes.runtimes.uncounted_memory.watch import find_uncounted_excess

    environ = os.environ if environ is None else environ
    bundles = [Path(environ[name]) for name in _CA_VARIABLES if environ.get(name)]
    return BuildSettings(
        clients=tuple(Path(directory, "docker") for directory in environ.get("PATH", os.defpath).split(os.pathsep)),
        environment={name: environ[name] for name in _CLIENT_VARIABLES if name in environ},
        ca_bundle=next((path for path in (*bundles, _SYSTEM_CA) if path.is_file()), None),
        proxies={name: environ[name] for name in _PROXY_VARIABLES if environ.get(name)},
        read_indexes=functools.partial(_read_indexes, tuple(environ.items()), options.hosts),
        registries=options.registries,
        limits=BuildLimits(
            memory_mib=options.memory_mib,
            processes=options.processes,
            disk_mib=options.disk_mib,
            cpus=options.cpus,
            timeout_max_s=options.timeout_max_s,
        ),
        logs=None if state_dir is None else BuildLogs.of(state_dir),
        find_uncounted_excess=find_uncounted_excess,
    )


@functools.lru_cache(maxsize=16)
def _read_indexes(variables: tuple[tuple[str, str], ...], hosts: tuple[str, ...]) -> "PackageIndexes":
    """Return the package indexes of this machine's pip, npm and apt under an environment."""
    from sandboxes.images.confinement import PackageIndexes

    environ = dict(variables)
    return PackageIndexes(
        pip=_pip_index(_answer(environ, sys.executable, "-P", "-m", "pip", "config", "list")),
        npm=_npm_registry(environ),
        apt_hosts=_apt_hosts(_answer(environ, "apt-get", "indextargets", "--format", "$(REPO_URI)")),
        hosts=hosts,
    )


def _answer(environ: Mapping[str, str], *command: str) -> str:
    """Return a program's output, or "" if it is missing or fails: then there are no settings to use."""
    try:
        return subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _pip_index(listing: str) -> "PipIndex":
    """Read ``pip config list``, without the settings that name files of this machine."""
    from sandboxes.images.confinement import PipIndex

    values: dict[str, str] = {}
    for line in listing.splitlines():
        name, _, literal = line.partition("=")
        values[name.rpartition(".")[2].removeprefix("default-")] = str(ast.literal_eval(literal))
    urls = [values.get("index-url", PipIndex().urls[0]), *values.get("extra-index-url", "").split()]
    return PipIndex(
        urls=tuple(filter(_is_web, urls)),
        find_links=tuple(filter(_is_web, values.get("find-links", "").split())),
        trusted_hosts=frozenset(values.get("trusted-host", "").split()),
        timeout_s=values.get("timeout", ""),
        retries=values.get("retries", ""),
    )


def _is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _npm_registry(environ: Mapping[str, str]) -> "NpmRegistry":
    """Read the registry and its key from npm's file of the user."""
    from sandboxes.images.confinement import NpmRegistry

    values: dict[str, str] = {}
    with suppress(OSError, UnicodeDecodeError):
        text = Path(environ.get("NPM_CONFIG_USERCONFIG") or Path.home() / ".npmrc").read_text()
        for line in text.splitlines():
            key, sign, value = line.partition("=")
            if sign and not key.lstrip().startswith(("#", ";")):
                filled = re.sub(r"\$\{(\w+)\}", lambda found: environ.get(found[1], ""), value.strip().strip("\"'"))
                values[key.strip()] = filled
    url = environ.get("npm_config_registry") or environ.get("NPM_CONFIG_REGISTRY") or values.get("registry", "")
    url = url if _is_web(url) else NpmRegistry().url
    place = url.partition(":")[2].rstrip("/")
    if token := values.get(f"{place}/:_authToken"):
        return NpmRegistry(url, f"Bearer {token}")
    if login := values.get(f"{place}/:_auth"):
        return NpmRegistry(url, f"Basic {login}")
    return NpmRegistry(url)


def _apt_hosts(listing: str) -> tuple[str, ...]:
    found = (urlsplit(line) for line in listing.splitlines() if _is_web(line))
    names = {url.hostname for url in found if url.hostname and url.port in (None, 80, 443)}
    return tuple(dict.fromkeys((*_DEBIAN_HOSTS, *sorted(names))))
