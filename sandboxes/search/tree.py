"""The files of a sandbox that are worth searching. All of it is hostile: how many, how large, how deep, what names."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandboxes.sandbox import FileEntry, FileKind, Sandbox

MOST_FILES = 20_000
MOST_BYTES = 64 * 1024 * 1024
LARGEST_FILE = 512 * 1024
"""What is larger was not written by hand."""

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

_SOURCE_SUFFIXES = """
py pyi pyx js jsx mjs cjs ts tsx go rs java c h cc cpp cxx hh hpp cs rb php swift kt kts scala lua pl pm r jl ex exs erl
hs ml mli clj dart zig nim sh bash zsh ps1 sql vue svelte proto graphql tf cmake m mm f90 asm s
"""
_SOURCES = frozenset(_SOURCE_SUFFIXES.split())

_JUNK = re.compile(
    r".*\.(?:py[cod]|so|o|a|obj|dll|dylib|exe|bin|class|jar|war|whl|egg|gz|bz2|xz|zst|zip|tar|tgz|7z|rar|png|jpe?g|gif"
    r"|bmp|ico|svg|webp|tiff?|pdf|psd|mp[34]|wav|ogg|flac|avi|mov|mkv|ttf|otf|woff2?|eot|db|sqlite3?|pickle|pkl|np[yz]"
    r"|parquet|h5|onnx|pt|pb|wasm|map|lock|po|mo|pot|log|csv|tsv|min\.js|min\.css|bundle\.js)"
    r"|package-lock\.json|pnpm-lock\.yaml|go\.sum|\..*\.sw[a-p]|.*~|\.DS_Store|\.coverage.*",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Tree:
    """By path below the root. ``left_out``: so many more there are than a search takes."""

    files: Mapping[str, FileEntry]
    left_out: int


async def look_at(sandbox: Sandbox, root: str) -> Tree:
    """Raises PathError."""
    return chosen(await sandbox.walk(root, prune=JUNK_DIRECTORIES))


def chosen(entries: Sequence[FileEntry]) -> Tree:
    """What was written by hand, sources before other texts where not all can be taken."""
    worthy = [
        entry
        for entry in entries
        if entry.kind is FileKind.FILE
        and 0 < entry.size <= LARGEST_FILE
        and not _JUNK.fullmatch(entry.path.rpartition("/")[2])
    ]
    taken = worthy
    if len(worthy) > MOST_FILES or sum(entry.size for entry in worthy) > MOST_BYTES:
        taken, room = [], MOST_BYTES
        for entry in sorted(worthy, key=lambda entry: (not _is_source(entry.path), entry.path)):
            if entry.size <= room and len(taken) < MOST_FILES:
                taken.append(entry)
                room -= entry.size
    return Tree({entry.path: entry for entry in taken}, len(worthy) - len(taken))


def is_text(content: bytes) -> bool:
    """And such that somebody reads it: neither binary nor squeezed into a few long lines."""
    if b"\0" in content[:_TEXT_PROBE]:
        return False
    return len(content) <= _LONGEST_MEAN_LINE * (content.count(b"\n") + 4)


def _is_source(path: str) -> bool:
    return path.rpartition(".")[2].lower() in _SOURCES
