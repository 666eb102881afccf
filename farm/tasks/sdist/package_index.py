"""Find and download the source distribution of a release, from the package index that pip is configured to use.

A downloaded file is only written to disk. No build backend runs, because none is asked for metadata.
"""

import ast
import hashlib
import logging
import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httpx2
from packaging.requirements import InvalidRequirement, Requirement
from unearth import Link, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import Fetcher
from unearth.fetchers.sync import PyPIClient

from farm.tasks.errors import TaskError

PYPI = "https://pypi.org/simple"
MAX_DOWNLOAD_BYTES = 512 * 1024 * 1024
DOWNLOAD_TIMEOUT_S = 600.0
RESPONSE_TIMEOUT_S = 60.0
_SCHEMES = frozenset({"https", "http", "file"})
_SECTIONS = {"global": 0, "install": 1, "download": 2, ":env:": 3}
"""Sections of pip's configuration by rank; the highest rank wins."""
_NO_COMPRESSION = {"Accept-Encoding": "identity"}
_CREDENTIALS = re.compile(r"//[^/@\s]*@")
_TRUE = frozenset({"1", "true", "yes", "on", "t", "y"})
_REMEDY = "check the name, the version and the package index that pip is configured to use"
_NETWORK_ERRORS = (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """The configured indexes. ``ca_bundle`` and ``client_cert`` are files of this machine."""

    index_urls: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    ca_bundle: str | None = None
    client_cert: str | None = None
    proxy: str | None = None


def read_index_settings(listing: str | None = None) -> IndexSettings:
    """Read pip's configuration: its files, its variables and its certificates.

    ``listing``: the output of ``pip config list``. Without a usable pip the defaults of pip are returned.
    """
    values: dict[str, tuple[int, str]] = {}
    for line in (_config_list() if listing is None else listing).splitlines():
        name, _, literal = line.partition("=")
        section, _, key = name.rpartition(".")
        rank = _SECTIONS.get(section)
        if rank is not None and rank >= values.get(key, (-1, ""))[0]:
            values[key] = rank, str(ast.literal_eval(literal))
    chosen = {key: value for key, (_, value) in values.items()}
    indexes: tuple[str, ...] = ()
    if chosen.get("no-index", "").lower() not in _TRUE:
        indexes = (chosen.get("index-url", PYPI).strip(), *chosen.get("extra-index-url", "").split())
    return IndexSettings(
        index_urls=indexes,
        find_links=tuple(chosen.get("find-links", "").split()),
        trusted_hosts=tuple(chosen.get("trusted-host", "").split()),
        ca_bundle=chosen.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE"),
        client_cert=chosen.get("client-cert") or None,
        proxy=chosen.get("proxy") or None,
    )


def _config_list() -> str:
    # -P: the working directory may be a stranger's and have a module named pip.
    command = [sys.executable, "-P", "-m", "pip", "config", "list"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def download_sdist(package: str, version: str, sha256: str | None, directory: Path, settings: IndexSettings) -> Path:
    """Download the source distribution of a release into ``directory`` and verify its digest.

    Without ``sha256`` the digest that the index names is verified, if it names one. Raises TaskError.
    """
    logging.getLogger("unearth").setLevel(logging.ERROR)  # an index that lacks a release is no warning
    pin = f"{package}=={version}"
    try:
        requirement = Requirement(pin)
    except InvalidRequirement:
        raise TaskError(pin, "not a package and its version", _REMEDY) from None
    faults: list[str] = []
    try:
        with _client(settings) as client:
            links = _find_links(requirement, client, settings, faults)
            for link in links:
                if sha256 is None or _index_digest(link) in ("", sha256):
                    path = _download(pin, link, client, directory)
                    if _has_digest(path, sha256 or _index_digest(link)):
                        return path
                    path.unlink()
    except _NETWORK_ERRORS as error:
        raise TaskError(pin, f"the source distribution was not downloaded ({_describe(error)})", _REMEDY) from None
    if links:
        fault = "no source distribution in the index has the expected digest"
        raise TaskError(pin, fault, "the release is not the one that was pinned; make the task again")
    reason = faults[0] if faults else "the index has none"
    raise TaskError(pin, f"the source distribution was not downloaded ({reason})", _REMEDY)


def _describe(error: Exception) -> str:
    """Return the error's text without user names and passwords in URLs."""
    return f"{type(error).__name__}: {_CREDENTIALS.sub('//', str(error))[:200]}"


def _client(settings: IndexSettings) -> PyPIClient:
    verify: ssl.SSLContext | bool = True
    if settings.ca_bundle:
        verify = ssl.create_default_context(cafile=settings.ca_bundle)
    client = PyPIClient(
        trusted_hosts=settings.trusted_hosts,
        verify=verify,
        cert=settings.client_cert,
        proxy=settings.proxy,
        timeout=RESPONSE_TIMEOUT_S,
        follow_redirects=True,
    )
    client.auth = MultiDomainBasicAuth(prompting=False, index_urls=settings.index_urls)
    return client


def _find_links(requirement: Requirement, client: PyPIClient, settings: IndexSettings, faults: list[str]) -> list[Link]:
    """Return the files of the release from every source that pip would read.

    A source that does not answer adds to ``faults``.
    """
    sources: list[tuple[list[str], list[str]]] = [([url], []) for url in settings.index_urls]
    sources += [([], [link]) for link in settings.find_links if "://" in link or os.path.exists(link)]
    found_links: list[Link] = []
    for indexes, links in sources:
        finder = PackageFinder(
            session=cast(Fetcher, client),
            index_urls=indexes,
            find_links=links,
            trusted_hosts=settings.trusted_hosts,
            no_binary=[":all:"],
            ignore_compatibility=True,
        )
        try:
            matches = finder.find_matches(requirement, allow_yanked=True, allow_prereleases=True)
            found_links += [match.link for match in matches if _is_file(match.link)]
        except _NETWORK_ERRORS as error:
            faults.append(_describe(error))
    return found_links


def _is_file(link: Link) -> bool:
    """Return False for version control, and for a file of this machine that a remote page names."""
    is_remote = (link.comes_from or "").startswith(("http:", "https:"))
    return link.parsed.scheme in _SCHEMES and not link.is_vcs and not (link.is_file and is_remote)


def _index_digest(link: Link) -> str:
    """Return the SHA-256 that the index names, or an empty text."""
    hashes: Mapping[str, Sequence[str]] = link.hash_option or {}
    return next(iter(hashes.get("sha256", ())), "")


def _has_digest(path: Path, sha256: str) -> bool:
    with path.open("rb") as file:
        return not sha256 or hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _download(pin: str, link: Link, client: PyPIClient, directory: Path) -> Path:
    """Write the file in chunks, within MAX_DOWNLOAD_BYTES and DOWNLOAD_TIMEOUT_S. Raises TaskError."""
    path = directory / link.filename
    until = time.monotonic() + DOWNLOAD_TIMEOUT_S
    size = 0
    with client.get_stream(link.url_without_fragment, headers=_NO_COMPRESSION) as response, path.open("wb") as file:
        response.raise_for_status()
        for piece in response.iter_raw():
            size += len(piece)
            if size > MAX_DOWNLOAD_BYTES:
                fault = f"its source distribution holds more than {MAX_DOWNLOAD_BYTES >> 20} MiB"
                raise TaskError(pin, fault, "choose another release")
            if time.monotonic() > until:
                raise TaskError(pin, f"not downloaded within {DOWNLOAD_TIMEOUT_S:g} s", _REMEDY)
            file.write(piece)
    return path
