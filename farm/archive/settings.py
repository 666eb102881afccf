"""The settings of an archive, as they travel to the processes that use them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from farm.config import Config

RowFormat = Literal["jsonl.zst", "parquet"]


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """``url``: a directory or a URL that fsspec opens. ``turns``: rows have messages, tool results and the change.

    A file ends at ``file_mib`` MiB or at the end of what is due.
    """

    url: str
    format: RowFormat = "jsonl.zst"
    turns: bool = True
    file_mib: int = 128


def archive_settings(config: "Config") -> ArchiveSettings | None:
    """Return the configured archive, or None if there is none."""
    if config.archive is None:
        return None
    return ArchiveSettings(config.archive, config.archive_format, config.archive_turns, config.archive_file_mib)
