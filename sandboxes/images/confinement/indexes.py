"""Map the package indexes of build steps to the farm's mirror, and rewrite links in index pages.

A step connects only to the mirror, at the loopback address of its own network.

The mirror's paths:

| path                                | upstream                                                     |
|-------------------------------------|--------------------------------------------------------------|
| ``/pip/N/PROJECT/``                 | the page of a project in the Nth package index of pip        |
| ``/links/N/``                       | the Nth page of ``find-links``                               |
| ``/file/SIGNATURE/https/HOST/PATH`` | a file that such a page links to; the mirror signs each link |
| ``/npm/PATH``                       | ``PATH`` below the npm registry                              |
"""

import hashlib
import hmac
import html
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit

from sandboxes.egress import AllowList, Grants
from sandboxes.egress.allowlist import HTTP_PORT, HTTPS_PORT, Host, Pattern, parse_host

MIRROR_HOST, MIRROR_PORT = "127.0.0.1", 3129
MIRROR = f"http://{MIRROR_HOST}:{MIRROR_PORT}"
JSON_PAGE = "application/vnd.pypi.simple."
METADATA = ".metadata"
"""The suffix of the URL of a wheel's metadata (PEP 658)."""

_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NPM_NAME = r"[A-Za-z0-9_~!'()*-][A-Za-z0-9._~!'()*-]*"
_NPM_PACKAGE = re.compile(
    rf"(?!-/)(?:@{_NPM_NAME}/)?{_NPM_NAME}(?:/-/(?:@{_NPM_NAME}/)?[A-Za-z0-9][A-Za-z0-9._+~-]*\.tgz|/[A-Za-z0-9][A-Za-z0-9._+~-]*)?",
    re.ASCII,
)
"""Documents of a package or of one version, and tarballs. A registry's account API, below ``-/``, is excluded."""
_HREF = re.compile(r"""(<(?:a|base)\b[^>]*?\bhref\s*=\s*)("[^"]*"|'[^']*')""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PipIndex:
    """The package indexes of pip. URLs may contain credentials, which only the farm uses."""

    urls: tuple[str, ...] = ("https://pypi.org/simple",)
    find_links: tuple[str, ...] = ()
    trusted_hosts: frozenset[str] = frozenset()
    timeout_s: str = ""
    retries: str = ""


@dataclass(frozen=True, slots=True)
class NpmRegistry:
    """The registry of npm. ``authorization`` is the value of the Authorization header for it, or empty."""

    url: str = "https://registry.npmjs.org"
    authorization: str = ""


@dataclass(frozen=True, slots=True)
class PackageIndexes:
    """The package indexes of build steps.

    ``apt_hosts``: hosts with packages of distributions. ``hosts``: patterns of further hosts from the operator.
    """

    pip: PipIndex = PipIndex()
    npm: NpmRegistry = NpmRegistry()
    apt_hosts: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def allowed(self) -> AllowList:
        """Return the hosts that a build step may reach directly.

        A host of pip or npm at a private address is reached only through the mirror, which serves only packages. apt
        uses plain HTTP to its hosts, which may be a site's own.
        """
        origins = [*self.pip.urls, *self.pip.find_links, self.npm.url]
        names = {urlsplit(url).hostname or "" for url in origins if urlsplit(url).port in (None, 80, 443)}
        if "pypi.org" in names:
            names.add("files.pythonhosted.org")
        listed = AllowList.parse((*sorted(filter(_is_name, names)), *self.hosts))
        apt = (Pattern(parse_host(name), below=False, port=None) for name in self.apt_hosts)
        return AllowList((*apt, *listed.patterns))

    def granted(self) -> Grants:
        """Return the hosts that a build step may also reach at a private address, because the operator names them."""
        hosts_and_ports: list[tuple[Host, int | None]] = [(parse_host(name), None) for name in self.apt_hosts]
        hosts_and_ports += [(each.host, each.port) for each in AllowList.parse(self.hosts).patterns if not each.below]
        return Grants(
            tuple(
                Pattern(host, below=False, port=port)
                for host, given in hosts_and_ports
                for port in ((HTTP_PORT, HTTPS_PORT) if given is None else (given,))
            )
        )

    def variables(self) -> dict[str, str]:
        """Return the variables that point package managers in a step at the mirror; the same for each build."""
        count = len(self.pip.urls)
        indexes = [f"{MIRROR}/pip/{number}" for number in range(count)]
        found = {
            "PIP_INDEX_URL": indexes[0] if indexes else "",
            "PIP_EXTRA_INDEX_URL": " ".join(indexes[1:]),
            "PIP_FIND_LINKS": " ".join(f"{MIRROR}/links/{number}/" for number in range(len(self.pip.find_links))),
            "PIP_DEFAULT_TIMEOUT": self.pip.timeout_s,
            "PIP_RETRIES": self.pip.retries,
            "UV_DEFAULT_INDEX": indexes[0] if indexes else "",
            "UV_INDEX": " ".join(indexes[1:]),
            "npm_config_registry": f"{MIRROR}/npm/",
        }
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class IndexUpstream:
    """The upstream of a request to the mirror. Links are rewritten in pages of pip (``page``) and answers of npm
    (``npm``).
    """

    url: str
    page: bool = False
    npm: bool = False


class Router:
    """Map the mirror's paths to upstream URLs, and upstream pages to the mirror's paths."""

    def __init__(self, indexes: PackageIndexes, key: bytes) -> None:
        self._indexes = indexes
        self._key = key
        self._allowed = indexes.allowed()

    def find(self, target: str) -> IndexUpstream | None:
        """Return the upstream of a request's target; None if the target is not a path of the mirror."""
        path, _, query = target.partition("?")
        kind, _, rest = path.removeprefix("/").partition("/")
        if kind == "npm":
            if not _NPM_PACKAGE.fullmatch(unquote(rest)):
                return None
            return IndexUpstream(
                f"{self._indexes.npm.url.rstrip('/')}/{rest}" + (f"?{query}" if query else ""), npm=True
            )
        if kind == "file":
            return self._file(rest, query)
        number, _, name = rest.partition("/")
        if not (number.isascii() and number.isdigit()):
            return None
        urls = {"pip": self._indexes.pip.urls, "links": self._indexes.pip.find_links}.get(kind, ())
        if int(number[:9]) >= len(urls):
            return None
        url = urls[int(number[:9])]
        name = name.strip("/")
        if kind == "links" and not name:
            return IndexUpstream(url, page=True)
        if kind == "pip" and _PROJECT.fullmatch(name):
            return IndexUpstream(f"{url.rstrip('/')}/{name}/", page=True)
        return None

    def _file(self, rest: str, query: str) -> IndexUpstream | None:
        signature, _, rest = rest.partition("/")
        scheme, _, rest = rest.partition("/")
        url = f"{scheme}://{rest}" + (f"?{query}" if query else "")
        urls_to_check = [url, url.removesuffix(METADATA)] if not query else [url]
        if any(hmac.compare_digest(signature.encode(), self._sign(each).encode()) for each in urls_to_check):
            return IndexUpstream(url)
        return None

    def _sign(self, url: str) -> str:
        return hmac.new(self._key, url.encode(), hashlib.sha256).hexdigest()[:32]

    def link(self, base: str, href: str) -> str:
        """Return the mirror's address of the file that ``href`` in the page at ``base`` links to."""
        url = urlsplit(urljoin(base, href))
        host = url.netloc.rpartition("@")[2]
        if url.scheme not in ("http", "https") or not self._may_link(url, urlsplit(base)):
            return href
        path = quote(url.path, safe="/%:@!$&'()*+,;=~-._")
        signature = self._sign(urlunsplit((url.scheme, host, path, url.query, "")))
        return urlunsplit(("", "", f"/file/{signature}/{url.scheme}/{host}{path}", url.query, url.fragment))

    def _may_link(self, url: SplitResult, page: SplitResult) -> bool:
        """Return whether the farm may fetch from the host that a page links to: the index's own host, or an allowed
        one.
        """
        own = [page, *map(urlsplit, (*self._indexes.pip.urls, *self._indexes.pip.find_links))]
        with suppress(ValueError):
            if any((url.hostname, url.port) == (each.hostname, each.port) for each in own):
                return True
            port = url.port or (HTTPS_PORT if url.scheme == "https" else HTTP_PORT)
            return self._allowed.find(parse_host(url.hostname or ""), port) is not None
        return False

    def rewrite_page(self, base: str, content_type: str, content: bytes) -> bytes:
        """Rewrite the links of a simple-index page (PEP 503, PEP 691). Raises ValueError for another document."""
        if content_type.startswith((JSON_PAGE, "application/json")):
            page = json.loads(content)
            for file in page["files"]:
                file["url"] = self.link(base, file["url"])
            return json.dumps(page).encode()
        text = content.decode("utf-8", "surrogateescape")
        for found in re.finditer(r"<base\b[^>]*?\bhref\s*=\s*[\"']([^\"']*)", text, re.IGNORECASE):
            base = urljoin(base, html.unescape(found[1]))
        return _HREF.sub(lambda found: self._anchor(base, found), text).encode("utf-8", "surrogateescape")

    def _anchor(self, base: str, found: "re.Match[str]") -> str:
        if found[1][:5].lower() == "<base":
            return f'{found[1]}"/"'
        return f'{found[1]}"{html.escape(self.link(base, html.unescape(found[2][1:-1])))}"'

    def rewrite_npm(self, content: bytes) -> bytes:
        """Rewrite the tarball URLs of a package's document to the mirror. Raises ValueError if it is not JSON."""
        prefix = f"{self._indexes.npm.url.rstrip('/')}/"
        return json.dumps(_replace_tarballs(json.loads(content), _url_mover(prefix))).encode()


def _url_mover(prefix: str) -> Callable[[str], str]:
    origin = urlsplit(prefix)

    def move(url: str) -> str:
        """Move a URL of the registry, with either scheme, to the mirror."""
        parts = urlsplit(url)
        if parts.netloc != origin.netloc.rpartition("@")[2] or not parts.path.startswith(origin.path):
            return url
        return f"{MIRROR}/npm/{parts.path.removeprefix(origin.path)}"

    return move


def _replace_tarballs(document: Any, move: Callable[[str], str]) -> Any:
    """Replace ``dist.tarball`` in a package's document or in that of one version."""
    if isinstance(document, dict):
        for version in [document, *(document.get("versions") or {}).values()]:
            dist = version.get("dist") if isinstance(version, dict) else None
            if isinstance(dist, dict) and isinstance(dist.get("tarball"), str):
                dist["tarball"] = move(dist["tarball"])
    return document


def _is_name(host: str) -> bool:
    """Return whether a host is a public name, neither an address nor a name of the local network."""
    return "." in host and ":" not in host and not host.rpartition(".")[2].isdigit()
