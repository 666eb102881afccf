"""A node that drains: what ``farm up`` records of its work, and what ``farm down`` shows of it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from farm.cli.errors import Interrupted
from farm.cli.options import progress_console
from farm.cluster import DrainState, FarmInfo, record_drain_state, stop_farm

if TYPE_CHECKING:
    from farm.cluster.launch import RunningFarm

_LOOK_S = 1.0
_REPEAT_S = 10.0
_QUIET_S = 10.0
"""A farm that stops in this time prints no line about it."""

_AT_ONCE = "`farm down --now` ends them at once"
_log = logging.getLogger(__name__)


class WaitProgress:
    """Show what a command waits for: as one line that changes on a terminal, else as a line for each change.

    A line that has not changed is printed again every ten seconds, because it also counts time.
    """

    def __init__(self) -> None:
        self._status = progress_console.status("") if progress_console.is_terminal else None
        self._shown: object = None
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def hint(self, line: str) -> None:
        """Show a line on a terminal only."""
        if self._status is not None:
            self._status.update(line)

    def show(self, line: str, change: object) -> None:
        """Show a line. ``change`` is what a new line is printed for."""
        if self._status is not None:
            self._status.update(line)
        elif change != self._shown or time.monotonic() - self._shown_at >= _REPEAT_S:
            self._shown, self._shown_at = change, time.monotonic()
            progress_console.print(line)


def work_text(state: DrainState) -> str:
    """Return the work that a draining node waits for, in words."""
    if state.episodes is None or state.sandboxes is None:
        return "its episodes"
    kinds = ((state.episodes, "episode"), (state.sandboxes, "learner sandbox"))
    plural = {"episode": "episodes", "learner sandbox": "learner sandboxes"}
    parts = [f"{number} {kind if number == 1 else plural[kind]}" for number, kind in kinds if number]
    return " and ".join(parts) or "the report of its last episode"


def stop_and_show(info: FarmInfo, *, at_once: bool) -> None:
    """Stop the farm or node of this machine, and show what it waits for. Raises ClusterError, Interrupted."""
    began = time.monotonic()
    drained = False
    with WaitProgress() as progress:

        def show(state: DrainState | None) -> None:
            nonlocal drained
            if state is not None:
                drained = True
                left_s = max(0.0, state.until - time.time())
                text = f"draining: waits for {work_text(state)}, for at most {left_s:.0f} s more; {_AT_ONCE}"
                progress.show(text, (state.episodes, state.sandboxes))
                return
            waited_s = time.monotonic() - began
            what = "stopping the node" if info.role == "node" else "stopping the farm"
            if waited_s < _QUIET_S:
                progress.hint(what)
                return
            remedy = f"`kill -9 {info.pid}` ends it at once, and the next `farm up` removes what it leaves"
            progress.show(f"{what}: {waited_s:.0f} s so far; {remedy}", what)

        try:
            stop_farm(info, at_once=at_once, on_wait=show)
        except KeyboardInterrupt:
            goes_on = f"the node goes on draining its episodes; {_AT_ONCE}" if drained else "the farm goes on stopping"
            raise Interrupted(f"interrupted: {goes_on}") from None


async def drain(running: "RunningFarm", at_once: asyncio.Event, say: Callable[[str], None]) -> None:
    """Take no more episodes, and wait for running ones: for the grace period, or until ``at_once`` or a failure.

    The work that is left is recorded for ``farm down`` and told to ``say``.
    """
    grace_s = running.info.drain_grace_s
    say(f"draining: episodes have {grace_s:g} s to end; a second signal ends them at once")
    ends = [asyncio.ensure_future(one) for one in (running.agent.drain(), at_once.wait(), running.failure())]
    recording = asyncio.create_task(_record_work(running, time.time() + grace_s, say))
    try:
        await asyncio.wait(ends, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in (*ends, recording):
            one.cancel()
        await asyncio.gather(*ends, recording, return_exceptions=True)
        record_drain_state(running.info.state_dir, None)


async def _record_work(running: "RunningFarm", until: float, say: Callable[[str], None]) -> None:
    """Record the work that is left, again and again. An error of the agent or of the disk must not end the drain."""
    told = state = DrainState(until)
    while True:
        with contextlib.suppress(OSError):
            record_drain_state(running.info.state_dir, state)
        try:
            episodes, sandboxes = await running.agent.work_left()
            state = DrainState(until, episodes, sandboxes)
        except Exception as error:  # any exception of the transport means that the agent does not answer
            _log.warning("the node agent does not say what it works on: %s", error)
        if state != told:
            told = state
            say(f"draining: waits for {work_text(state)}")
            continue
        await asyncio.sleep(_LOOK_S)
