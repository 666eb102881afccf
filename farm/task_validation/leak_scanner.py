"""The program that runs in a sandbox: ``inside.py JOB RESULT``, with the standard library alone, from Python 3.8 on.
The host only reads it.

JOB is JSON: ``passages`` (base64 of bytes that must stand nowhere), ``names`` (of functions and classes that are gone),
``modules`` (of each a path, and base64 of its source as solved and as it is), ``prune`` (directories not to look into),
``most`` (findings after which to stop). RESULT: ``{"path", "what"}`` a line, then ``{"looked_at": files}``.
"""

from __future__ import annotations

import base64
import bz2
import contextlib
import hashlib
import io
import json
import lzma
import marshal
import os
import subprocess
import sys
import tarfile
import types
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

DEEPEST = 4
LARGEST = 512 * 1024 * 1024
LEAST_CODE = 80
"""Bytes. Functions with less bytecode, and those that Python itself calls by name, are alike in many a module."""


class Scan:
    def __init__(self, job: dict[str, Any]) -> None:
        self._passages = [base64.b64decode(text) for text in job["passages"]]
        self._names = [f"{kind} {name}".encode() for name in job["names"] for kind in ("def", "class")]
        self._prune = frozenset(job["prune"])
        self._telling: set[str] = set()
        self._modules: list[tuple[tuple[str, ...], set[str]]] = []
        hints: set[str] = set()
        for path, solved, present in job["modules"]:
            there = {mark for mark, _ in marks_of(base64.b64decode(present))}
            gone = {mark: code for mark, code in marks_of(base64.b64decode(solved)) if mark not in there}
            telling = {mark: code.co_name for mark, code in gone.items() if is_telling(code)}
            self._telling.update(telling)
            self._modules.append((module(path), set(gone)))
            hints.update(telling.values(), module(path)[-1:])
        self._hints = [hint.encode() for hint in hints]
        self.looked_at = 0

    def files(self, root: str) -> Iterator[tuple[str, str]]:
        for place, directories, names in os.walk(root):
            directories[:] = sorted(name for name in directories if os.path.join(place, name) not in self._prune)
            for name in sorted(names):
                path = os.path.join(place, name)
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                self.looked_at += 1
                with contextlib.suppress(OSError):
                    if os.path.getsize(path) <= LARGEST:
                        content = Path(path).read_bytes()
                        for what in self.look(content, 0):
                            yield path, what
                        if name.endswith(".pack"):
                            for what in self.pack(path):
                                yield path, what

    def look(self, content: bytes, depth: int) -> Iterator[str]:
        for passage in self._passages:
            if passage in content:
                telling = max(passage.decode(errors="replace").splitlines(), key=len)
                yield f"lines that were taken out: {telling.strip()[:120]}"
        for name in self._names:
            at = content.find(name)
            if at >= 0 and content[at + len(name) : at + len(name) + 1] in (b"(", b":", b" "):
                yield f"a name that was taken out: {name.decode()}"
        code = code_in(content) if any(hint in content for hint in self._hints) else None
        if code is not None:
            known = self._telling.union(*(gone for path, gone in self._modules if same_module(path, code.co_filename)))
            for mark, part in marks(code):
                if mark in known:
                    yield f"bytecode of {getattr(part, 'co_qualname', part.co_name)} as it is when solved"
        if depth < DEEPEST:
            with contextlib.suppress(Exception):  # what is no archive after all, or a broken one
                for inner in unpacked(content):
                    yield from self.look(inner, depth + 1)

    def pack(self, path: str) -> Iterator[str]:
        """The objects of a git pack, which are compressed against each other."""
        repository = os.path.dirname(os.path.dirname(os.path.dirname(path)))
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["git", "-C", repository, "-c", f"safe.directory={repository}", "cat-file"]
            done = subprocess.run(
                [*command, "--batch", "--batch-all-objects"], capture_output=True, timeout=120, check=False
            )
            yield from self.look(done.stdout, DEEPEST)


def unpacked(content: bytes) -> Iterator[bytes]:
    """What an archive, a compressed file, an editor's or a patch holds."""
    if content[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                if info.file_size <= LARGEST:
                    yield archive.read(info)
    elif content[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(content)) as archive_:
            for member in archive_:
                file = archive_.extractfile(member) if member.isreg() else None
                if file is not None:
                    yield file.read(LARGEST)
    elif content[:2] == b"\x1f\x8b":
        yield zlib.decompressobj(31).decompress(content, LARGEST)
    elif content[:3] == b"BZh":
        yield bz2.BZ2Decompressor().decompress(content, LARGEST)
    elif content[:6] == b"\xfd7zXZ\x00":
        yield lzma.LZMADecompressor().decompress(content, LARGEST)
    elif content[:1] == b"\x78":
        yield zlib.decompressobj().decompress(content, LARGEST)
    elif content[:5] == b"b0VIM":  # a swap file: its lines, from the last one of a block to the first
        yield b"\n".join(reversed(content.split(b"\0")))
    elif b"\n@@ -" in content:  # a patch: what it makes, and what it is made of
        lines = content.split(b"\n")
        for side in (b"+", b"-"):
            yield b"\n".join(line[1:] for line in lines if line[:1] in (side, b" "))


def code_in(content: bytes) -> types.CodeType | None:
    """That of a .pyc of this Python."""
    if len(content) >= 20 and content[2:4] == b"\r\n":
        with contextlib.suppress(Exception):  # bytes that only look like one
            code = marshal.loads(content[16:])
            return code if isinstance(code, types.CodeType) else None
    return None


def module(path: str) -> tuple[str, ...]:
    """A file in the workspace as it is named among the packages."""
    parts = PurePosixPath(path).parts
    return parts[1:] if parts[0] in ("src", "lib") and len(parts) > 1 else parts


def same_module(wanted: tuple[str, ...], place: str) -> bool:
    """Whether what was compiled from ``place`` is the module: there, installed, or built."""
    found = PurePosixPath(place).parts
    if found[-len(wanted) :] != wanted[-len(found) :]:
        return False
    return len(wanted) > 1 or not Path(place).with_name("__init__.py").exists()


def marks_of(source: bytes) -> Iterator[tuple[str, types.CodeType]]:
    with contextlib.suppress(SyntaxError, ValueError):
        yield from marks(compile(source, "", "exec", dont_inherit=True))


def marks(code: types.CodeType) -> Iterator[tuple[str, types.CodeType]]:
    """What tells each function, class and module in it from others, wherever it stands."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from marks(constant)
    plain = repr([item for item in code.co_consts if not isinstance(item, types.CodeType)])
    told = repr((code.co_name, code.co_names, plain)).encode() + code.co_code
    yield hashlib.sha256(told).hexdigest(), code


def is_telling(code: types.CodeType) -> bool:
    """Whether no other module is likely to have the same by chance."""
    return len(code.co_code) >= LEAST_CODE and not code.co_name.startswith(("<", "__"))


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_bytes())
    scan = Scan(job)
    found = 0
    with open(result_path, "w") as result:
        for path, what in scan.files(job.get("root", "/")):
            result.write(json.dumps({"path": path, "what": what}) + "\n")
            found += 1
            if found >= job["most"]:
                break
        result.write(json.dumps({"looked_at": scan.looked_at}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
