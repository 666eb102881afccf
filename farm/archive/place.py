"""The place of an archive: a local directory, or a file system of fsspec such as S3.

A file appears whole or not at all: in a directory by a rename, in an object store by one put.
"""

import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from farm.archive.errors import ArchiveUnavailable

_DRAFT = ".draft-"
_BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Schemes of stores without folders. To make a folder there would make a bucket that is absent."""

_OLD_DRAFT_S = 86_400.0


class ArchivePlace(Protocol):
    """Files by their path below the archive. Every method may raise ArchiveUnavailable."""

    @property
    def shown(self) -> str:
        """The address, without a password."""
        ...

    def check(self) -> None:
        """Raise ArchiveUnavailable if the place cannot take files. An object store is not asked."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """Return the files below a folder, sorted; none if there is no such folder."""
        ...

    def draft(self) -> AbstractContextManager[Path]:
        """Yield the path of a new local file, which is removed at the end of the block unless it was put."""
        ...

    def put(self, draft: Path, name: str) -> None:
        """Make a draft a file of the archive."""
        ...

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""
        ...

    def fetched(self, name: str) -> AbstractContextManager[Path]:
        """Yield a local path with the content of a file."""
        ...


def open_place(url: str) -> ArchivePlace:
    """Return the place with this address, a path or a URL. Raises ArchiveUnavailable if a package is missing."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return LocalPlace(Path(url))
    return LocalPlace(Path(rest)) if scheme == "file" else ObjectPlace(url)


def shown_url(url: str) -> str:
    """Return a path or a URL without user, password and query."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


class LocalPlace:
    """A directory. It must exist: the farm does not make it, because it may be on a disk that is not mounted."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    @property
    def shown(self) -> str:
        return str(self._root)

    def check(self) -> None:
        if not self._root.exists():
            raise self._unavailable("there is no such directory; create it, or mount its disk")
        if not self._root.is_dir():
            raise self._unavailable("it is not a directory; set archive to a directory")
        if not os.access(self._root, os.W_OK | os.X_OK):
            raise self._unavailable("the directory is not writable; let the farm's user write there")

    def names(self, folder: str = "") -> list[str]:
        with self._explained():
            if not self._root.is_dir():
                self.check()
            found = (path for path in (self._root / folder).rglob("*") if path.is_file())
            names = (path.relative_to(self._root).as_posix() for path in found)
            return sorted(name for name in names if not name.startswith(_DRAFT))

    @contextmanager
    def draft(self) -> Iterator[Path]:
        self.check()
        self._remove_old_drafts()
        path = self._root / f"{_DRAFT}{secrets.token_hex(8)}"
        with self._explained():
            try:
                yield path
            finally:
                path.unlink(missing_ok=True)

    def put(self, draft: Path, name: str) -> None:
        with self._explained():
            _sync(draft)  # before a folder is made: it fails if the directory has vanished
            target = self._root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.rename(target)
            for folder in (target.parent, *(one for one in target.parents if one.is_relative_to(self._root))):
                _sync(folder)

    def read(self, name: str) -> bytes:
        with self._explained():
            return (self._root / name).read_bytes()

    @contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        yield self._root / name

    def _remove_old_drafts(self) -> None:
        """Remove drafts of processes that were killed."""
        with self._explained():
            for path in self._root.glob(f"{_DRAFT}*"):
                if path.stat().st_mtime < time.time() - _OLD_DRAFT_S:
                    path.unlink(missing_ok=True)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unavailable(f"{error.strerror or error}; free space there, or make it usable again") from None

    def _unavailable(self, why: str) -> ArchiveUnavailable:
        return ArchiveUnavailable(f"the archive {self.shown}: {why}")


class ObjectPlace:
    """A file system that fsspec opens. Its options come from fsspec's own configuration and from the environment."""

    def __init__(self, url: str) -> None:
        self._shown = shown_url(url)
        try:
            import fsspec

            self._files: Any
            self._files, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            remedy = "pip install 'rollout-farm[archive]', and the fsspec package of other stores than S3"
            raise self._unavailable(f"{str(error).rstrip('.')}; {remedy}") from None
        except ValueError as error:
            raise self._unavailable(f"{error}; set archive to a directory, or to a URL such as s3://BUCKET") from None
        self._root = str(root).rstrip("/")
        self._has_folders = url.partition("://")[0] not in _BUCKETS

    @property
    def shown(self) -> str:
        return self._shown

    def check(self) -> None:
        return

    def names(self, folder: str = "") -> list[str]:
        with self._explained():
            self._files.invalidate_cache()
            try:
                found = self._files.find(f"{self._root}/{folder}".rstrip("/"))
            except FileNotFoundError:
                found = []
            if not found and not self._has_folders and not self._files.exists(self._root.partition("/")[0]):
                raise self._unavailable("there is no such bucket; create it, or correct its name")
            return sorted(name.removeprefix(f"{self._root}/") for name in found)

    @contextmanager
    def draft(self) -> Iterator[Path]:
        try:
            with tempfile.TemporaryDirectory(prefix="farm-archive-") as folder:
                yield Path(folder) / "draft"
        except OSError as error:
            why = f"its files are made in {tempfile.gettempdir()}: {error.strerror or error}"
            raise self._unavailable(f"{why}; free space there, or name another directory in TMPDIR") from None

    def put(self, draft: Path, name: str) -> None:
        with self._explained():
            target = f"{self._root}/{name}"
            if self._has_folders:
                self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(draft), target)
            self._files.invalidate_cache()
            size, wanted = self._files.info(target)["size"], draft.stat().st_size
            if size != wanted:
                raise OSError(f"{name} has {size} bytes after the upload of {wanted}")

    def read(self, name: str) -> bytes:
        with self._explained():
            return bytes(self._files.cat_file(f"{self._root}/{name}"))

    @contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="farm-archive-") as folder:
            path = Path(folder) / "file"
            with self._explained():
                self._files.get_file(f"{self._root}/{name}", str(path))
            yield path

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ArchiveUnavailable:
            raise
        except Exception as error:  # a boundary: each file system of fsspec has errors of its own
            cause = (str(error).splitlines() or [""])[0] or type(error).__name__
            remedy = "check its address, its credentials (AWS_* variables for S3) and whether it is up"
            raise self._unavailable(f"{cause}; {remedy}") from error

    def _unavailable(self, why: str) -> ArchiveUnavailable:
        return ArchiveUnavailable(f"the archive {self.shown}: {why}")


def _sync(path: Path) -> None:
    """Write a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
