"""Record on disk when each image was last used and which images the farm pulled; the eviction reads it.

One small file for each image; its mtime is the time of the last use. So recording a use is one system call, a crash
corrupts nothing, and several processes can record at the same time.
"""

import contextlib
import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

NOTE_EVERY_S = 60.0
"""Minimum seconds between recorded uses of one image; the eviction order needs no finer times."""

STALE_S = 3600.0
"""A record older than this for a missing image is dropped; a newer one may be of an image that is being built."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImageUse:
    """The last use of an image. ``at``: Unix seconds. ``pulled``: the farm pulled the image, so it may remove it."""

    at: float
    pulled: bool


class ImageUses:
    """The records in one directory.

    Failed writes are logged and ignored, so that no sandbox fails because of a record.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._recorded_at: dict[str, float] = {}

    @classmethod
    def of(cls, state_dir: Path) -> "ImageUses":
        return cls(state_dir / "images")

    def note(self, image: str, now: float | None = None) -> None:
        now = time.time() if now is None else now
        if abs(now - self._recorded_at.get(image, -math.inf)) < NOTE_EVERY_S:
            return
        self._recorded_at[image] = now
        try:
            self._write(image, ImageUse(now, pulled=False))
        except OSError as error:
            log.warning("the use of image %s is not recorded: %s", image, error)

    def note_pulled(self, image: str, now: float | None = None) -> None:
        now = time.time() if now is None else now
        try:
            self._write(image, ImageUse(now, pulled=True))
        except OSError as error:
            log.warning("the pull of image %s is not recorded, so it is never evicted: %s", image, error)

    def all(self) -> dict[str, ImageUse]:
        """Return the uses by image. Foreign and incomplete files are skipped."""
        found: dict[str, ImageUse] = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._directory):
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    record = json.loads(Path(entry.path).read_bytes())
                    image = str(record["image"])
                    if entry.path == str(self._path(image)):
                        found[image] = ImageUse(entry.stat().st_mtime, bool(record["pulled"]))
        return found

    def forget(self, image: str) -> None:
        self._recorded_at.pop(image, None)
        with contextlib.suppress(OSError):
            self._path(image).unlink(missing_ok=True)

    def forget_all_but(self, images: Collection[str], now: float) -> None:
        """Drop the records of images that are not in ``images``, the list of all images on this machine."""
        for image, use in self.all().items():
            if image not in images and now - use.at > STALE_S:
                self.forget(image)

    def _write(self, image: str, use: ImageUse) -> None:
        """Write a record. A use never clears the ``pulled`` mark, even with concurrent writers."""
        path = self._path(image)
        if not use.pulled and path.exists():
            os.utime(path, (use.at, use.at))
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=self._directory)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump({"image": image, "pulled": use.pulled}, file)
            os.utime(temporary, (use.at, use.at))
            if use.pulled:
                os.replace(temporary, path)
            else:
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _path(self, image: str) -> Path:
        """Return the path of a record, hashed because a name may contain slashes and be longer than a file name."""
        return self._directory / hashlib.sha256(image.encode()).hexdigest()
