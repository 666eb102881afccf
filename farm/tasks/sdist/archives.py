"""Read archives of source code in memory, with a limit for every size.

Archives are untrusted: a few bytes can stand for any number of bytes, members or headers.
"""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self, cast

MAX_FILES = 50_000
MAX_MEMBERS = 2 * MAX_FILES
MAX_BYTES = 512 * 1024 * 1024
MAX_UNPACKED_BYTES = MAX_BYTES + 1024 * MAX_MEMBERS
MAX_HEADER_BYTES = 64 * 1024
MAX_DIRECTORY_BYTES = 16 * 1024 * 1024
"""Limit for a zip file's central directory, which is held in memory."""

_UNPACKERS: dict[bytes, Callable[[Path], io.BufferedIOBase]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_LONG_HEADERS = frozenset(
    {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)
_END_RECORD = struct.Struct("<4s4H2LH")
_LOCATOR_BYTES = 20


class ArchiveError(ValueError):
    """An archive cannot be read, or is larger than a limit; the message names the limit."""


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file of an archive."""

    name: str
    content: bytes
    executable: bool


def read_archive(path: Path) -> Iterator[Member]:
    """Yield the regular files of a zip file or a compressed tar file, without links and devices.

    Raises ArchiveError. For a file over a limit it does so before more than the limit is unpacked.
    """
    entries = _zip_members(path) if path.suffix == ".zip" else _tar_members(path)
    files, remaining = 0, MAX_BYTES
    try:
        for entry in entries:
            files, remaining = files + 1, remaining - entry.size
            if files > MAX_FILES:
                raise ArchiveError(f"holds more than {MAX_FILES} files")
            if remaining < 0:
                raise ArchiveError(f"holds more than {MAX_BYTES >> 20} MiB")
            yield Member(entry.name, entry.read(), entry.executable)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise ArchiveError(f"cannot be read: {error}") from None
    except (NotImplementedError, RuntimeError, UnicodeError, struct.error) as error:  # raised by zipfile
        raise ArchiveError(f"cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class _Entry:
    """A member before it is read. ``size`` is in bytes."""

    name: str
    size: int
    executable: bool
    read: Callable[[], bytes]


def _zip_members(path: Path) -> Iterator[_Entry]:
    _refuse_large_directory(path)
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.is_dir():

                def read(info: zipfile.ZipInfo = info) -> bytes:
                    return archive.read(info)

                yield _Entry(info.filename, info.file_size, bool(info.external_attr >> 16 & 0o100), read)


def _refuse_large_directory(path: Path) -> None:
    """Raise ArchiveError for a large central directory, which ``zipfile`` would read at once."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - _LOCATOR_BYTES - _END_RECORD.size - 0xFFFF))
        tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) < at + _END_RECORD.size:
        raise ArchiveError("cannot be read: not a zip file")
    directory_bytes = _END_RECORD.unpack_from(tail, at)[5]
    if directory_bytes > MAX_DIRECTORY_BYTES or b"PK\6\7" in tail[:at][-_LOCATOR_BYTES:]:
        raise ArchiveError(f"has a directory of more than {MAX_DIRECTORY_BYTES >> 20} MiB")


def _tar_members(path: Path) -> Iterator[_Entry]:
    with path.open("rb") as file:
        start = file.read(8)
    unpacker = next((unpack for magic, unpack in _UNPACKERS.items() if start.startswith(magic)), None)
    if unpacker is None:
        raise ArchiveError("cannot be read: neither a zip file nor a tar file by gzip, bzip2 or xz")
    with ExitStack() as stack:
        unpacked = stack.enter_context(unpacker(path))
        bounded = cast(IO[bytes], _Bounded(unpacked))
        archive = stack.enter_context(tarfile.open(fileobj=bounded, mode="r|", tarinfo=_ShortHeader))
        for number, member in enumerate(archive):
            if number >= MAX_MEMBERS:
                raise ArchiveError(f"holds more than {MAX_MEMBERS} members")
            if member.isreg():

                def read(member: tarfile.TarInfo = member) -> bytes:
                    content = archive.extractfile(member)
                    return b"" if content is None else content.read()

                yield _Entry(member.name, member.size, bool(member.mode & 0o100), read)


class _Bounded(io.RawIOBase):
    """A reader of a decompressed stream that raises ArchiveError after MAX_UNPACKED_BYTES."""

    def __init__(self, unpacked: io.BufferedIOBase) -> None:
        self._unpacked = unpacked
        self._remaining = MAX_UNPACKED_BYTES

    def read(self, size: int = -1) -> bytes:
        content = self._unpacked.read(min(size if size >= 0 else self._remaining + 1, self._remaining + 1))
        self._remaining -= len(content)
        if self._remaining < 0:
            raise ArchiveError(f"unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB")
        return content


class _ShortHeader(tarfile.TarInfo):
    """A tar header whose long name and extended fields are bounded, because ``tarfile`` holds them in memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _LONG_HEADERS and header.size > MAX_HEADER_BYTES:
            raise ArchiveError(f"has a header of more than {MAX_HEADER_BYTES >> 10} KiB")
        return header
