"""The web page of the farm: files that the gateway serves under ``/ui/``, and the policy that bounds them.

This room decides which files a browser gets, and what their content may do. The page itself is plain ES modules: enter
at ``main.js``. It reads only the API. ``vendor/`` holds libraries; ``vendor/versions.json`` names their versions and
digests. The page is farm/docs/page.md.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from farm.gateway.errors import ApiError
from farm.schemas.problems import ProblemType

ROOT = Path(__file__).parent
AT = "/ui/"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""No inline script and nothing of another host runs, and text of a sandbox cannot become markup."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_START = "index.html"

router = APIRouter(include_in_schema=False)


class PageFile(NamedTuple):
    """A file of the page."""

    content: bytes
    media_type: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """Return the files of the page by their paths. All style sheets are in one, ``style.css``."""
    found, styles = {}, b""
    for path in sorted(ROOT.rglob("*")):
        if path.suffix == ".css":
            styles += path.read_bytes()
        elif path.suffix in _TYPES:
            found[path.relative_to(ROOT).as_posix()] = PageFile(path.read_bytes(), _TYPES[path.suffix])
    found["style.css"] = PageFile(styles, _TYPES[".css"])
    return found


@cache
def release() -> str:
    """Return the folder of the files, named after their content. A browser keeps a folder for good."""
    digest = hashlib.sha256()
    for path, file in page_files().items():
        digest.update(f"{path} {len(file.content)} ".encode() + file.content)
    return f"@{digest.hexdigest()[:16]}"


@router.get("/")
async def open_page(request: Request) -> Response:
    """Send a browser to the page."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(AT)
    raise ApiError(ProblemType.NOT_FOUND, f"the page is at {AT}, and /openapi.json describes the API")


@router.get(AT.rstrip("/"))
async def open_page_with_slash() -> Response:
    """Send a browser to the page."""
    return RedirectResponse(AT)


@router.get(AT + "{path:path}")
async def get_file(path: str) -> Response:
    """Return a file of the page. No token is needed: the files are the same for all, and hold nothing of the farm."""
    folder, _, name = path.partition("/")
    file = page_files().get(name if folder == release() else path or _START)
    if file is None:
        raise ApiError(ProblemType.NOT_FOUND, f"the page has no file {path[:100]}; open {AT}", headers=_HEADERS)
    kept = "max-age=31536000, immutable" if folder == release() else "no-cache"
    content = file.content if path else file.content.replace(b'href="', f'href="{release()}/'.encode())
    if not path:
        content = content.replace(b'src="', f'src="{release()}/'.encode())
    return Response(content, headers={**_HEADERS, "Cache-Control": kept}, media_type=file.media_type)
