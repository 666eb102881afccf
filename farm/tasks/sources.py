"""Source distributions: fetched with pip once, known by their SHA-256, read without being unpacked to disk."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from farm.tasks.bundle import BundleFile
from farm.tasks.errors import TaskError
from sandboxes.scratch import scratch

FETCH_TIMEOUT_S = 600
MAX_FILES = 50_000
MAX_BYTES = 512 * 1024 * 1024

OnProgress = Callable[[str], None]


def fetch_sdist(
    package: str, version: str, sha256: str | None, *, state_dir: Path, on_progress: OnProgress | None = None
) -> Path:
    """The source distribution of a release, from the cache under ``state_dir/sources`` or from the package index.

    With ``sha256`` pip refuses any other file before a byte of it is run; without, whatever the index gives is
    taken. Raises TaskError.
    """
    cache = state_dir / "sources"
    if sha256 is not None and (cached := _cached(cache / sha256, sha256)):
        return cached
    if on_progress is not None:
        on_progress(f"fetching {package} {version}")
    cache.mkdir(parents=True, exist_ok=True)
    with scratch(cache) as place:
        fetched = _download(package, version, sha256, place)
        home = cache / _digest(fetched)
        staged = place / "staged"
        staged.mkdir()
        fetched.rename(staged / fetched.name)
        with suppress(OSError):  # another process has put the very same bytes there
            staged.rename(home)
        return home / fetched.name


def read_sdist(path: Path) -> Mapping[str, BundleFile]:
    """Every regular file of a source distribution by its path below the single top directory.

    Links and devices are passed over. Raises TaskError for an archive that is none, leaves its own top, or is
    beyond MAX_FILES and MAX_BYTES.
    """
    files: dict[str, BundleFile] = {}
    room = MAX_BYTES
    remedy = "choose another release"
    try:
        for name, content, executable in _members(path):
            parts = PurePosixPath(name).parts
            if name.startswith("/") or ".." in parts:
                raise TaskError(path, f"the archive names {name!r}", remedy)
            room -= len(content)
            if room < 0 or len(files) >= MAX_FILES:
                raise TaskError(path, "the archive is too large to make a task of", remedy)
            if len(parts) > 1:
                files["/".join(parts[1:])] = BundleFile(content, executable)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise TaskError(
            path, f"not a readable source distribution ({error})", "remove it, it is fetched anew"
        ) from None
    return files


def sdist_digest(path: Path) -> str:
    """The SHA-256 that the cache keeps a source distribution under."""
    return path.parent.name


def _members(path: Path) -> Iterator[tuple[str, bytes, bool]]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir() and info.file_size <= MAX_BYTES:
                    yield info.filename, archive.read(info), bool(info.external_attr >> 16 & 0o100)
        return
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() and member.size <= MAX_BYTES else None
            if content is not None:
                yield member.name, content.read(), bool(member.mode & 0o100)


def _cached(home: Path, sha256: str) -> Path | None:
    """The cached file, if it still is what it was."""
    for path in home.glob("*") if home.is_dir() else ():
        if _digest(path) == sha256:
            return path
        shutil.rmtree(home, ignore_errors=True)
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(package: str, version: str, sha256: str | None, scratch: Path) -> Path:
    pin = f"{package}=={version}"
    requirements = scratch / "requirements.txt"
    requirements.write_text(pin + (f" --hash=sha256:{sha256}" if sha256 else "") + "\n")
    target = scratch / "download"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(target), "--requirement", str(requirements)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise TaskError(pin, f"not fetched within {FETCH_TIMEOUT_S} s", "check the way to the package index") from None
    found = sorted(target.iterdir()) if target.is_dir() else []
    if done.returncode or len(found) != 1:
        raise TaskError(
            pin, f"the source distribution was not fetched ({_complaint(done.stderr)})", _remedy(done.stderr)
        )
    os.chmod(found[0], 0o644)
    return found[0]


def _complaint(stderr: str) -> str:
    errors = [line.removeprefix("ERROR: ").strip() for line in stderr.splitlines() if line.startswith("ERROR: ")]
    return errors[0][:300] if errors else "pip gave no reason"


def _remedy(stderr: str) -> str:
    if "HASH" in stderr.upper():
        return "the release is not the one that was pinned; make the task anew"
    return "check the name, the version and the way to the package index"
