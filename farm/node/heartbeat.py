"""Heartbeats and episode reports on their way to the scheduler."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from farm.scheduler.messages import EpisodeEnded, Event, Heartbeat, NodeLeft

EventSink = Callable[[Sequence[Event]], Awaitable[None]]
"""Send events to the scheduler. Return when all were accepted; any exception means that they were not."""

_log = logging.getLogger(__name__)


class HeartbeatSender:
    """Send reports and heartbeats in order, one message at a time. A report is kept until the scheduler has taken it.

    ``read_heartbeat`` reads the state of the node, with all of its images; they are sent only if they changed.
    ``send_timeout_s`` bounds one message.
    """

    def __init__(
        self,
        send_events: EventSink,
        read_heartbeat: Callable[[], Heartbeat],
        *,
        interval_s: float,
        send_timeout_s: float,
    ) -> None:
        self._send_events = send_events
        self._read_heartbeat = read_heartbeat
        self._interval_s = interval_s
        self._send_timeout_s = send_timeout_s
        self._reports: list[EpisodeEnded] = []
        self._sent_images: frozenset[str] | None = None
        self._woken = asyncio.Event()
        self._sent = asyncio.Condition()

    @property
    def has_reports(self) -> bool:
        """True if the scheduler has not taken all reports yet."""
        return bool(self._reports)

    def add_report(self, report: EpisodeEnded) -> None:
        self._reports.append(report)
        self.wake()

    def wake(self) -> None:
        """Send a heartbeat at once, because the state of the node has changed."""
        self._woken.set()

    async def run(self) -> None:
        """Send at once when woken, else every ``interval_s``."""
        while True:
            self._woken.clear()
            if not await self._send():
                await asyncio.sleep(self._interval_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):  # wait_for may swallow a cancellation
                    await self._woken.wait()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when ``condition`` holds. It is evaluated now and after each message that was accepted."""
        async with self._sent:
            await self._sent.wait_for(condition)

    async def send_last(self, node_id: str, timeout_s: float) -> None:
        """Send the reports that wait, and that the node leaves. Try once: the scheduler may be gone already."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._send_events([*self._reports, NodeLeft(node_id)])
        except Exception as error:  # the scheduler will miss the heartbeats otherwise
            _log.info("the scheduler was not informed that the node leaves: %s", error)

    async def _send(self) -> bool:
        reports = list(self._reports)
        heartbeat = self._read_heartbeat()
        images = heartbeat.images
        if images == self._sent_images:
            heartbeat = replace(heartbeat, images=None)
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await self._send_events([*reports, heartbeat])
        except Exception as error:  # any exception of the transport means that the events were not accepted
            _log.warning("the scheduler does not answer (%s); %d reports wait", error, len(reports))
            self._sent_images = None
            return False
        del self._reports[: len(reports)]
        self._sent_images = images
        async with self._sent:
            self._sent.notify_all()
        return True
