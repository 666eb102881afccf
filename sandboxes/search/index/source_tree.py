"""Select the files of a sandbox to index. Everything is hostile: number, size, depth and names of files."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandboxes.interface import FileEntry, FileKind, Sandbox
from sandboxes.search.index.languages import is_source

MOST_FILES = 20_000
MOST_BYTES = 32 * 1024 * 1024
LARGEST_FILE = 512 * 1024
"""Maximum bytes of an indexed file. Larger files are not written by hand."""

_LONGEST_MEAN_LINE = 400
_TEXT_PROBE = 8192

JUNK_DIRECTORIES = (
    ".git",
    ".hg",
    ".svn",
    ".bzr",
    ".idea",
    ".vscode",
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    ".ipynb_checkpoints",
    ".tox",
    ".nox",
    ".venv",
    "venv",
    ".eggs",
    "site-packages",
    "htmlcov",
    "node_modules",
    "bower_components",
    ".next",
    ".gradle",
    ".terraform",
)

_JUNK_NAMES = frozenset({"package-lock.json", "pnpm-lock.yaml", "go.sum", ".DS_Store"})
_JUNK_SUFFIXES = """
pyc pyo pyd so o a obj dll dylib exe bin class jar war whl egg gz bz2 xz zst zip tar tgz 7z rar png jpg jpeg gif bmp ico
svg webp tif tiff pdf psd mp3 mp4 wav ogg flac avi mov mkv ttf otf woff woff2 eot db sqlite sqlite3 pickle pkl npy npz
parquet h5 onnx pt pb wasm map lock po mo pot log csv tsv swp swo
"""
_JUNK = frozenset(_JUNK_SUFFIXES.split())
_MINIFIED = (".min.js", ".min.css", ".bundle.js", "~")


@dataclass(frozen=True, slots=True)
class Tree:
    """The selected files by path below the root. ``left_out`` is the number of files beyond the limits."""

    files: Mapping[str, FileEntry]
    left_out: int


async def read_tree(sandbox: Sandbox, root: str) -> Tree:
    """Walk the tree and select its files. Raises PathError."""
    return await asyncio.to_thread(select_files, await sandbox.walk(root, prune=JUNK_DIRECTORIES))


def select_files(entries: Sequence[FileEntry]) -> Tree:
    """Select files that are likely written by hand; if there are too many, source files before other texts."""
    candidates = [
        entry
        for entry in entries
        if entry.kind is FileKind.FILE
        and 0 < entry.size <= LARGEST_FILE
        and not _is_junk(entry.path.rpartition("/")[2])
    ]
    selected = candidates
    if len(candidates) > MOST_FILES or sum(entry.size for entry in candidates) > MOST_BYTES:
        selected, room = [], MOST_BYTES
        for entry in sorted(candidates, key=lambda entry: (not is_source(entry.path), entry.path)):
            if entry.size <= room and len(selected) < MOST_FILES:
                selected.append(entry)
                room -= entry.size
    return Tree({entry.path: entry for entry in selected}, len(candidates) - len(selected))


def is_text(content: bytes) -> bool:
    """Return whether the content is readable text: neither binary nor minified into a few long lines."""
    if b"\0" in content[:_TEXT_PROBE]:
        return False
    return len(content) <= _LONGEST_MEAN_LINE * (content.count(b"\n") + 4)


def _is_junk(name: str) -> bool:
    return name in _JUNK_NAMES or name.rpartition(".")[2].lower() in _JUNK or name.endswith(_MINIFIED)
