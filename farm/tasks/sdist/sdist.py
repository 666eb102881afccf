"""Source distributions: downloaded from the package index once, cached by their SHA-256, and never built."""

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from farm.tasks.bundle import BundleFile
from farm.tasks.errors import TaskError
from farm.tasks.sdist.archives import ArchiveError, read_archive
from sandboxes.ownership.scratch_dirs import scratch

OnProgress = Callable[[str], None]


def fetch_sdist(
    package: str, version: str, sha256: str | None, *, state_dir: Path, on_progress: OnProgress | None = None
) -> Path:
    """Return the source distribution of a release, from the cache ``state_dir/sources`` or from the package index.

    The index is the one that pip is configured to use. Without ``sha256`` any file that the index offers is accepted.
    Raises TaskError.
    """
    cache = state_dir / "sources"
    if sha256 is not None and (cached := _cached(cache / sha256, sha256)):
        return cached
    from farm.tasks.sdist.package_index import (  # imports an HTTP client that few commands need
        download_sdist,
        read_index_settings,
    )

    if on_progress is not None:
        on_progress(f"downloading {package} {version}")
    cache.mkdir(parents=True, exist_ok=True)
    with scratch(cache) as scratch_directory:
        staged = scratch_directory / "staged"
        staged.mkdir()
        downloaded = download_sdist(package, version, sha256, staged, read_index_settings())
        os.chmod(downloaded, 0o644)
        cache_entry = cache / _digest(downloaded)
        with suppress(OSError):  # another process has cached the same bytes
            staged.rename(cache_entry)
        return cache_entry / downloaded.name


def read_sdist(path: Path) -> Mapping[str, BundleFile]:
    """Return the regular files of a source distribution by their path below the single top directory.

    Raises TaskError for a file that is not an archive, leaves its own top, or exceeds a limit of ``archives``.
    """
    files: dict[str, BundleFile] = {}
    try:
        for member in read_archive(path):
            parts = PurePosixPath(member.name).parts
            if member.name.startswith("/") or ".." in parts:
                raise TaskError(path, f"the archive names {member.name[:200]!r}", "choose another release")
            if len(parts) > 1:
                files["/".join(parts[1:])] = BundleFile(member.content, member.executable)
    except ArchiveError as error:
        raise TaskError(
            path, f"not a readable source distribution ({error})", "remove the file, or choose another release"
        ) from None
    return files


def sdist_digest(path: Path) -> str:
    """Return the SHA-256 of a cached source distribution, which is the name of its directory."""
    return path.parent.name


def _cached(cache_entry: Path, sha256: str) -> Path | None:
    """Return the cached file if its digest is still right; otherwise remove it."""
    for path in cache_entry.glob("*") if cache_entry.is_dir() else ():
        if _digest(path) == sha256:
            return path
        shutil.rmtree(cache_entry, ignore_errors=True)
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
