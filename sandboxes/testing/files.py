"""The file system of a fake sandbox: a dictionary from absolute path to node, with the kernel's errors."""

import errno
import hashlib
import os
import posixpath
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sandboxes.errors import PathError
from sandboxes.interface import WALK_DIRECTORIES_MAX, WALK_FILES_MAX, FileEntry, FileKind

MOST_LINKS = 40
IMAGE_MADE_NS = 1_600_000_000 * 10**9
"""mtime of an image's files, the same in each of its sandboxes."""


@dataclass(slots=True)
class FakeNode:
    """A file, directory, symlink or FIFO.

    ``content`` is a file's bytes or a symlink's target; empty for other kinds.
    """

    kind: FileKind
    content: bytes = b""
    mode: int = 0o644
    mtime_ns: int = field(default_factory=time.time_ns)


def refuse(code: int, path: str) -> PathError:
    return PathError(code, path, os.strerror(code))


class FakeFiles:
    """A tree of files. Paths are absolute; a name in ``files`` that ends in / is a directory.

    Methods raise PathError as the kernel would.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._nodes: dict[str, FakeNode] = {"/": FakeNode(FileKind.DIRECTORY, mode=0o755)}
        self.make_directory("/tmp")
        for path, content in files.items():
            if path.endswith("/"):
                self.make_directory(path)
            else:
                self.write(path, content, executable=content.startswith(b"#!"), parents=True)
        for node in self._nodes.values():
            node.mtime_ns = IMAGE_MADE_NS

    def copy(self) -> "FakeFiles":
        made = FakeFiles({})
        made._nodes = {path: replace(node) for path, node in self._nodes.items()}
        return made

    def resolve(self, path: str, *, follow_last: bool = True) -> str:
        """Follow every symlink in the path; its last part need not exist."""
        done, left, links = "/", [part for part in path.split("/") if part not in ("", ".")], 0
        while left:
            part = left.pop(0)
            if part == "..":
                done = posixpath.dirname(done)
                continue
            here = self._nodes.get(done)
            if here is None:
                raise refuse(errno.ENOENT, path)
            if here.kind is not FileKind.DIRECTORY:
                raise refuse(errno.ENOTDIR, path)
            done = posixpath.join(done, part)
            node = self._nodes.get(done)
            if node and node.kind is FileKind.SYMLINK and (left or follow_last):
                links += 1
                if links > MOST_LINKS:
                    raise refuse(errno.ELOOP, path)
                target = node.content.decode("utf-8", "surrogateescape")
                left = [part for part in target.split("/") if part not in ("", ".")] + left
                done = "/" if target.startswith("/") else posixpath.dirname(done)
        return done

    def node(self, path: str, *, follow_last: bool = True) -> FakeNode:
        found = self._nodes.get(self.resolve(path, follow_last=follow_last))
        if found is None:
            raise refuse(errno.ENOENT, path)
        return found

    def need_directory(self, path: str) -> None:
        if self.node(path).kind is not FileKind.DIRECTORY:
            raise refuse(errno.ENOTDIR, path)

    def read(self, path: str) -> bytes:
        node = self.node(path)
        if node.kind is FileKind.DIRECTORY:
            raise refuse(errno.EISDIR, path)
        if node.kind is not FileKind.FILE:
            raise refuse(errno.EINVAL, path)
        return node.content

    def write(
        self, path: str, content: bytes, *, executable: bool | None = None, parents: bool = False, new: bool = False
    ) -> bool:
        if parents:
            self.make_directory(posixpath.dirname(path))
        where = self.resolve(path)
        self._need_directory(posixpath.dirname(where), path)
        old = self._nodes.get(where)
        if old and old.kind is not FileKind.FILE:
            raise refuse(errno.EISDIR if old.kind is FileKind.DIRECTORY else errno.EINVAL, path)
        if new and self.resolve(path, follow_last=False) in self._nodes:
            raise refuse(errno.EEXIST, path)
        mode = old.mode if old else 0o644
        if executable is not None:
            mode = mode | 0o111 if executable else mode & ~0o111
        self._nodes[where] = FakeNode(FileKind.FILE, content, mode)
        return old is not None

    def put(self, path: str, node: FakeNode) -> None:
        """Create a symlink or a FIFO, replacing an existing file. No parent may be a symlink."""
        parent = posixpath.dirname(path)
        if self.resolve(parent) != posixpath.normpath(parent):
            raise refuse(errno.ELOOP, path)
        old = self._nodes.get(path)
        if old and old.kind is FileKind.DIRECTORY:
            raise refuse(errno.EISDIR, path)
        self._need_directory(parent, path)
        self._nodes[path] = node

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents; an existing one is no error."""
        done = "/"
        for part in path.strip("/").split("/"):
            done = posixpath.join(done, part)
            where = self.resolve(done)
            node = self._nodes.setdefault(where, FakeNode(FileKind.DIRECTORY, mode=0o755))
            if node.kind is not FileKind.DIRECTORY:
                raise refuse(errno.ENOTDIR, path)

    def remove(self, path: str) -> None:
        try:
            where = self.resolve(path, follow_last=False)
        except PathError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        for inner in [other for other in self._nodes if other == where or other.startswith(where + "/")]:
            del self._nodes[inner]

    def stat(self, path: str) -> FileEntry:
        return _entry(path, self.node(path, follow_last=False))

    def walk(self, root: str, prune: Sequence[str]) -> Iterator[FileEntry]:
        where = self.resolve(root)
        if self.node(root).kind is not FileKind.DIRECTORY:
            raise refuse(errno.ENOTDIR, root)
        directories = files = 0
        for path, node in sorted(self._nodes.items()):
            inner = posixpath.relpath(path, where)
            if inner in ("..", ".") or inner.startswith("../"):
                continue
            *parents, name = inner.split("/")
            if node.kind is FileKind.DIRECTORY:
                directories += not set(prune) & {*parents, name}
                if directories > WALK_DIRECTORIES_MAX:
                    raise refuse(errno.E2BIG, root)
            elif not set(prune) & set(parents):
                files += 1
                if files > WALK_FILES_MAX:
                    raise refuse(errno.E2BIG, root)
                yield _entry(inner, node)

    def _need_directory(self, where: str, path: str) -> None:
        parent = self._nodes.get(where)
        if parent is None:
            raise refuse(errno.ENOENT, path)
        if parent.kind is not FileKind.DIRECTORY:
            raise refuse(errno.ENOTDIR, path)


def _entry(path: str, node: FakeNode) -> FileEntry:
    return FileEntry(path, node.kind, node.mode, len(node.content), node.mtime_ns)


def digest_of_files(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return f"sha256:{digest.hexdigest()}"
