"""``farm tasks make release-pair``: two releases of a package become a task directory."""

import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from farm.core.change import Change
from farm.grading.reports.outcome import CaseOutcome
from farm.task_generation import release_pair_directory
from farm.task_generation.instruction import draft
from farm.task_generation.publish import write_files
from farm.task_generation.test_outcomes import Outcomes, frozen_requirements, observe
from farm.tasks import TaskBundle, ensure_image, load_task
from farm.tasks.errors import TaskError
from farm.tasks.schema.manifest import ReleaseTable
from farm.tasks.sdist.release_pair import Files, PreparedPair, compare, pytest_modules
from farm.tasks.sdist.sdist import fetch_sdist, read_sdist, sdist_digest
from sandboxes.cancellation import shielded
from sandboxes.images.store import ImageStore
from sandboxes.interface import Runtime

REPETITIONS = 3

OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReleasePairSpec:
    """What to make. ``requirements`` are added to pytest; ``exclude`` are patterns of test ids that are not expected.

    ``instruction`` None asks for a draft.
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
    """``flaky``: ids that did not do the same each time, and are not expected."""

    directory: Path
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    flaky: tuple[str, ...]


async def make_release_pair(
    wish: ReleasePairSpec, *, state_dir: Path, images: ImageStore, runtime: Runtime, say: OnProgress
) -> ReleasePairTask:
    """Download, build, run the newer tests on both states three times over, and write the directory.

    Nothing is written where that fails. Raises TaskError, ImageError and the errors of ``sandboxes``.
    """
    if wish.out.exists():
        raise TaskError(wish.out, "exists already", "remove it, or name another place with --out")
    check_order(wish)
    release, old, new = _fetch(wish, state_dir, say)
    prepared = compare(release.package, old, new)
    wish.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{wish.out.name}-", dir=wish.out.parent) as scratch:
        stage = _Stage(Path(scratch) / wish.out.name, release, prepared, state_dir, images, runtime, say)
        say("installing the test requirements to pin them")
        loose = await stage.build(("pytest", *wish.requirements))
        requirements = await frozen_requirements(loose, runtime)
        await images.remove(loose.task.image)
        bundle = await stage.build(requirements)
        try:
            before = await stage.watch(bundle, Change(), "as it is")
            after = await stage.watch(bundle, prepared.gold, "with the gold change")
            made = sort_out(wish, before, after)
            instruction = wish.instruction or draft(release, new, made.fail_to_pass)
            stage.write(requirements, instruction, made.fail_to_pass, made.pass_to_pass)
            load_task(stage.directory, state_dir=state_dir)
            stage.directory.rename(wish.out)
        except BaseException:
            await shielded(images.remove(bundle.task.image))
            raise
    return made


class _Stage:
    """The directory while it is in the making."""

    def __init__(
        self,
        directory: Path,
        release: ReleaseTable,
        prepared: PreparedPair,
        state_dir: Path,
        images: ImageStore,
        runtime: Runtime,
        say: OnProgress,
    ) -> None:
        self.directory = directory
        self._release = release
        self._prepared = prepared
        self._state_dir = state_dir
        self._images = images
        self._runtime = runtime
        self._say = say
        self._modules = pytest_modules(prepared.tests)

    async def build(self, requirements: Sequence[str]) -> TaskBundle:
        """Write the directory with a stand-in for the ids that are not known yet, and build its image."""
        self.write(requirements, "To be written.\n", [f"{self._modules[0]}::test_unknown"], [])
        bundle = load_task(self.directory, state_dir=self._state_dir)
        self._say(f"building {bundle.task.image}")
        await ensure_image(bundle, self._images)
        return bundle

    async def watch(self, bundle: TaskBundle, change: Change, state: str) -> tuple[Outcomes, ...]:
        seen = []
        for repetition in range(REPETITIONS):
            self._say(f"running the newer tests on the code {state}, {repetition + 1} of {REPETITIONS}")
            seen.append(await observe(bundle, change, self._modules, self._runtime))
        return tuple(seen)

    def write(
        self,
        requirements: Sequence[str],
        instruction: str,
        fail_to_pass: Sequence[str],
        pass_to_pass: Sequence[str],
    ) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        files = release_pair_directory.task_files(
            self._release,
            self._prepared.gold,
            requirements=requirements,
            instruction=instruction,
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
        )
        write_files(self.directory, files)


def check_order(wish: ReleasePairSpec) -> None:
    """Raise TaskError unless the newer release is the second one, as far as their numbers tell."""
    if wish.old == wish.new or _numbers(wish.old) > _numbers(wish.new):
        raise TaskError(
            f"{wish.package} {wish.old} → {wish.new}",
            "is no step to a newer release",
            "name the older release first, then the newer",
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Those of the release itself, after PEP 440; a pre-release has the numbers of what it leads up to."""
    epoch, _, release = version.rpartition("!")
    found = re.match(r"v?(\d+(?:\.\d+)*)", release)
    numbers = [int(number) for number in found[1].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return (int(epoch) if epoch.isdecimal() else 0, *numbers)


def _fetch(wish: ReleasePairSpec, state_dir: Path, say: OnProgress) -> tuple[ReleaseTable, Files, Files]:
    old, new = (
        fetch_sdist(wish.package, version, None, state_dir=state_dir, on_progress=say)
        for version in (wish.old, wish.new)
    )
    release = ReleaseTable(
        package=wish.package,
        old=wish.old,
        new=wish.new,
        old_sha256=sdist_digest(old),
        new_sha256=sdist_digest(new),
    )
    return release, read_sdist(old), read_sdist(new)


def sort_out(wish: ReleasePairSpec, before: Sequence[Outcomes], after: Sequence[Outcomes]) -> ReleasePairTask:
    """Which tests are expected to pass. An id is flaky where it did not do the same each time on one state."""
    every = sorted({test for seen in (*before, *after) for test in seen})
    fail_to_pass: list[str] = []
    pass_to_pass: list[str] = []
    flaky: list[str] = []
    for test in every:
        was, became = ({seen.get(test) is CaseOutcome.PASSED for seen in state} for state in (before, after))
        if len(was) > 1 or len(became) > 1:
            flaky.append(test)
        elif became == {True} and not any(fnmatchcase(test, pattern) for pattern in wish.exclude):
            (pass_to_pass if was == {True} else fail_to_pass).append(test)
    if not fail_to_pass:
        raise TaskError(
            f"{wish.package} {wish.old} → {wish.new}",
            f"no test fails before and passes after ({len(pass_to_pass)} pass on both)",
            "choose other releases",
        )
    return ReleasePairTask(wish.out, tuple(fail_to_pass), tuple(pass_to_pass), tuple(flaky))
