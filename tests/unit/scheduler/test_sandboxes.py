"""Learner sandboxes in the scheduler: they take slots like episodes."""

from collections.abc import Sequence

import pytest

from farm.scheduler.messages import (
    Command,
    Heartbeat,
    RunSubmitted,
    SandboxPlaced,
    SandboxReleased,
    SandboxRequested,
    StartEpisode,
)
from farm.scheduler.settings import SchedulerSettings
from farm.scheduler.state_machine import Scheduler
from tests.support.farm.scheduler_values import beat, run_spec, solved, task

GRACE_S = SchedulerSettings().order_grace_s


class Timeline:
    """A scheduler whose invariants are checked after each event."""

    def __init__(self, *, hold_until: float = 0.0) -> None:
        self.scheduler = Scheduler(hold_until=hold_until)
        self.now = 0.0

    def tell(self, event: object, *, after_s: float = 0.0) -> Sequence[Command]:
        self.now += after_s
        commands = self.scheduler.handle(event, self.now)  # type: ignore[arg-type]
        self.scheduler.validate(self.now)
        return commands

    def request(self, name: str, node_id: str = "", *, memory_mib: int = 100) -> Sequence[Command]:
        return self.tell(SandboxRequested(name, task(memory_mib=memory_mib), node_id))

    def why(self, name: str) -> str:
        return self.scheduler.why_sandbox_waits(name, self.now)

    @property
    def held(self) -> set[str]:
        return {name for node in self.scheduler.fleet for name in node.sandboxes}


def listing(node_id: str, *names: str, slots: int = 2) -> Heartbeat:
    return beat(node_id, slots=slots, sandboxes=dict.fromkeys(names, 100))


def test_episodes_and_sandboxes_share_the_slots() -> None:
    time = Timeline()
    time.tell(beat("a", slots=2))
    assert time.request("sb-1") == [SandboxPlaced("sb-1", "a")]
    started = time.tell(RunSubmitted(run_spec(groups=3)))
    assert [type(command) for command in started] == [StartEpisode]
    assert time.request("sb-2") == []
    assert time.why("sb-2") == "all 2 slots of 1 node are taken, 1 of them by sandboxes of learners"
    assert time.scheduler.why_waiting("r", 0.0).startswith("all 2 slots of 1 node are taken, 1 of them by sandboxes")


def test_waiting_sandbox_goes_before_waiting_episodes() -> None:
    time = Timeline()
    time.tell(beat("a", slots=1))
    (first,) = time.tell(RunSubmitted(run_spec(groups=3)))
    assert isinstance(first, StartEpisode)
    time.request("sb-1")
    assert time.tell(solved("a", first.assignment)) == [SandboxPlaced("sb-1", "a")]


def test_withdrawn_request_is_not_placed() -> None:
    time = Timeline()
    time.request("sb-1")
    assert time.why("sb-1") == "no node has joined"
    time.tell(SandboxReleased("sb-1"))
    assert time.tell(beat("a")) == []
    assert not time.held


def test_repeated_request_keeps_its_slot() -> None:
    time = Timeline()
    time.tell(beat("a", slots=2))
    time.request("sb-1")
    assert time.request("sb-1") == [SandboxPlaced("sb-1", "a")]
    assert time.held == {"sb-1"}


def test_unlisted_sandbox_loses_its_slot() -> None:
    """At once if it was listed before, else after a grace period, because the node may not have its order yet."""
    time = Timeline()
    time.tell(beat("a"))
    time.request("sb-1")
    time.request("sb-2")
    time.tell(listing("a", "sb-1"), after_s=1)
    assert time.held == {"sb-1", "sb-2"}
    time.tell(listing("a"), after_s=1)
    assert time.held == {"sb-2"}
    time.tell(listing("a"), after_s=GRACE_S)
    assert not time.held


def test_sandbox_that_did_not_start_frees_its_slot() -> None:
    time = Timeline()
    time.tell(beat("a", slots=1))
    time.request("sb-1")
    time.tell(SandboxReleased("sb-1"))
    assert time.request("sb-2") == [SandboxPlaced("sb-2", "a")]


def test_new_scheduler_counts_listed_sandboxes() -> None:
    time = Timeline(hold_until=4.0)
    time.request("sb-9")
    time.tell(listing("a", "sb-1", "sb-2"))
    assert time.held == {"sb-1", "sb-2"}
    assert time.why("sb-9").startswith("the scheduler has restarted")
    assert time.tell(listing("a", "sb-1"), after_s=5) == [SandboxPlaced("sb-9", "a")]


def test_restarted_agent_holds_no_sandbox() -> None:
    time = Timeline()
    time.tell(listing("a", "sb-1"))
    time.tell(beat("a", incarnation="2"))
    assert not time.held


def test_fork_waits_for_its_own_node() -> None:
    time = Timeline()
    time.tell(listing("a", "sb-1", slots=1))
    time.tell(beat("b"))
    assert time.request("sb-2", "a") == []
    assert time.why("sb-2") == "its 1 slots are taken"
    assert time.request("sb-3", "b") == [SandboxPlaced("sb-3", "b")]
    assert time.why("sb-4") == "the request was withdrawn"
    assert time.request("sb-5", "c") == []
    assert time.why("sb-5") == "the node c is not there"


def test_request_that_fits_nowhere_lets_others_pass() -> None:
    time = Timeline()
    time.tell(beat("a", memory_mib=1000))
    time.request("sb-1", memory_mib=2000)
    assert "needs 2000 MiB of memory" in time.why("sb-1")
    assert time.request("sb-2") == [SandboxPlaced("sb-2", "a")]


@pytest.mark.parametrize("count", [1, 3])
def test_draining_node_takes_no_sandbox(count: int) -> None:
    time = Timeline()
    time.tell(beat("a", slots=4, draining=True))
    assert [time.request(f"sb-{number}") for number in range(count)] == [[]] * count
    assert time.why("sb-0") == "a: it is draining"
