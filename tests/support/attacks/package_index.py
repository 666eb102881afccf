"""A package index on loopback with one release, as much of its protocol as pip needs."""

import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WHEEL = "pricing-2.0-py3-none-any.whl"


@dataclass
class PackageIndex:
    """``asked``: the path of each request so far."""

    host: str
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.host}/simple"


@contextmanager
def package_index(module: str) -> Iterator[PackageIndex]:
    """Serves release 2.0 of ``pricing``, of which ``module`` is ``cart.py``."""
    wheel = _wheel(module)
    page = f'<!DOCTYPE html><html><body><a href="/{WHEEL}">{WHEEL}</a></body></html>'.encode()
    answers = {"/simple/pricing/": ("text/html", page), f"/{WHEEL}": ("application/octet-stream", wheel)}

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
    index = PackageIndex(f"127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _wheel(module: str) -> bytes:
    info = "pricing-2.0.dist-info"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("pricing/__init__.py", "")
        archive.writestr("pricing/cart.py", module)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: pricing\nVersion: 2.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return made.getvalue()
