"""What the scheduler decides, one case at a time."""

from collections import Counter

import pytest

from farm.core.rollout import Failure, Origin, Split
from farm.core.run import parse_rollout_id
from farm.scheduler.messages import (
    Load,
    NodeLeft,
    NodeLost,
    PublishFailure,
    RunCancelled,
    RunFinished,
    RunPaused,
    RunResumed,
    RunSubmitted,
    StopEpisode,
    Tick,
)
from farm.scheduler.settings import SchedulerSettings
from tests.support.farm.scheduler_driver import Driver, starts
from tests.support.farm.scheduler_values import beat, failed, run_spec, solved, stopped, task


def test_requested_groups_share_slots_like_one_run() -> None:
    driver = Driver()
    for number in range(20):
        driver.tell(RunSubmitted(run_spec(f"req-{number}", group_size=2)))
    driver.tell(RunSubmitted(run_spec("r", groups=20)))
    begun = starts(driver.tell(beat("a", slots=8)))
    assert Counter(start.assignment.run_id[:3] for start in begun) == {"r": 4, "req": 4}
    assert {start.assignment.run_id for start in begun} == {"r", "req-0", "req-1"}, "few groups are begun"


def test_requested_groups_use_all_slots_alone() -> None:
    driver = Driver()
    for number in range(3):
        driver.tell(RunSubmitted(run_spec(f"req-{number}", group_size=2)))
    begun = starts(driver.tell(beat("a", slots=8)))
    assert Counter(start.assignment.run_id for start in begun) == {"req-0": 2, "req-1": 2, "req-2": 2}


def test_a_run_goes_from_submission_to_its_end() -> None:
    driver = Driver()
    assert driver.tell(RunSubmitted(run_spec(groups=2, group_size=2))) == []
    begun = starts(driver.tell(beat("a")))
    assert [start.assignment.rollout_id for start in begun] == ["r-g000000-000", "r-g000000-001"]
    begun += starts(driver.tell(solved("a", begun[0].assignment)))
    begun += starts(driver.tell(solved("a", begun[1].assignment)))
    assert [start.assignment.group_id for start in begun] == ["r-g000000"] * 2 + ["r-g000001"] * 2
    assert driver.tell(solved("a", begun[2].assignment)) == []
    assert driver.tell(solved("a", begun[3].assignment)) == [RunFinished("r")]


def test_accepted_rollouts_are_not_run_again() -> None:
    driver = Driver()
    driver.tell(beat("a", slots=9))
    begun = starts(driver.tell(RunSubmitted(run_spec(groups=2, group_size=2), {"r-g000000": {1}, "r-g000001": {0, 1}})))
    assert [start.assignment.rollout_id for start in begun] == ["r-g000000-000"]
    assert driver.tell(RunSubmitted(run_spec("s"), {"s-g000000": {0}})) == [RunFinished("s")]


def test_failure_is_retried_elsewhere_until_last_attempt() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    driver.tell(beat("b"))
    [first] = starts(driver.tell(RunSubmitted(run_spec(max_attempts=2))))
    assert not first.assignment.final
    assert driver.tell(failed(first.node_id, first.assignment)) == []
    [second] = starts(driver.tell(Tick(), after_s=2.0))
    assert (second.assignment.rollout_id, second.assignment.attempt, second.assignment.final) == (
        first.assignment.rollout_id,
        2,
        True,
    )
    assert second.node_id != first.node_id
    assert second.assignment.seed == first.assignment.seed
    assert driver.tell(failed(second.node_id, second.assignment)) == [RunFinished("r")]


def test_retry_uses_same_node_without_another() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    [first] = starts(driver.tell(RunSubmitted(run_spec())))
    driver.tell(failed("a", first.assignment))
    [second] = starts(driver.tell(Tick(), after_s=2.0))
    assert second.node_id == "a"


def test_retry_waits_limited_time_for_another_node() -> None:
    driver = Driver()
    driver.tell(beat("a", slots=1))
    [first] = starts(driver.tell(RunSubmitted(run_spec())))
    driver.tell(beat("b", draining=True))
    driver.tell(failed("a", first.assignment))
    assert driver.tell(Tick(), after_s=2.0) == []
    assert "other than a" in driver.why()
    driver.tell(beat("a", slots=1), after_s=10.0)
    [second] = starts(driver.tell(beat("a", slots=1), after_s=10.0))
    assert second.node_id == "a"


def test_the_episodes_of_a_lost_node_go_elsewhere() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    begun = starts(driver.tell(RunSubmitted(run_spec(group_size=2))))
    driver.tell(beat("b"))
    moved = starts(driver.tell(NodeLost("a")))
    assert Counter(start.assignment.rollout_id for start in moved) == Counter(
        start.assignment.rollout_id for start in begun
    )
    assert {(start.node_id, start.assignment.attempt) for start in moved} == {("b", 2)}


def test_a_silent_node_is_lost() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    driver.tell(RunSubmitted(run_spec()))
    driver.tell(beat("b"), after_s=10.0)
    [moved] = starts(driver.tell(Tick(), after_s=6.0))
    assert moved.node_id == "b"


def test_new_incarnation_loses_unlisted_episodes() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    [first] = starts(driver.tell(RunSubmitted(run_spec())))
    [second] = starts(driver.tell(beat("a", incarnation="2")))
    assert (second.assignment.rollout_id, second.assignment.attempt) == (first.assignment.rollout_id, 2)


def test_new_incarnation_keeps_listed_episodes() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    begun = starts(driver.tell(RunSubmitted(run_spec(group_size=2, max_attempts=1))))
    kept, gone = (start.assignment for start in begun)
    commands = driver.tell(beat("a", running={kept.rollout_id: 1}, incarnation="2"))
    assert [command.assignment for command in commands if isinstance(command, PublishFailure)] == [gone]
    assert starts(commands) == []
    driver.tell(failed("", gone))
    assert driver.tell(solved("a", kept)) == [RunFinished("r")]


def test_pending_stop_is_repeated_to_next_incarnation() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    [start] = starts(driver.tell(RunSubmitted(run_spec())))
    stop = StopEpisode("a", start.assignment.rollout_id, 1)
    assert driver.tell(RunCancelled("r")) == [stop]
    assert driver.tell(beat("a", running={start.assignment.rollout_id: 1}, incarnation="2")) == [stop]


def test_lost_node_of_last_attempt_publishes_failure() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    [start] = starts(driver.tell(RunSubmitted(run_spec(max_attempts=1))))
    [command] = driver.tell(NodeLost("a"))
    assert isinstance(command, PublishFailure)
    assert command.assignment == start.assignment
    assert "node a was lost" in command.failure.message
    assert driver.tell(failed("", command.assignment, command.failure)) == [RunFinished("r")]


def test_episodes_stopped_by_leaving_node_have_not_failed() -> None:
    driver = Driver()
    driver.tell(beat("a", slots=9))
    begun = starts(driver.tell(RunSubmitted(run_spec(group_size=2, max_attempts=1))))
    for number in (2, 3):
        driver.tell(stopped("a", begun[0].assignment))
        driver.tell(NodeLeft("a"))
        begun = starts(driver.tell(beat("a", slots=9, incarnation=str(number))))
        assert len(begun) == 2
        assert all(start.assignment.final for start in begun)
    [published] = driver.tell(NodeLost("a"))[:1]
    assert isinstance(published, PublishFailure), "to be lost is a failure"


def test_lost_attempt_that_returns_has_not_failed() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    [start] = starts(driver.tell(RunSubmitted(run_spec(max_attempts=2))))
    driver.tell(NodeLost("a"))
    driver.tell(beat("a", running={start.assignment.rollout_id: 1}))
    driver.tell(failed("a", start.assignment))
    [second] = starts(driver.tell(Tick(), after_s=2.0))
    assert second.assignment.attempt == 2


def test_earlier_attempts_of_adopted_episode_count_as_failed() -> None:
    driver = Driver()
    driver.tell(RunSubmitted(run_spec(max_attempts=2)))
    driver.tell(beat("a", running={"r-g000000-000": 2}))
    [command] = driver.tell(NodeLost("a"))
    assert isinstance(command, PublishFailure)


def test_failure_without_retry_is_published_immediately() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    [start] = starts(driver.tell(RunSubmitted(run_spec())))
    refused = Failure(Origin.INFRA, "GroupMismatch", "the store refuses it", retryable=False)
    [command] = driver.tell(failed("a", start.assignment, refused))
    assert isinstance(command, PublishFailure)
    assert command.failure == refused


def test_late_failure_is_ignored_and_late_success_wins() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    driver.tell(beat("b", draining=True))
    [first] = starts(driver.tell(RunSubmitted(run_spec(groups=2, concurrency=1))))
    driver.tell(beat("b"))
    [second] = starts(driver.tell(NodeLost("a")))
    assert driver.tell(failed("a", first.assignment)) == []
    commands = driver.tell(solved("a", first.assignment))
    assert commands[0] == StopEpisode("b", second.assignment.rollout_id, 2)
    assert [start.assignment.group_id for start in starts(commands)] == ["r-g000001"]


def test_returning_node_keeps_episodes_not_restarted_elsewhere() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    [start] = starts(driver.tell(RunSubmitted(run_spec())))
    driver.tell(NodeLost("a"))
    assert driver.tell(beat("a", running={start.assignment.rollout_id: 1})) == []
    assert driver.tell(solved("a", start.assignment)) == [RunFinished("r")]


def test_restarted_scheduler_adopts_running_episodes() -> None:
    driver = Driver(hold_until=3.0)
    driver.tell(RunSubmitted(run_spec(groups=3), {"r-g000000": [0]}))
    assert driver.tell(beat("b")) == []
    assert "restarted" in driver.why()
    assert driver.tell(beat("a", running={"r-g000001-000": 2})) == []
    [start] = starts(driver.tell(Tick(), after_s=3.0))
    assert start.assignment.rollout_id == "r-g000002-000"


def test_episodes_of_unknown_runs_are_stopped() -> None:
    driver = Driver()
    driver.tell(RunSubmitted(run_spec(), {}))
    listed = {"gone-g000000-000": 1, "r-g000009-000": 1, "nonsense": 1}
    commands = driver.tell(beat("a", slots=3, running=dict(listed)))
    assert {command.rollout_id for command in commands if isinstance(command, StopEpisode)} == set(listed)
    assert not starts(commands), "the slots are taken until the node stops listing them"
    assert len(starts(driver.tell(beat("a", slots=3)))) == 1


def test_lost_assignment_is_sent_as_new_attempt() -> None:
    driver = Driver()
    driver.tell(beat("a"))
    driver.tell(RunSubmitted(run_spec()))
    assert driver.tell(beat("a"), after_s=5.0) == []
    [again] = starts(driver.tell(beat("a"), after_s=11.0))
    assert again.assignment.attempt == 2


def test_cancelled_run_frees_slots_when_episodes_end() -> None:
    driver = Driver()
    driver.tell(beat("a", slots=1))
    [start] = starts(driver.tell(RunSubmitted(run_spec(groups=5))))
    driver.tell(RunSubmitted(run_spec("s")))
    assert driver.tell(RunCancelled("r")) == [StopEpisode("a", start.assignment.rollout_id, 1)]
    [next_start] = starts(driver.tell(stopped("a", start.assignment)))
    assert next_start.assignment.run_id == "s"


def test_paused_run_starts_nothing_until_resumed() -> None:
    driver = Driver()
    driver.tell(RunSubmitted(run_spec(), paused=True))
    assert driver.tell(beat("a")) == []
    assert "paused" in driver.why()
    [start] = starts(driver.tell(RunResumed("r")))
    driver.tell(RunSubmitted(run_spec("s", groups=4)))
    assert driver.tell(RunPaused("s")) == []
    assert driver.tell(solved("a", start.assignment)) == [RunFinished("r")]


def test_runs_share_the_slots() -> None:
    driver = Driver()
    driver.tell(RunSubmitted(run_spec("r", groups=100)))
    driver.tell(RunSubmitted(run_spec("s", groups=100)))
    begun = starts(driver.tell(beat("a", slots=10)))
    assert Counter(start.assignment.run_id for start in begun) == {"r": 5, "s": 5}
    driver.tell(RunSubmitted(run_spec("t", groups=100)))
    for start in begun[:6]:
        driver.tell(solved("a", start.assignment))
    assert {run_id: len(run.running) for run_id, run in driver.scheduler.runs.items()} == {"r": 3, "s": 3, "t": 4}


def test_evaluation_is_placed_before_training() -> None:
    driver = Driver()
    driver.tell(RunSubmitted(run_spec("train", groups=100)))
    driver.tell(RunSubmitted(run_spec("eval", groups=3, split=Split.EVAL)))
    begun = starts(driver.tell(beat("a", slots=2)))
    assert [start.assignment.run_id for start in begun] == ["eval", "eval"]
    assert {start.assignment.split for start in begun} == {Split.EVAL}
    [third] = starts(driver.tell(solved("a", begun[0].assignment)))
    assert third.assignment.run_id == "eval", "it goes first although it has more running episodes"
    [fourth] = starts(driver.tell(solved("a", begun[1].assignment)))
    assert fourth.assignment.run_id == "train"


def test_evaluation_that_fits_no_node_lets_training_start() -> None:
    driver = Driver()
    driver.tell(beat("a", memory_mib=1000))
    driver.tell(RunSubmitted(run_spec("eval", tasks=(task("big", memory_mib=10_000),), split=Split.EVAL)))
    begun = starts(driver.tell(RunSubmitted(run_spec("train", groups=100))))
    assert {start.assignment.run_id for start in begun} == {"train"}


def test_evaluations_share_slots() -> None:
    driver = Driver()
    for run_id in ("e", "f"):
        driver.tell(RunSubmitted(run_spec(run_id, groups=100, split=Split.EVAL)))
    begun = starts(driver.tell(beat("a", slots=10)))
    assert Counter(start.assignment.run_id for start in begun) == {"e": 5, "f": 5}


def test_concurrency_caps_a_run() -> None:
    driver = Driver()
    driver.tell(beat("a", slots=10))
    begun = starts(driver.tell(RunSubmitted(run_spec(groups=5, concurrency=2))))
    assert len(begun) == 2
    assert "cap of 2" in driver.why()
    assert len(starts(driver.tell(solved("a", begun[0].assignment)))) == 1


def test_group_is_placed_on_node_with_image() -> None:
    driver = Driver()
    for node in "abcdefghijkl":
        driver.tell(beat(node, slots=4, images=frozenset({"image-t"}) if node == "h" else frozenset()))
    begun = starts(driver.tell(RunSubmitted(run_spec(group_size=4))))
    assert {start.node_id for start in begun} == {"h"}
    begun = starts(driver.tell(RunSubmitted(run_spec("s", group_size=4, tasks=(task("u"),)))))
    assert len({start.node_id for start in begun}) == 1, "the first episode's node builds the image for the others"


@pytest.mark.parametrize(
    ("load", "reason"),
    [(Load(memory=0.97), "memory is 97% used"), (Load(disk=0.99), "disk is 99% full")],
)
def test_overloaded_node_gets_no_episodes_and_has_reason(load: Load, reason: str) -> None:
    driver = Driver()
    driver.tell(beat("a", load=load))
    assert driver.tell(RunSubmitted(run_spec())) == []
    assert reason in driver.why()
    assert len(starts(driver.tell(beat("a"), after_s=5.0))) == 1


def test_node_with_busy_cpu_is_avoided() -> None:
    driver = Driver()
    driver.tell(beat("a", slots=2, load=Load(cpu=50.0)))
    driver.tell(beat("b", slots=1))
    first, *more = starts(driver.tell(RunSubmitted(run_spec(groups=3))))
    assert first.node_id == "b"
    assert [start.node_id for start in more] == ["a", "a"]


def test_memory_assigned_since_last_heartbeat_counts_as_used() -> None:
    """A quarter of each limit counts, because limits may add up to four times the memory."""
    driver = Driver()
    driver.tell(beat("a", slots=20, memory_mib=1000, available_mib=100))
    begun = starts(driver.tell(RunSubmitted(run_spec(groups=20))))
    assert len(begun) == 4
    assert "needs 100 MiB" in driver.why()
    running = {start.assignment.rollout_id: 1 for start in begun}
    seen = beat("a", slots=20, memory_mib=1000, available_mib=60, running=running)
    assert len(starts(driver.tell(seen))) == 2


@pytest.mark.parametrize(("overcommit", "fit"), [(1.0, 3), (2.0, 6), (4.0, 12)])
def test_memory_limits_are_bounded_by_overcommit(overcommit: float, fit: int) -> None:
    """The bound holds even if little memory is used."""
    driver = Driver(settings=SchedulerSettings(overcommit=overcommit))
    driver.tell(RunSubmitted(run_spec(groups=99)))
    running: dict[str, int] = {}
    for _ in range(20):
        begun = starts(driver.tell(beat("a", slots=50, memory_mib=300, available_mib=300, running=dict(running))))
        running |= {start.assignment.rollout_id: 1 for start in begun}
    assert len(running) == fit
    assert "the most that an open node has room for is 0 MiB, on a" in driver.why()


def test_adopted_episode_counts_with_its_memory_limit() -> None:
    driver = Driver(settings=SchedulerSettings(overcommit=1.0))
    driver.tell(RunSubmitted(run_spec(groups=9)))
    begun = starts(driver.tell(beat("a", slots=9, memory_mib=300, running={"r-g000000-000": 1})))
    assert len(begun) == 2


def test_task_must_fit_node_despite_overcommit() -> None:
    driver = Driver()
    driver.tell(beat("a", memory_mib=99))
    assert driver.tell(RunSubmitted(run_spec())) == []
    assert "needs 100 MiB" in driver.why()


def test_task_too_large_for_nodes_blocks_no_others() -> None:
    driver = Driver()
    driver.tell(beat("a", slots=3, memory_mib=1000))
    giant = task("giant", memory_mib=10**6)
    begun = starts(driver.tell(RunSubmitted(run_spec(groups=2, tasks=(giant, task())))))
    assert [start.assignment.task.id for start in begun] == ["t"]
    assert "giant needs 1000000 MiB" in driver.why()
    assert len(starts(driver.tell(RunSubmitted(run_spec("s"))))) == 1


def test_node_that_only_fails_is_quarantined() -> None:
    driver = Driver()
    driver.tell(beat("a", slots=1))
    driver.tell(RunSubmitted(run_spec(groups=50, max_attempts=1)))
    for _ in range(5):
        [episode] = driver.scheduler.runs["r"].running.values()
        run = driver.scheduler.runs["r"]
        assert episode.member is not None
        commands = driver.tell(failed("a", run.assignment(episode.member, 1)))
    assert commands == []
    assert "rests after 5" in driver.why()
    assert len(starts(driver.tell(beat("a", slots=1), after_s=3.0))) == 1


def test_waiting_reason_names_missing_nodes_or_slots() -> None:
    driver = Driver()
    driver.tell(RunSubmitted(run_spec(groups=3)))
    assert driver.why() == "no node has joined"
    driver.tell(beat("a", slots=1))
    assert driver.why() == "all 1 slots of 1 node are taken by this run"
    assert driver.why("unknown") == ""


def test_waiting_reason_counts_slots_of_same_run() -> None:
    driver = Driver()
    driver.tell(RunSubmitted(run_spec("r", groups=3)))
    driver.tell(beat("a", slots=1))
    driver.tell(RunSubmitted(run_spec("s", groups=3)))
    driver.tell(beat("b", slots=1))
    assert driver.why("r") == "all 2 slots of 2 nodes are taken, 1 of them by this run"
    driver.tell(RunSubmitted(run_spec("t", groups=3)))
    assert driver.why("t") == "all 2 slots of 2 nodes are taken"


def test_rollout_ids_are_parsed() -> None:
    assert parse_rollout_id("a-b-g000012-003") == ("a-b", 12, 3)
    assert parse_rollout_id("g000012-003") is None
    assert parse_rollout_id("r-x000012-003") is None
