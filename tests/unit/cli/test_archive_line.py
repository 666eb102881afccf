"""The line of ``farm status`` on the archive."""

from farm.cli.observation.archive import archive_line
from farm.schemas.responses import ArchiveAnswer


def test_line_counts_what_was_archived() -> None:
    line = archive_line(ArchiveAnswer(url="/kept", files=2, rollouts=9, bytes=3 << 20, unreadable=1, done_at=1.0))
    assert line.startswith("archive /kept: 9 rollouts in 2 files (3.0 MiB) since the scheduler started, and 1 record")
    assert "; last at 19" in line


def test_line_of_an_outage_says_why() -> None:
    line = archive_line(ArchiveAnswer(url="/kept", rollouts=9, outage="the archive /kept: No space left on device"))
    assert line.startswith("archive /kept: OUT, nothing is deleted")
    assert line.endswith("No space left on device")
