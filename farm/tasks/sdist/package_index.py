"""The package index that pip is configured to use: find the source distribution of a release, and download it.

A file of the index is only ever written to disk. No build backend runs, because none is asked for metadata.
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
ANSWER_TIMEOUT_S = 60.0
_SCHEMES = frozenset({"https", "http", "file"})
_SECTIONS = {"global": 0, "install": 1, "download": 2, ":env:": 3}
"""Sections of pip's configuration by rank; the highest rank wins."""
_AS_IT_IS = {"Accept-Encoding": "identity"}
_CREDENTIALS = re.compile(r"//[^/@\s]*@")
_TRUE = frozenset({"1", "true", "yes", "on", "t", "y"})
_REMEDY = "check the name, the version and the package index that pip is configured to use"
_FAULTS = (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Where packages come from. ``ca_bundle`` and ``client_cert`` are files of this machine."""

    index_urls: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    ca_bundle: str | None = None
    client_cert: str | None = None
    proxy: str | None = None


def read_index_settings(listing: str | None = None) -> IndexSettings:
    """Read the configuration as pip does: its files, its variables and its certificates.

    ``listing``: the output of ``pip config list``.

    Without a usable pip the settings are those of a fresh pip.
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
    # -P: the directory that the farm was called in may be a stranger's, and hold a pip of its own.
    command = [sys.executable, "-P", "-m", "pip", "config", "list"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def download_sdist(package: str, version: str, sha256: str | None, place: Path, settings: IndexSettings) -> Path:
    """Download the source distribution of a release into the directory ``place``, and verify its digest.

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
            links = _links(requirement, client, settings, faults)
            for link in links:
                if sha256 is None or _named_digest(link) in ("", sha256):
                    path = _download(pin, link, client, place)
                    if _digest_fits(path, sha256 or _named_digest(link)):
                        return path
                    path.unlink()
    except _FAULTS as error:
        raise TaskError(pin, f"the source distribution was not fetched ({_spoken(error)})", _REMEDY) from None
    if links:
        what = "no source distribution of the index has the digest that is wanted"
        raise TaskError(pin, what, "the release is not the one that was pinned; make the task again")
    why = faults[0] if faults else "the index has none"
    raise TaskError(pin, f"the source distribution was not fetched ({why})", _REMEDY)


def _spoken(error: Exception) -> str:
    """Its text without a name and a password of a URL."""
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
        timeout=ANSWER_TIMEOUT_S,
        follow_redirects=True,
    )
    client.auth = MultiDomainBasicAuth(prompting=False, index_urls=settings.index_urls)
    return client


def _links(requirement: Requirement, client: PyPIClient, settings: IndexSettings, faults: list[str]) -> list[Link]:
    """Files of the release in every place that pip would read. A place that does not answer adds to ``faults``."""
    places: list[tuple[list[str], list[str]]] = [([url], []) for url in settings.index_urls]
    places += [([], [link]) for link in settings.find_links if "://" in link or os.path.exists(link)]
    found: list[Link] = []
    for indexes, links in places:
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
            found += [match.link for match in matches if _is_file(match.link)]
        except _FAULTS as error:
            faults.append(_spoken(error))
    return found


def _is_file(link: Link) -> bool:
    """Return False for version control, and for a file of this machine that a remote page names."""
    from_afar = (link.comes_from or "").startswith(("http:", "https:"))
    return link.parsed.scheme in _SCHEMES and not link.is_vcs and not (link.is_file and from_afar)


def _named_digest(link: Link) -> str:
    """The SHA-256 that the index names; empty if it names none."""
    hashes: Mapping[str, Sequence[str]] = link.hash_option or {}
    return next(iter(hashes.get("sha256", ())), "")


def _digest_fits(path: Path, sha256: str) -> bool:
    with path.open("rb") as file:
        return not sha256 or hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _download(pin: str, link: Link, client: PyPIClient, place: Path) -> Path:
    """Write the file piece by piece, within MAX_DOWNLOAD_BYTES and DOWNLOAD_TIMEOUT_S. Raises TaskError."""
    path = place / link.filename
    until = time.monotonic() + DOWNLOAD_TIMEOUT_S
    size = 0
    with client.get_stream(link.url_without_fragment, headers=_AS_IT_IS) as answer, path.open("wb") as file:
        answer.raise_for_status()
        for piece in answer.iter_raw():
            size += len(piece)
            if size > MAX_DOWNLOAD_BYTES:
                what = f"its source distribution holds more than {MAX_DOWNLOAD_BYTES >> 20} MiB"
                raise TaskError(pin, what, "choose another release")
            if time.monotonic() > until:
                raise TaskError(pin, f"not fetched within {DOWNLOAD_TIMEOUT_S:g} s", _REMEDY)
            file.write(piece)
    return path
