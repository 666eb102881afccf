"""``farm tasks make release-pair``: make a task directory of two releases of a package."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from farm.core.change import Change
from farm.grading.reports.outcome import CaseOutcome
from farm.task_generation.instruction import draft_instruction
from farm.task_generation.release_pair_directory import PairTests, release_pair_directory
from farm.task_generation.services import GenerationServices, OnProgress
from farm.task_generation.task_directory import staging, write_files
from farm.task_generation.test_outcomes import Outcomes, frozen_requirements, observe
from farm.tasks import TaskBundle, ensure_image, load_task
from farm.tasks.errors import TaskError
from farm.tasks.schema.manifest import ReleaseTable
from farm.tasks.sdist.release_pair import Files, PreparedPair, compare, pytest_modules
from farm.tasks.sdist.sdist import fetch_sdist, read_sdist, sdist_digest
from sandboxes.cancellation import shielded

REPETITIONS = 3
"""Runs of the tests on each of the two releases."""


@dataclass(frozen=True, slots=True)
class ReleasePairSpec:
    """A request for a release-pair task.

    ``requirements`` are installed beside pytest. Test ids that match a pattern of ``exclude`` are not expected to pass.
    Without ``instruction`` a draft is written.
    """

    package: str
    old: str
    new: str
    out: Path
    requirements: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    instruction: str | None = None


@dataclass(frozen=True, slots=True)
class ReleasePairTask:
    """A written task. ``flaky``: test ids whose outcome differed between runs; they are not expected to pass."""

    directory: Path
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    flaky: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Releases:
    table: ReleaseTable
    old: Files
    new: Files


async def make_release_pair(spec: ReleasePairSpec, services: GenerationServices) -> ReleasePairTask:
    """Download both releases, build the image, run the newer tests on both states, and publish the task directory.

    Raises TaskError, ImageError and the errors of ``sandboxes``; then nothing is published.
    """
    if spec.out.exists():
        raise TaskError(spec.out, "exists already", "remove it, or name another directory with --out")
    check_order(spec)
    releases = _fetch(spec, services.state_dir, services.on_progress)
    pair = compare(spec.package, releases.old, releases.new)
    images, runtime = services.images, services.runtime
    with staging(spec.out) as stage:
        builder = _PairBuilder(stage, releases.table, pair, services)
        services.on_progress("installing the test requirements to pin them")
        unpinned = await builder.build(("pytest", *spec.requirements))
        requirements = await frozen_requirements(unpinned, runtime)
        await images.remove(unpinned.task.image)
        bundle = await builder.build(requirements)
        try:
            before = await builder.observe(bundle, Change(), "as it is")
            after = await builder.observe(bundle, pair.gold, "with the gold change")
            task = classify_tests(spec, before, after)
            instruction = spec.instruction or draft_instruction(releases.table, releases.new, task.fail_to_pass)
            builder.write(PairTests(requirements, instruction, task.fail_to_pass, task.pass_to_pass))
            load_task(stage, state_dir=services.state_dir)
            stage.rename(spec.out)
        except BaseException:
            await shielded(images.remove(bundle.task.image))
            raise
    return task


class _PairBuilder:
    """Build the image of a release pair and run its tests while the test ids are still unknown."""

    def __init__(self, stage: Path, release: ReleaseTable, pair: PreparedPair, services: GenerationServices) -> None:
        self._stage = stage
        self._release = release
        self._pair = pair
        self._services = services
        self._modules = pytest_modules(pair.tests)

    async def build(self, requirements: Sequence[str]) -> TaskBundle:
        """Build the task's image. The stage has a placeholder for the test ids, which are not known yet."""
        self.write(PairTests(requirements, "To be written.\n", [f"{self._modules[0]}::test_unknown"], []))
        bundle = load_task(self._stage, state_dir=self._services.state_dir)
        self._services.on_progress(f"building {bundle.task.image}")
        await ensure_image(bundle, self._services.images)
        return bundle

    async def observe(self, bundle: TaskBundle, change: Change, state: str) -> tuple[Outcomes, ...]:
        """Run the newer tests REPETITIONS times on the older release with ``change``; ``state`` describes it."""
        outcomes = []
        for repetition in range(REPETITIONS):
            self._services.on_progress(
                f"running the newer tests on the code {state}, {repetition + 1} of {REPETITIONS}"
            )
            outcomes.append(await observe(bundle, change, self._modules, self._services.runtime))
        return tuple(outcomes)

    def write(self, tests: PairTests) -> None:
        """Write the task directory to the stage."""
        write_files(self._stage, release_pair_directory(self._release, self._pair.gold, tests).files)


def check_order(spec: ReleasePairSpec) -> None:
    """Raise TaskError unless the second release has the higher version number."""
    if spec.old == spec.new or _numbers(spec.old) > _numbers(spec.new):
        raise TaskError(
            f"{spec.package} {spec.old} → {spec.new}",
            "is no step to a newer release",
            "name the older release first, then the newer",
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the epoch and the release numbers of a version by PEP 440; a pre-release has those of its release."""
    epoch, _, release = version.rpartition("!")
    match = re.match(r"v?(\d+(?:\.\d+)*)", release)
    numbers = [int(number) for number in match[1].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return (int(epoch) if epoch.isdecimal() else 0, *numbers)


def _fetch(spec: ReleasePairSpec, state_dir: Path, on_progress: OnProgress) -> _Releases:
    old, new = (
        fetch_sdist(spec.package, version, None, state_dir=state_dir, on_progress=on_progress)
        for version in (spec.old, spec.new)
    )
    table = ReleaseTable(
        package=spec.package,
        old=spec.old,
        new=spec.new,
        old_sha256=sdist_digest(old),
        new_sha256=sdist_digest(new),
    )
    return _Releases(table, read_sdist(old), read_sdist(new))


def classify_tests(spec: ReleasePairSpec, before: Sequence[Outcomes], after: Sequence[Outcomes]) -> ReleasePairTask:
    """Decide which tests are expected to pass, from their outcomes before and after the gold change.

    A test is flaky if its outcome differed between two runs on the same state. Raises TaskError if no test fails before
    and passes after.
    """
    all_tests = sorted({test for outcomes in (*before, *after) for test in outcomes})
    fail_to_pass: list[str] = []
    pass_to_pass: list[str] = []
    flaky: list[str] = []
    for test in all_tests:
        passed_before, passed_after = (
            {outcomes.get(test) is CaseOutcome.PASSED for outcomes in runs} for runs in (before, after)
        )
        if len(passed_before) > 1 or len(passed_after) > 1:
            flaky.append(test)
        elif passed_after == {True} and not any(fnmatchcase(test, pattern) for pattern in spec.exclude):
            (pass_to_pass if passed_before == {True} else fail_to_pass).append(test)
    if not fail_to_pass:
        raise TaskError(
            f"{spec.package} {spec.old} → {spec.new}",
            f"no test fails before and passes after ({len(pass_to_pass)} pass on both)",
            "choose other releases",
        )
    return ReleasePairTask(spec.out, tuple(fail_to_pass), tuple(pass_to_pass), tuple(flaky))
