"""The program that searches a sandbox for the solution: ``inside.py JOB RESULT``.

It needs only the standard library, from Python 3.8 on, and the host only reads it. JOB is JSON: ``passages`` (base64 of
bytes that must not occur), ``names`` (of functions and classes that the solution adds), ``modules`` (path, and base64
of the source as solved and as it is), ``prune`` (directories to skip), ``most`` (maximum findings). RESULT: a line
``{"path", "what"}`` per finding, then ``{"looked_at": files}``.
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

MAX_DEPTH = 4
MAX_FILE_BYTES = 512 * 1024 * 1024
MIN_CODE_BYTES = 80
"""Smaller functions, and methods that Python calls by name, are alike in many modules."""


class Scan:
    """A search of files for parts of the solution."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._passages = [base64.b64decode(text) for text in job["passages"]]
        self._names = [f"{kind} {name}".encode() for name in job["names"] for kind in ("def", "class")]
        self._prune = frozenset(job["prune"])
        self._distinctive: set[str] = set()
        self._modules: list[tuple[tuple[str, ...], set[str]]] = []
        hints: set[str] = set()
        for path, solved, present in job["modules"]:
            present_marks = {mark for mark, _ in marks_of(base64.b64decode(present))}
            solved_only = {mark: code for mark, code in marks_of(base64.b64decode(solved)) if mark not in present_marks}
            distinctive = {mark: code.co_name for mark, code in solved_only.items() if is_distinctive(code)}
            self._distinctive.update(distinctive)
            self._modules.append((module(path), set(solved_only)))
            hints.update(distinctive.values(), module(path)[-1:])
        self._hints = [hint.encode() for hint in hints]
        self.looked_at = 0

    def files(self, root: str) -> Iterator[tuple[str, str]]:
        """Yield the path and the description of each finding below ``root``."""
        for directory, directories, names in os.walk(root):
            directories[:] = sorted(name for name in directories if os.path.join(directory, name) not in self._prune)
            for name in sorted(names):
                path = os.path.join(directory, name)
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                self.looked_at += 1
                with contextlib.suppress(OSError):
                    if os.path.getsize(path) <= MAX_FILE_BYTES:
                        content = Path(path).read_bytes()
                        for description in self.scan(content, 0):
                            yield path, description
                        if name.endswith(".pack"):
                            for description in self.scan_git_pack(path):
                                yield path, description

    def scan(self, content: bytes, depth: int) -> Iterator[str]:
        """Yield the findings in a file's content, and in what it unpacks to."""
        for passage in self._passages:
            if passage in content:
                longest = max(passage.decode(errors="replace").splitlines(), key=len)
                yield f"lines that were taken out: {longest.strip()[:120]}"
        for name in self._names:
            at = content.find(name)
            if at >= 0 and content[at + len(name) : at + len(name) + 1] in (b"(", b":", b" "):
                yield f"a name that was taken out: {name.decode()}"
        code = code_in(content) if any(hint in content for hint in self._hints) else None
        if code is not None:
            solved_marks = self._distinctive.union(
                *(marks_of_module for path, marks_of_module in self._modules if same_module(path, code.co_filename))
            )
            for mark, part in code_marks(code):
                if mark in solved_marks:
                    yield f"bytecode of {getattr(part, 'co_qualname', part.co_name)} as it is when solved"
        if depth < MAX_DEPTH:
            with contextlib.suppress(Exception):  # not an archive after all, or a broken one
                for inner in unpacked(content):
                    yield from self.scan(inner, depth + 1)

    def scan_git_pack(self, path: str) -> Iterator[str]:
        """Scan the objects of a git pack, which are compressed against each other."""
        repository = os.path.dirname(os.path.dirname(os.path.dirname(path)))
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["git", "-C", repository, "-c", f"safe.directory={repository}", "cat-file"]
            result = subprocess.run(
                [*command, "--batch", "--batch-all-objects"], capture_output=True, timeout=120, check=False
            )
            yield from self.scan(result.stdout, MAX_DEPTH)


def unpacked(content: bytes) -> Iterator[bytes]:
    """Yield the contents of an archive, a compressed file, an editor's swap file or a patch."""
    if content[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                if info.file_size <= MAX_FILE_BYTES:
                    yield archive.read(info)
    elif content[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(content)) as archive_:
            for member in archive_:
                file = archive_.extractfile(member) if member.isreg() else None
                if file is not None:
                    yield file.read(MAX_FILE_BYTES)
    elif content[:2] == b"\x1f\x8b":
        yield zlib.decompressobj(31).decompress(content, MAX_FILE_BYTES)
    elif content[:3] == b"BZh":
        yield bz2.BZ2Decompressor().decompress(content, MAX_FILE_BYTES)
    elif content[:6] == b"\xfd7zXZ\x00":
        yield lzma.LZMADecompressor().decompress(content, MAX_FILE_BYTES)
    elif content[:1] == b"\x78":
        yield zlib.decompressobj().decompress(content, MAX_FILE_BYTES)
    elif content[:5] == b"b0VIM":  # a swap file: the lines of a block are in reverse order
        yield b"\n".join(reversed(content.split(b"\0")))
    elif b"\n@@ -" in content:  # a patch: both its sides
        lines = content.split(b"\n")
        for side in (b"+", b"-"):
            yield b"\n".join(line[1:] for line in lines if line[:1] in (side, b" "))


def code_in(content: bytes) -> types.CodeType | None:
    """Return the code of a .pyc file of this Python version, or None."""
    if len(content) >= 20 and content[2:4] == b"\r\n":
        with contextlib.suppress(Exception):  # bytes that only look like a .pyc
            code = marshal.loads(content[16:])
            return code if isinstance(code, types.CodeType) else None
    return None


def module(path: str) -> tuple[str, ...]:
    """Return the path of a module among installed packages, for a file in the workspace."""
    parts = PurePosixPath(path).parts
    return parts[1:] if parts[0] in ("src", "lib") and len(parts) > 1 else parts


def same_module(module_parts: tuple[str, ...], filename: str) -> bool:
    """Return whether a file name in bytecode may be that of the module: in place, installed, or built."""
    parts = PurePosixPath(filename).parts
    if parts[-len(module_parts) :] != module_parts[-len(parts) :]:
        return False
    return len(module_parts) > 1 or not Path(filename).with_name("__init__.py").exists()


def marks_of(source: bytes) -> Iterator[tuple[str, types.CodeType]]:
    """Yield the marks of a source file."""
    with contextlib.suppress(SyntaxError, ValueError):
        yield from code_marks(compile(source, "", "exec", dont_inherit=True))


def code_marks(code: types.CodeType) -> Iterator[tuple[str, types.CodeType]]:
    """Yield a hash for each function, class and module of the code, which does not depend on its position."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_marks(constant)
    plain = repr([item for item in code.co_consts if not isinstance(item, types.CodeType)])
    identity = repr((code.co_name, code.co_names, plain)).encode() + code.co_code
    yield hashlib.sha256(identity).hexdigest(), code


def is_distinctive(code: types.CodeType) -> bool:
    """Return whether another module is unlikely to have the same code by chance."""
    return len(code.co_code) >= MIN_CODE_BYTES and not code.co_name.startswith(("<", "__"))


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_bytes())
    scan = Scan(job)
    findings = 0
    with open(result_path, "w") as result:
        for path, description in scan.files(job.get("root", "/")):
            result.write(json.dumps({"path": path, "what": description}) + "\n")
            findings += 1
            if findings >= job["most"]:
                break
        result.write(json.dumps({"looked_at": scan.looked_at}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
