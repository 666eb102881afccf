"""Resolve image names to pull sources: a mirror of the default registry, and the digest at the first pull of a name.

Each pin is one small file that is replaced atomically, so a crash cannot corrupt it.
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
    """Digest pins in ``directory``, and a mirror of the default registry.

    ``mirror`` is the prefix of the names to pull, such as ``HOST:PORT`` or ``HOST/PATH``. It does not apply to a name
    with a registry or a digest.
    """

    def __init__(self, directory: Path, mirror: str = "") -> None:
        self._directory = directory
        self._mirror = mirror.strip("/")

    @classmethod
    def of(cls, state_dir: Path, mirror: str | None = None) -> "ImageOrigins":
        return cls(state_dir / "image-pins", mirror or "")

    def source(self, name: str, *, anew: bool = False) -> str:
        """Return the name to pull for ``name``: at the mirror, and by its pinned digest unless ``anew``."""
        if "@" in name:
            return name
        place = self._at_mirror(name)
        digest = None if anew else self.pin(name)
        return place if digest is None else f"{split_name(place)[0]}@{digest}"

    def pin(self, name: str) -> str | None:
        """Return the digest to which ``name`` is pinned; None if it is not pinned."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            pin = json.loads(self._path(name).read_bytes())
            if pin["image"] == name and _DIGEST.fullmatch(pin["digest"]):
                return str(pin["digest"])
        return None

    def note(self, name: str, digest: str) -> None:
        if "@" in name or not _DIGEST.fullmatch(digest) or self.pin(name) == digest:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, temporary = tempfile.mkstemp(dir=self._directory)
            with os.fdopen(descriptor, "w") as file:
                json.dump({"image": name, "digest": digest}, file)
            os.replace(temporary, self._path(name))
        except OSError as error:
            log.warning("%s is not pinned to %s: %s", name, digest, error)

    def _at_mirror(self, name: str) -> str:
        if not self._mirror:
            return name
        try:
            host, path = resolve_repository_name(name)
        except DockerException:  # an invalid name: the daemon has the better message
            return name
        if host != INDEX_NAME:
            return name
        return f"{self._mirror}/{path}" if "/" in path else f"{self._mirror}/library/{path}"

    def _path(self, name: str) -> Path:
        """Return the path of a pin, hashed because a name may contain slashes and be longer than a file name."""
        return self._directory / hashlib.sha256(name.encode()).hexdigest()
