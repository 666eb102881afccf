"""``farm tasks make mutate`` and ``delete-feature``: from a repository with tests to task directories proven fit."""

import asyncio
import random
import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from farm.task_generation.mutation.directory import TaskDraft, making_environment, task_files
from farm.task_generation.mutation.drafting import (
    COMBINED,
    FaultPlan,
    combine,
    confirmed,
    confirming,
    draft,
    judged,
    most_failures,
    trial_of,
)
from farm.task_generation.mutation.faults import Fault, choose_faults
from farm.task_generation.mutation.features import choose_features
from farm.task_generation.mutation.repository import Repository
from farm.task_generation.mutation.trials import BaselineRun, Trial, TrialResult, run_baseline, run_trials
from farm.task_generation.progress_log import ProgressLog
from farm.task_generation.publish import write_files
from farm.task_validation.validate import validate
from farm.tasks import TASK_PREFIX, TaskBundle, TaskError, load_task
from farm.tasks.bundle import BundleFile
from farm.tasks.directory import digest_of
from sandboxes.errors import LossCause, SandboxGone
from sandboxes.images.store import ImageStore
from sandboxes.interface import Runtime

STRATEGIES = ("mutate", "delete-feature")
MAKING = ".making"
"""Below the place of the made tasks: the journals."""
AT_ONCE = 20
"""Trials that share a sandbox."""
TRIALS_A_TASK = 6
"""So many faults at most are tried for each task that is wanted."""
SPARE = 1.3
BUILD_TIMEOUT_S = 900

OnProgress = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GenerationContext:
    """What work is done with; ``turns``: so many sandboxes and builds at once."""

    state_dir: Path
    images: ImageStore
    runtime: Runtime
    turns: asyncio.Semaphore
    on_progress: OnProgress

    async def turn(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self.turns:
            return await work()


@dataclass(slots=True)
class GenerationStats:
    """What came of one strategy on one repository. ``trials``: how many ended how; ``tasks``: digests by name;
    ``unfit``: why drafts were no tasks."""

    package: str
    strategy: str
    trials: dict[str, int] = field(default_factory=dict)
    drafts: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)


def journal_path(repository: Repository, out: Path, seed: int) -> Path:
    """Of these sources alone: what was found out about others says nothing here."""
    return out / MAKING / f"{repository.name}-{seed}-{repository.sha256[:12]}.jsonl"


class TaskGenerator:
    """The tasks of one repository, below ``out``."""

    def __init__(self, repository: Repository, out: Path, seed: int, bench: GenerationContext) -> None:
        self.yields: list[GenerationStats] = []
        self._repository = repository
        self._out = out
        self._seed = seed
        self._bench = bench
        self._journal = ProgressLog(journal_path(repository, out, seed))
        self._sources = repository.sources
        environment = making_environment(repository)
        digest = digest_of({name: BundleFile(content) for name, content in environment.items()})
        slug = re.sub(r"[^a-z0-9]+", "-", repository.name.lower()).strip("-")
        self._image = f"{TASK_PREFIX}making-{slug}:{digest[:12]}"
        self._environment = environment
        self._building = asyncio.Lock()
        self._built = False

    async def make(self, wanted: Mapping[str, int]) -> None:
        """At most so many tasks of each strategy; what came of it is in ``yields``, also where it ends early.

        Raises TaskError, ImageError and the errors of ``sandboxes``.
        """
        bench = self._bench
        try:
            survey = await self._survey()
            for strategy in STRATEGIES:
                if wanted.get(strategy):
                    await self._make(strategy, wanted[strategy], survey)
        finally:
            if self._built:
                await bench.runtime.release_images()
                await bench.images.remove(self._image)

    async def _build(self) -> None:
        """Once, and not at all where the journal knows everything."""
        bench = self._bench
        async with self._building:
            if not self._built:
                bench.on_progress(f"{self._repository.name}: image")
                await bench.turn(lambda: bench.images.build(self._image, self._environment, timeout_s=BUILD_TIMEOUT_S))
                self._built = True

    async def _survey(self) -> BaselineRun:
        known = self._journal.get("survey")
        if known is not None:
            return _survey_of(known)
        await self._build()
        self._bench.on_progress(f"{self._repository.name}: what its tests execute")
        survey = await self._bench.turn(lambda: run_baseline(self._repository, self._image, self._bench.runtime))
        self._journal.put("survey", _row_of(survey))
        return survey

    async def _make(self, strategy: str, wanted: int, survey: BaselineRun) -> None:
        done = GenerationStats(self._repository.name, strategy)
        self.yields.append(done)
        rng = random.Random(f"{self._seed} {self._repository.name} {strategy}")
        most = most_failures(survey)
        if strategy == "mutate":
            counts: Sequence[int] = COMBINED
            enough = int(wanted * SPARE * sum(counts) / len(counts)) + 1
            faults = await asyncio.to_thread(choose_faults, self._sources, survey, rng, wanted * TRIALS_A_TASK)
        else:
            counts, enough = (1,), int(wanted * SPARE) + 1
            tests = {path: file.content for path, file in self._repository.files.items() if path not in self._sources}
            python = {path: content for path, content in tests.items() if path.endswith(".py")}
            faults = await asyncio.to_thread(
                choose_features, self._sources, python, survey, rng, wanted * TRIALS_A_TASK
            )
        usable = await self._try_out(faults, survey, most, enough, done)
        plans = combine(usable, counts, rng)
        drafts = await self._draft(plans, strategy, survey, most, done)
        await self._prove(drafts, wanted, done)

    async def _try_out(
        self, faults: Sequence[Fault], survey: BaselineRun, most: int, enough: int, done: GenerationStats
    ) -> list[tuple[Fault, TrialResult]]:
        """Those that are usable, in order; no more are tried than it takes to have ``enough``."""
        usable: list[tuple[Fault, TrialResult]] = []
        wave = AT_ONCE * 2
        for start in range(0, len(faults), wave):
            if len(usable) >= enough:
                break
            some = faults[start : start + wave]
            self._bench.on_progress(
                f"{self._repository.name}: trials {start + 1} to {start + len(some)} of {len(faults)}"
            )
            results = await self._hold([trial_of(fault, self._sources, survey, most) for fault in some], survey)
            for fault, result in zip(some, results, strict=True):
                verdict = judged(result, most)
                done.trials[verdict] = done.trials.get(verdict, 0) + 1
                if verdict == "usable":
                    usable.append((fault, result))
        return usable

    async def _hold(self, trials: Sequence[Trial], survey: BaselineRun) -> list[TrialResult]:
        unknown = [trial for trial in trials if self._journal.get(trial.key) is None]
        if unknown:
            await self._build()
        batches = [unknown[start : start + AT_ONCE] for start in range(0, len(unknown), AT_ONCE)]

        async def hold(batch: Sequence[Trial]) -> None:
            for result in await self._bench.turn(lambda: run_trials(batch, survey, self._image, self._bench.runtime)):
                self._journal.put(result.key, result.model_dump())

        await asyncio.gather(*map(hold, batches))
        return [TrialResult.model_validate(self._journal.get(trial.key)) for trial in trials]

    async def _draft(
        self, plans: Sequence[FaultPlan], strategy: str, survey: BaselineRun, most: int, done: GenerationStats
    ) -> list[TaskDraft]:
        pairs = [(plan, trial) for plan in plans if (trial := confirming(plan, self._sources, most)) is not None]
        results = await self._hold([trial for _, trial in pairs], survey)
        drafts: list[TaskDraft] = []
        for (plan, _), result in zip(pairs, results, strict=True):
            verdict = confirmed(plan, result, most)
            made = None
            if verdict == "usable":
                made = await asyncio.to_thread(draft, plan, result, strategy, self._repository, survey)
                verdict = "drafted" if made else "nothing to tell"
            done.drafts[verdict] = done.drafts.get(verdict, 0) + 1
            if made is not None:
                drafts.append(made)
        return drafts

    async def _prove(self, drafts: Sequence[TaskDraft], wanted: int, done: GenerationStats) -> None:
        """In order, until there are as many as are wanted."""
        left = list(drafts)
        while left and len(done.tasks) < wanted:
            missing = wanted - len(done.tasks)
            wave, left = left[:missing], left[missing:]
            await asyncio.gather(*(self._note(made, done) for made in wave))

    async def _note(self, made: TaskDraft, done: GenerationStats) -> None:
        digest, problem = await self._proven(made)
        if problem:
            done.unfit[made.name] = problem
        else:
            done.tasks[made.name] = digest

    async def _proven(self, made: TaskDraft) -> tuple[str, str]:
        """Its digest, and what is wrong with it."""
        directory = self._out / made.name
        files = task_files(self._repository, made)
        bundle_files = {path: BundleFile(content, path.endswith(".sh")) for path, content in files.items()}
        digest = digest_of(bundle_files)
        known = self._journal.get(f"task {digest}")
        if known is not None and (known or directory.exists()):
            return digest, str(known)
        with tempfile.TemporaryDirectory(prefix=f".{made.name}-", dir=self._out) as scratch:
            stage = Path(scratch) / made.name
            write_files(stage, files)
            bundle = await asyncio.to_thread(load_task, stage, state_dir=self._bench.state_dir)
            problem = await self._bench.turn(lambda: self._validate(bundle))
            if not problem:
                if directory.exists():
                    raise TaskError(directory, "is there and is another task", "choose another --out")
                stage.rename(directory)
        self._journal.put(f"task {digest}", problem)
        self._bench.on_progress(f"{made.name}: {problem or 'fit'}")
        return digest, problem

    async def _validate(self, bundle: TaskBundle) -> str:
        """Once: the released state was seen thrice, the faulty one twice before."""
        bench = self._bench
        try:
            finding = await validate(bundle, images=bench.images, runtime=bench.runtime, say=_silent, once=True)
        except SandboxGone as error:
            if error.by is LossCause.OUTSIDE:
                raise
            return f"its tests lost their sandbox: {error}"
        finally:
            await bench.runtime.release_images()
            await bench.images.remove(bundle.task.image)
        return "; ".join(finding.problems)


def _silent(line: str) -> None:
    pass


def _row_of(survey: BaselineRun) -> dict[str, Any]:
    index = {test: number for number, test in enumerate(survey.passing)}
    return {
        "passing": survey.passing,
        "flaky": survey.flaky,
        "lines": {
            path: {line: [index[test] for test in tests] for line, tests in lines.items() if tests}
            for path, lines in survey.lines.items()
        },
        "seconds": survey.seconds,
        "modules": survey.modules,
        "took_s": survey.took_s,
    }


def _survey_of(row: Mapping[str, Any]) -> BaselineRun:
    passing = tuple(row["passing"])
    return BaselineRun(
        passing,
        tuple(row["flaky"]),
        {
            path: {int(line): tuple(passing[at] for at in tests) for line, tests in lines.items()}
            for path, lines in row["lines"].items()
        },
        row["seconds"],
        tuple(row["modules"]),
        row["took_s"],
    )
