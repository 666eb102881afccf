"""The line of ``farm status`` on the archive."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.schemas.responses import ArchiveAnswer

_MIB = 1 << 20


def archive_line(archive: "ArchiveAnswer") -> str:
    """Return what the archive got since the scheduler started, or why it gets nothing now."""
    if archive.outage:
        return f"archive {archive.url}: OUT, nothing is deleted from Redis meanwhile: {archive.outage}"
    line = f"archive {archive.url}: {archive.rollouts} rollouts in {archive.files} files"
    line += f" ({archive.bytes / _MIB:.1f} MiB) since the scheduler started"
    if archive.unreadable:
        line += f", and {archive.unreadable} records that cannot be read, in its folder unreadable"
    if archive.done_at is not None:
        line += f"; last at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(archive.done_at))}"
    return line
