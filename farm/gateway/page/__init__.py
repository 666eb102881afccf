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
"""Nothing inline and nothing of another host runs, and no text can become markup, whatever a sandbox wrote."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


class PageFile(NamedTuple):
    """A file of the page. ``tag`` changes with its content."""

    content: bytes
    media_type: str
    tag: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """Return the files of the page by their paths under ``/ui/``."""
    found = {}
    for path in sorted(ROOT.rglob("*")):
        if path.suffix in _TYPES and path.is_file():
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[path.relative_to(ROOT).as_posix()] = PageFile(content, _TYPES[path.suffix], tag)
    return found


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
async def get_file(path: str, request: Request) -> Response:
    """Return a file of the page. No token is needed: the files are the same for all, and hold nothing of the farm."""
    file = page_files().get(path or "index.html")
    if file is None:
        raise ApiError(ProblemType.NOT_FOUND, f"the page has no file {path[:100]}; open {AT}", headers=_HEADERS)
    headers = {**_HEADERS, "ETag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
