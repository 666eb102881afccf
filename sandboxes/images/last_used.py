"""When each image was last used, and which of them the farm itself pulled: kept on disk, for those who make room.

One small file an image; when it was last modified is when the image was last used. So a note is one call to the kernel,
nothing can be torn by a crash, and any number of processes note at the same time.
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
"""Uses of one image that follow sooner are not written down: the order of use needs no more."""

STALE_S = 3600.0
"""An image may be noted before it is made. A note this old of an image that is not here speaks of one that is gone."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImageUse:
    """``at``: Unix seconds. ``pulled``: the farm brought the image to this machine, and so may take it away."""

    at: float
    pulled: bool


class ImageUses:
    """The notes in one directory. What cannot be written is logged and lost: no sandbox fails for want of a note."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._noted: dict[str, float] = {}

    @classmethod
    def of(cls, state_dir: Path) -> "ImageUses":
        return cls(state_dir / "images")

    def note(self, image: str, now: float | None = None) -> None:
        now = time.time() if now is None else now
        if abs(now - self._noted.get(image, -math.inf)) < NOTE_EVERY_S:
            return
        self._noted[image] = now
        try:
            self._write(image, ImageUse(now, pulled=False))
        except OSError as error:
            log.warning("the use of %s is not noted: %s", image, error)

    def note_pulled(self, image: str, now: float | None = None) -> None:
        now = time.time() if now is None else now
        try:
            self._write(image, ImageUse(now, pulled=True))
        except OSError as error:
            log.warning("that %s was pulled is not noted, so it will stay: %s", image, error)

    def all(self) -> dict[str, ImageUse]:
        """Uses by image. A file that is none of ours, or was never finished, is passed over."""
        found: dict[str, ImageUse] = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._directory):
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    told = json.loads(Path(entry.path).read_bytes())
                    image = str(told["image"])
                    if entry.path == str(self._path(image)):
                        found[image] = ImageUse(entry.stat().st_mtime, bool(told["pulled"]))
        return found

    def forget(self, image: str) -> None:
        self._noted.pop(image, None)
        with contextlib.suppress(OSError):
            self._path(image).unlink(missing_ok=True)

    def forget_all_but(self, images: Collection[str], now: float) -> None:
        """Drop what was noted of images that are not among those, which are all that are here."""
        for image, use in self.all().items():
            if image not in images and now - use.at > STALE_S:
                self.forget(image)

    def _write(self, image: str, use: ImageUse) -> None:
        """A mere use never takes the mark of a pull away, whoever writes at the same time."""
        path = self._path(image)
        if not use.pulled and path.exists():
            os.utime(path, (use.at, use.at))
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, fresh = tempfile.mkstemp(dir=self._directory)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump({"image": image, "pulled": use.pulled}, file)
            os.utime(fresh, (use.at, use.at))
            if use.pulled:
                os.replace(fresh, path)
            else:
                with contextlib.suppress(FileExistsError):
                    os.link(fresh, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)

    def _path(self, image: str) -> Path:
        """An image's name may hold slashes, and be longer than a file's."""
        return self._directory / hashlib.sha256(image.encode()).hexdigest()
