"""What a sandbox asked of its proxy and what became of it, for the log and for audits of a policy's behaviour."""

import logging
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum

RECORDS_MAX = 1000
"""As many of one sandbox are kept and logged; a flood of requests is counted and fills neither memory nor disk."""

_log = logging.getLogger(__name__)


class EgressDecision(StrEnum):
    ALLOWED = "allowed"
    REFUSED = "refused"
    """Not on the list, or no request that a proxy can understand."""
    FAILED = "failed"
    """On the list, and not to be reached."""


@dataclass(frozen=True, slots=True)
class EgressRecord:
    """``at`` is Unix time in seconds, of the connection's beginning. ``host`` and ``port`` as asked, empty and 0 where
    that could not be read. Bytes as seen from inside.

    ``reason`` says why it was refused or failed, or how an allowed exchange ended otherwise than by itself.
    """

    at: float
    sandbox_id: str
    host: str
    port: int
    verdict: EgressDecision
    reason: str
    bytes_out: int
    bytes_in: int
    duration_s: float


class EgressLog:
    """Of one sandbox, from its boot on; grows while it lives."""

    def __init__(self) -> None:
        self._records: list[EgressRecord] = []
        self._counts: Counter[EgressDecision] = Counter()

    @property
    def records(self) -> tuple[EgressRecord, ...]:
        """The first RECORDS_MAX, in the order in which they ended."""
        return tuple(self._records)

    def count(self, verdict: EgressDecision) -> int:
        return self._counts[verdict]

    def add(self, record: EgressRecord) -> None:
        self._counts[record.verdict] += 1
        if len(self._records) == RECORDS_MAX:
            return
        self._records.append(record)
        _log.info(
            "sandbox %s to %s:%d: %s%s, %d bytes out, %d in, %.3f s",
            record.sandbox_id,
            record.host or "?",
            record.port,
            record.verdict,
            f" ({record.reason})" if record.reason else "",
            record.bytes_out,
            record.bytes_in,
            record.duration_s,
            extra={"egress": asdict(record)},
        )
        if len(self._records) == RECORDS_MAX:
            _log.warning("sandbox %s: its further requests are counted, and not logged", record.sandbox_id)
