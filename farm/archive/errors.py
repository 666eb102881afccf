"""Errors of the archive.

ArchiveError
├── ArchiveUnavailable   the archive cannot be read or written now; the message names it, the cause and the remedy
└── CorruptFile          one file of the archive cannot be read; the others can
"""


class ArchiveError(Exception):
    """The root of the errors of the archive."""


class ArchiveUnavailable(ArchiveError):
    pass


class CorruptFile(ArchiveError):
    pass
