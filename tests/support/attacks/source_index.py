"""A package index on loopback whose one release runs a program of its author's when its metadata is prepared."""

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SDIST = "purse-1.0.tar.gz"
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = """\
from contextlib import suppress
from pathlib import Path


def prepare_metadata_for_build_wheel(where, config_settings=None):
    with suppress(OSError):
        Path({marker!r}).write_text("the author was here")
    home = Path(where) / "purse-1.0.dist-info"
    home.mkdir()
    (home / "METADATA").write_text("Metadata-Version: 2.1\\nName: purse\\nVersion: 1.0\\n")
    return home.name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    raise AssertionError("not reached")
"""


@dataclass
class SourceIndex:
    """``asked``: the path of each request so far. ``marker``: the file that the author's program writes."""

    url: str
    sha256: str
    marker: Path
    asked: list[str] = field(default_factory=list)


def author_files(marker: Path) -> dict[str, str]:
    """A package with tests whose build backend writes ``marker``."""
    return {
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND.format(marker=str(marker)),
        "src/purse/__init__.py": "def pay(): ...\n",
        "tests/test_purse.py": "from purse import pay\n\n\ndef test_pay():\n    pay()\n",
    }


@contextmanager
def source_index(marker: Path, *, kind: str = "html") -> Iterator[SourceIndex]:
    """Serves release 1.0 of ``purse``, by the simple API as ``html`` or as ``json``."""
    sdist = _sdist(author_files(marker))
    sha256 = hashlib.sha256(sdist).hexdigest()
    page, content_type = f'<a href="/{SDIST}#sha256={sha256}">{SDIST}</a>', "text/html"
    if kind == "json":
        file = {"filename": SDIST, "url": f"/{SDIST}", "hashes": {"sha256": sha256}}
        document = {"meta": {"api-version": "1.0"}, "name": "purse", "files": [file]}
        page, content_type = json.dumps(document), "application/vnd.pypi.simple.v1+json"
    answers = {"/simple/purse/": (content_type, page.encode()), f"/{SDIST}": ("application/octet-stream", sdist)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append(self.path)
            kind, body = answers.get(self.path, ("text/plain", b""))
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the method that this is
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index = SourceIndex(f"http://127.0.0.1:{server.server_port}/simple", sha256, marker)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _sdist(files: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"purse-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return made.getvalue()
