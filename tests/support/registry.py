"""A registry on loopback, as much of its protocol as a daemon needs to pull from it.

Names of images say how it behaves: see ``MOODS``.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from tests.support.images import Layer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar"
PATIENCE_S = 120.0

MOODS = {
    "nowhere": (404, "MANIFEST_UNKNOWN", "manifest unknown"),
    "closed": (403, "DENIED", "requested access to the resource is denied"),
    "sick": (503, "UNAVAILABLE", "try again later"),
    "busy": (429, "TOOMANYREQUESTS", "slow down"),
}
"""What it answers, in place of an image, for a name that ends so."""


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Registry:
    """Serves what ``put`` was given. While ``hold`` is set, blobs come to their middle and no further."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.pulls_begun: Counter[str] = Counter()
        self.downloading: set[str] = set()
        self.most_at_once = 0
        self.halfway = Event()
        self.go = Event()
        self.go.set()
        self._manifests: dict[str, bytes] = {}
        self._by_digest: dict[str, bytes] = {}
        self._blobs: dict[str, bytes] = {}

    def name(self, image: str) -> str:
        return f"{self.address}/farm-test-{image}:1"

    def put(self, image: str, content: bytes = b"hello\n") -> str:
        """Serve an image of one layer with one file; the digest it can be pulled by."""
        layer = Layer().file(image, content).packed()
        config = _json(
            {
                "architecture": "amd64",
                "os": "linux",
                "author": self.address,  # no two registries of tests that run side by side serve the same image
                "config": {"Labels": {"image": image}},
                "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
            }
        )
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": CONFIG, "size": len(config), "digest": digest(config)},
                "layers": [{"mediaType": LAYER, "size": len(layer), "digest": digest(layer)}],
            }
        )
        self._blobs |= {digest(layer): layer, digest(config): config}
        self._manifests[f"farm-test-{image}"] = manifest
        self._by_digest[digest(manifest)] = manifest
        return digest(manifest)

    def answer(self, request: "_Handler") -> None:
        _, _, path = request.path.partition("/v2/")
        if not path:
            return request.give(200, b"{}")
        repository, kind, wanted = path.rsplit("/", 2)
        for mood, (status, code, message) in MOODS.items():
            if repository.endswith(mood):
                return request.give(status, _json({"errors": [{"code": code, "message": message}]}))
        if kind == "manifests" and repository in self._manifests:
            manifest = self._manifests[repository] if wanted == "1" else self._by_digest.get(wanted)
            if manifest is not None:
                self.pulls_begun[repository] += request.command == "HEAD"
                return request.give(200, manifest, MANIFEST)
        if kind == "blobs" and wanted in self._blobs:
            return self._send_blob(request, repository, self._blobs[wanted])
        return request.give(404, _json({"errors": [{"code": "BLOB_UNKNOWN", "message": "blob unknown"}]}))

    def _send_blob(self, request: "_Handler", repository: str, blob: bytes) -> None:
        self.downloading.add(repository)
        self.most_at_once = max(self.most_at_once, len(self.downloading))
        try:
            request.begin(200, len(blob))
            request.wfile.write(blob[: len(blob) // 2])
            request.wfile.flush()
            if not self.go.is_set():
                self.halfway.set()
                self.go.wait(PATIENCE_S)
            request.wfile.write(blob[len(blob) // 2 :])
        except OSError:  # the daemon has given the pull up
            request.close_connection = True
        finally:
            self.downloading.discard(repository)


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self) -> None:
        self.registry.answer(self)

    def do_HEAD(self) -> None:
        self.registry.answer(self)

    def begin(self, status: int, length: int, kind: str = "application/octet-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def give(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.begin(status, len(body), kind)
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the method that this is
        """Nobody reads it."""


@contextmanager
def running_registry() -> Iterator[Registry]:
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    registry = Registry(server.server_port)
    handler.registry = registry  # type: ignore[attr-defined]  # a class made just now
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        registry.go.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()
