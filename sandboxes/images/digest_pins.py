"""Where images come from: a mirror of the default registry, and the digest that a name meant when it was first pulled.

A pin is one small file an image, so that nothing can be torn by a crash.
"""

import hashlib
import json
import logging
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from docker.auth import INDEX_NAME, resolve_repository_name
from docker.errors import DockerException

from sandboxes.images.pull import split_name

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

log = logging.getLogger(__name__)


class ImageOrigins:
    """``mirror``: what is put before a name of the default registry, say ``HOST:PORT`` or ``HOST/PATH``.

    ``directory`` holds the pins. A name that says its registry, or a digest, is pulled as it stands.
    """

    def __init__(self, directory: Path, mirror: str = "") -> None:
        self._directory = directory
        self._mirror = mirror.strip("/")

    @classmethod
    def of(cls, state_dir: Path, mirror: str | None = None) -> "ImageOrigins":
        return cls(state_dir / "image-pins", mirror or "")

    def source(self, name: str, *, anew: bool = False) -> str:
        """What to pull for ``name``: at the mirror, and by its digest where it has one, unless a new one is wanted."""
        if "@" in name:
            return name
        place = self._at_mirror(name)
        digest = None if anew else self.pin(name)
        return place if digest is None else f"{split_name(place)[0]}@{digest}"

    def pin(self, name: str) -> str | None:
        """The digest that ``name`` was pinned to."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(self._path(name).read_bytes())
            if told["image"] == name and _DIGEST.fullmatch(told["digest"]):
                return str(told["digest"])
        return None

    def note(self, name: str, digest: str) -> None:
        if "@" in name or not _DIGEST.fullmatch(digest) or self.pin(name) == digest:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, fresh = tempfile.mkstemp(dir=self._directory)
            with os.fdopen(descriptor, "w") as file:
                json.dump({"image": name, "digest": digest}, file)
            os.replace(fresh, self._path(name))
        except OSError as error:
            log.warning("%s is not pinned to %s: %s", name, digest, error)

    def _at_mirror(self, name: str) -> str:
        if not self._mirror:
            return name
        try:
            host, path = resolve_repository_name(name)
        except DockerException:  # no name at all, which the daemon says better
            return name
        if host != INDEX_NAME:
            return name
        return f"{self._mirror}/{path}" if "/" in path else f"{self._mirror}/library/{path}"

    def _path(self, name: str) -> Path:
        """A name may hold slashes, and be longer than a file's."""
        return self._directory / hashlib.sha256(name.encode()).hexdigest()
