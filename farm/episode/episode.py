"""One episode from boot to verdict. Deadlines nest: boot, each tool call, the agent's loop, verify, teardown."""

import asyncio
import logging
import random
import time
from dataclasses import replace

from farm.audit import audit_turns
from farm.core.change import Change
from farm.core.rollout import Rollout, StopReason, Turn
from farm.core.run import EpisodeAssignment
from farm.core.task import GradingMode
from farm.episode.baselines import Baselines
from farm.episode.events import EpisodeEvent, EventKind, OnEvent
from farm.episode.failures import classify
from farm.episode.journal import EpisodeJournal, JournalState
from farm.episode.phase_times import Stopwatch
from farm.episode.prompts import initial_messages
from farm.episode.rollout_builder import EpisodeResult, build_rollout, count_untrainable, failed_rollout, with_plugins
from farm.episode.steps import StepSetupFailed, combine_step_rewards, ended_by_rule, set_up_step, should_continue
from farm.episode.turn_loop import LoopLimits, TurnLoop, count
from farm.grading import (
    ChangeTooLarge,
    VerifierError,
    WorkspaceBaseline,
    collect_change,
    decide_answer,
    grade,
    grade_artifacts,
)
from farm.grading.errors import raise_if_host_fault
from farm.policy.base import Policy
from farm.rewards import JudgedEpisode, Plugins, count_effort, count_misuse
from farm.tasks.bundle import TaskBundle
from farm.tasks.healthcheck import await_health
from farm.tasks.images import policy_spec
from sandboxes.cancellation import shielded
from sandboxes.egress import EgressDecision, EgressLog
from sandboxes.errors import LossCause, PathError, RuntimeUnavailable, SandboxGone
from sandboxes.interface import Runtime, Sandbox
from sandboxes.search.index_store import IndexStore
from sandboxes.tools import Toolset
from sandboxes.tools.packs.answer import Answer

GRADED_FROM_CHANGE_ALONE = (GradingMode.PATCH, GradingMode.SEPARATE)
"""Judged by what was taken out alone; other modes where it was made, or on a copy of that."""

_log = logging.getLogger(__name__)


async def run_episode(
    order: EpisodeAssignment,
    bundle: TaskBundle,
    runtime: Runtime,
    policy: Policy,
    *,
    node: str,
    on_event: OnEvent | None = None,
    baselines: Baselines | None = None,
    verifier_turns: asyncio.Semaphore | None = None,
    library: IndexStore | None = None,
    journal: EpisodeJournal | None = None,
    plugins: Plugins | None = None,
    tracebacks: bool = False,
) -> Rollout:
    """Run ``policy`` on the task of ``bundle`` in a sandbox of its own, and judge what it leaves behind.

    Every failure becomes a rollout without a reward; only CancelledError is raised, after the sandbox is gone.
    ``policy`` stays open: it belongs to the caller, as does ``baselines``, which spares a walk of each known image,
    ``verifier_turns``, by which no more test commands run at once than the machine has room for, ``library``, without
    which code is not searched by meaning, and ``plugins``, which add raw components to what was judged. The episode is
    written to ``journal``, and goes on where that one's ``past`` ends, in the sandbox that it holds; the caller removes
    it. ``tracebacks``: as ``grade`` has it.
    """
    try:
        toolset = Toolset.of(order.tools or bundle.task.tools, index_store=library)
        # What steps leave behind in between is in no journal: cut off they begin anew.
        journal = journal if journal and not bundle.steps else EpisodeJournal()
        given = (on_event, baselines or Baselines(), verifier_turns, journal, tracebacks)
        episode = _Episode(order, bundle, runtime, policy, toolset, *given)
    except Exception as error:  # as below: the task asks for tools that there are none of
        return failed_rollout(order, error, node=node)
    failure = None
    try:
        await episode.run()
    except Exception as error:  # the boundary at which a failure, whosever it is, becomes data
        failure = classify(error, begun=True)
    # Beside the event loop: what the policy wrote is read, and it may be long.
    try:
        found = await asyncio.to_thread(episode.findings)
    except Exception:  # what only describes an episode, which the policy wrote, must not cost its verdict
        _log.exception("rollout %s attempt %d cannot be described", order.rollout_id, order.attempt)
        found = episode.bare_findings()
    if plugins is not None and failure is None and found.reward is not None:
        found = await with_plugins(plugins, episode.judged(found), found)
    return build_rollout(order, found, failure, node=node)


class _Episode:
    def __init__(
        self,
        order: EpisodeAssignment,
        bundle: TaskBundle,
        runtime: Runtime,
        policy: Policy,
        toolset: Toolset,
        on_event: OnEvent | None,
        baselines: Baselines,
        verifier_turns: asyncio.Semaphore | None,
        journal: EpisodeJournal,
        tracebacks: bool,
    ) -> None:
        self._order = order
        self._bundle = bundle
        self._part, self._step = bundle, 0
        self._runtime = runtime
        self._on_event = on_event
        self._baselines = baselines
        self._verifier_turns, self._tracebacks = verifier_turns, tracebacks
        self._journal = journal
        self._past = past = journal.past
        self._watch = Stopwatch(past.spent_s if past else 0.0)
        retrieval = bundle.task.retrieval
        if retrieval is not None:
            toolset = toolset.only_reading(Answer())
        bounds = LoopLimits.of(bundle.task, order.limits)
        self._found = EpisodeResult(
            opening=initial_messages(bundle.task, toolset.names, max_turns=bounds.max_turns),
            tool_pack=toolset.pack,
            tools=toolset.names,
        )
        if past is not None:
            self._found.created_at, self._found.image_digest = past.created_at, past.image_digest
            self._watch.seconds |= past.seconds
        self._change = Change()
        self._baseline: WorkspaceBaseline | None = None
        self._egress = EgressLog()
        self._loop = TurnLoop(
            policy,
            toolset,
            bounds,
            self._found.opening,
            watch=self._watch,
            tell=self._tell,
            journal=journal,
        )

    async def run(self) -> None:
        if self._past is not None:
            self._journal.resume(self._watch)
            if self._past.settled:
                await self._resume_grading(self._past)
                return
        sandbox = self._journal.sandbox
        if sandbox is None:
            labels = {"run": self._order.run_id, "rollout": self._order.rollout_id}
            spec = policy_spec(self._bundle.task, labels=labels)
            with self._watch.phase("boot_s"):
                sandbox = await self._runtime.create(spec, boot_timeout_s=self._order.limits.boot_s)
        try:
            if self._past is None:
                await await_health(sandbox, self._bundle.task)
            change = await (self._work_in_steps(sandbox) if self._bundle.steps else self._work(sandbox))
            mode = self._bundle.task.verifier.mode
            if change is not None and mode not in GRADED_FROM_CHANGE_ALONE:
                if mode is GradingMode.SHARED:  # it is about to be changed: cut off from now on it begins anew
                    self._journal.remove()
                await self._judge(change, worked_in=sandbox)
                change = None
        except BaseException:
            await shielded(self._remove(sandbox))
            raise
        # The verdict is reached in a fresh sandbox; the used one goes meanwhile.
        removal = asyncio.create_task(self._remove(sandbox))
        try:
            if change is not None:
                await self._judge(change)
        finally:
            await shielded(asyncio.wait({removal}))

    async def _work(self, sandbox: Sandbox) -> Change | None:
        """What the policy left in the workspace; None where it is judged already: for its answer, or for having made
        judging impossible."""
        self._found.image_digest = sandbox.image_digest
        task = self._bundle.task
        try:
            if task.retrieval is None:
                return await self._change_made(sandbox)
            self._begin(sandbox)
            self._found.stop = await self._loop.run(sandbox)
            self._journal.record_change(Change())
            self._found.set_verdict(decide_answer(task.retrieval, task.workspace, self._answer()))
            return None
        except SandboxGone as error:
            if error.by is LossCause.OUTSIDE or not self._acted:
                raise
            self._found.stop = StopReason.OUT_OF_MEMORY if error.by is LossCause.MEMORY else StopReason.SANDBOX_LOST
            self._score_zero(f"the work was lost: {error}")
            return None

    async def _work_in_steps(self, sandbox: Sandbox) -> None:
        """One after the other, each judged before the next is told."""
        task, rewards, lies, by_rule = self._bundle.task, list[float](), dict[int, str](), False
        for self._step, step in enumerate(task.steps):
            self._part = self._bundle.for_step(self._step)
            change = await self._work(sandbox)
            if change is not None:
                await self._judge(change, worked_in=sandbox)
            rewards.append(self._found.reward or 0.0)
            lies |= {self._step + 1: self._found.reason} if self._found.components.get("tampered") else {}
            # No rule ends a step whose work was lost: the steps after it count 0.
            by_rule = change is not None and ended_by_rule(step, rewards[-1])
            if change is None or not should_continue(step, rewards[-1], self._found.stop):
                break
        combine_step_rewards(self._found, rewards, task, lies, by_rule=by_rule)

    async def _converse(self, sandbox: Sandbox) -> None:
        """The whole of it, or that of one step."""
        if self._step == 0:
            self._begin(sandbox)
            self._egress = sandbox.egress_log
            self._found.stop = await self._loop.run(sandbox)
        else:
            bounds = LoopLimits.of(self._part.task, self._order.limits)
            told = initial_messages(self._part.task, self._found.tools, max_turns=bounds.max_turns)
            self._found.stop = await self._loop.run_step(sandbox, told, bounds.agent_s)
        # Before anything is taken out, so that what still runs in there brings nothing in while that is done. Between
        # steps every process is dead by then.
        if self._step + 1 >= len(self._bundle.steps):
            await sandbox.shut_egress()

    async def _resume_grading(self, past: JournalState) -> None:
        await self._loop.recall(past)
        self._found.stop, task = past.stop, self._bundle.task
        if past.change is None:
            self._score_zero(past.forfeit or "")
        elif task.retrieval is not None:
            self._found.set_verdict(decide_answer(task.retrieval, task.workspace, self._answer()))
        else:
            await self._judge(past.change)

    def _begin(self, sandbox: Sandbox) -> None:
        if self._past is None:
            self._journal.begin(self._order, sandbox, self._found.created_at, self._watch)
        else:
            self._journal.mark_resumed()

    async def _pristine(self, sandbox: Sandbox) -> WorkspaceBaseline:
        """Of the image that the sandbox was booted from, taken before anybody worked in it."""
        workspace = self._bundle.task.workspace
        known = self._baselines.known(sandbox, workspace)
        if known is not None or self._past is None:
            return known or await self._baselines.of(sandbox, workspace)
        async with self._runtime.scope(
            replace(policy_spec(self._bundle.task, labels={}), egress=()), boot_timeout_s=self._order.limits.boot_s
        ) as fresh:
            if fresh.image_digest != sandbox.image_digest:
                raise RuntimeUnavailable(f"{sandbox.spec.image} was made anew while the episode was cut off")
            return await self._baselines.of(fresh, workspace)

    async def _change_made(self, sandbox: Sandbox) -> Change | None:
        mode = self._bundle.task.verifier.mode
        if mode is not GradingMode.SEPARATE and self._baseline is None:
            with self._watch.phase("baseline_s"):
                self._baseline = await self._pristine(sandbox)
        if self._bundle.steps:
            try:
                await set_up_step(sandbox, self._bundle, self._step)
            except StepSetupFailed as error:
                self._score_zero(str(error))
                return None
        await self._converse(sandbox)
        with self._watch.phase("change_s"):
            change = await self._take(sandbox)
            if change is not None and mode in GRADED_FROM_CHANGE_ALONE:
                await shielded(asyncio.to_thread(self._journal.record_change, change))
            return change

    def _answer(self) -> str | None:
        """As the policy wrote it, the first of its last message, since an answer ends the work; None without one."""
        if self._found.stop is not StopReason.AGENT_DONE or not self._loop.turns:
            return None
        uses = self._loop.turns[-1].tool_uses
        return next((use.arguments for use in uses if use.name == Answer.name), None)

    @property
    def _acted(self) -> bool:
        """Whether the policy has done anything in its sandbox."""
        return any(turn.tool_uses for turn in self._loop.turns)

    async def _take(self, sandbox: Sandbox) -> Change | None:
        limit_s = self._order.limits.tool_s
        try:
            return await collect_change(sandbox, self._part.task, self._baseline, limit_s=limit_s, step=self._step)
        except TimeoutError:
            # What is killed or removed says so at once: this one is mute, or was left with too much to be read.
            raise SandboxGone(
                f"the sandbox did not give its change within {limit_s:g} s", by=LossCause.INSIDE
            ) from None
        except (ChangeTooLarge, PathError) as error:
            if isinstance(error, PathError):
                raise_if_host_fault(error)
            self._score_zero(str(error))
            return None

    def _score_zero(self, reason: str) -> None:
        """The policy itself made judging impossible: that is worth nothing, and it is no failure of the farm's."""
        self._found.reward = 0.0
        self._found.components = {"verdict": 0.0, "resolved": 0.0}
        self._found.reason = reason
        self._journal.record_forfeit(self._found.stop, reason)

    async def _judge(self, change: Change, *, worked_in: Sandbox | None = None) -> None:
        limits = self._order.limits
        self._change = change
        self._tell(EventKind.GRADING, len(self._loop.turns), None)
        try:
            if self._part.task.verifier.mode is GradingMode.SEPARATE:
                verdict = await grade_artifacts(
                    self._part,
                    change,
                    self._runtime,
                    verify_s=limits.verify_s,
                    boot_timeout_s=limits.boot_s,
                    turns=self._verifier_turns,
                )
            else:
                verdict = await grade(
                    self._part,
                    change,
                    self._runtime,
                    verify_s=limits.verify_s,
                    rng=random.SystemRandom(),
                    boot_timeout_s=limits.boot_s,
                    baseline=self._baseline,
                    turns=self._verifier_turns,
                    worked_in=worked_in,
                    tracebacks=self._tracebacks,
                )
        except VerifierError as error:
            self._watch.add("verify_command_s", error.command_s)
            raise
        if verdict.unreported and not self._bundle.steps:  # a later step needs what the steps before it left
            known, image = self._baselines.soundness, self._found.image_digest
            with self._watch.phase("verify_s"):
                await known.require(self._part, image, self._runtime, limits, self._verifier_turns)
        self._watch.add("verify_s", verdict.total_s)
        self._watch.add("verify_boot_s", verdict.boot_s)
        self._watch.add("verify_queue_s", verdict.queue_s)
        self._watch.add("verify_command_s", verdict.command_s)
        self._found.set_verdict(verdict)

    async def _remove(self, sandbox: Sandbox) -> None:
        """A sandbox that does not go in time is left to the reaper; the rollout is none the worse for it."""
        try:
            with self._watch.phase("teardown_s"):
                async with asyncio.timeout(self._order.limits.teardown_s):
                    await asyncio.shield(sandbox.remove())
        except Exception:  # the verdict does not depend on it, and the reaper takes what stays
            _log.warning("sandbox %s was not removed; the reaper will take it", sandbox.id, exc_info=True)

    def _tell(self, kind: EventKind, turn: int, finished: Turn | None) -> None:
        if self._on_event is not None:
            self._on_event(EpisodeEvent(kind, self._order.rollout_id, self._order.attempt, time.time(), turn, finished))

    def _asked_for(self) -> dict[str, float]:
        """How often the policy's sandbox asked for a host, by what came of it."""
        return {f"egress_{verdict}": float(self._egress.count(verdict)) for verdict in EgressDecision}

    def judged(self, found: EpisodeResult) -> JudgedEpisode:
        return JudgedEpisode(self._bundle.task.id, self._change, found.patch, found.turns, found.components)

    def bare_findings(self) -> EpisodeResult:
        """Return the verdict and the conversation, without what is measured of them."""
        turns, replies = tuple(self._loop.turns), tuple(self._loop.replies)
        return replace(self._found, turns=turns, replies=replies, metrics={"undescribed": 1.0})

    def findings(self) -> EpisodeResult:
        """All that is known when the episode has ended, however it did."""
        seconds, total_s = self._watch.seconds, self._watch.total_s
        elsewhere_s = sum(seconds.get(phase, 0.0) for phase in ("policy_s", "verify_queue_s", "verify_command_s"))
        turns = tuple(self._loop.turns)
        components = self._found.components
        seen = audit_turns(
            turns,
            network=bool(self._bundle.task.network),
            refused=self._egress.count(EgressDecision.REFUSED),
            tampered=self._found.reason if components.get("tampered") else "",
            screened=self._found.screened,
        )
        return replace(
            self._found,
            components={**components, **count_effort(turns), **count_misuse(turns), **seen.components},
            audit=seen.flags,
            turns=turns,
            replies=tuple(self._loop.replies),
            metrics={
                **seconds,
                "total_s": total_s,
                "overhead_s": total_s - elsewhere_s,
                **count(turns),
                "resumed": float(self._past.lives - 1 if self._past else 0),
                **seen.metrics,
                **count_untrainable(self._order, self._loop.replies),
                **(self._asked_for() if self._bundle.task.network else {}),
                "change_files": float(len(self._change.files)),
                "change_bytes": float(self._change.size_bytes),
            },
        )
