"""What a verifier is made to run: the expected tests, and those that give a liar away."""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from farm.core.framework import FRAMEWORKS, holder, holders, is_python, without_parameters
from farm.core.task import ReportFormat, Verifier
from farm.grading.again import Again
from farm.grading.among import plant_among
from farm.grading.canary import NONE, Canary, make_canary, plant
from farm.grading.contradiction import Contradiction, make_contradiction
from farm.grading.double import make_false
from farm.grading.errors import VerifierError
from farm.grading.foreign import plant_foreign, words_in
from farm.grading.source import NOUNS, words_of
from farm.grading.stress import ORDER_INSIDE, Ordering
from farm.tasks.bundle import BundleFile

_PYTEST = re.compile(r"(?:^|[\s/])(?:pytest|py\.test)\s[^;&|<>()`\n]*\{files\}")
RUNNER = Path(__file__).with_name("unittest_runner.py")
MOST_MENDED = 6
MOST_OTHERS = 2


@dataclass(frozen=True, slots=True)
class Exam:
    """``tests`` are put into the workspace; what ``holders`` hold is run, in this order, and reported in ``report``.

    ``seed``: the tests of each file in a random order.
    """

    kind: ReportFormat
    tests: Mapping[str, BundleFile]
    holders: tuple[str, ...]
    canary: Canary
    contradiction: Contradiction | None
    report: str
    seed: int | None = None

    @property
    def ordering(self) -> Ordering | None:
        return None if self.seed is None else Ordering(self.seed, self.report)

    @property
    def runner(self) -> str:
        """Where the program that runs unittest's tests goes."""
        return f"{self.report}.py"

    @property
    def programs(self) -> Mapping[str, bytes]:
        """What the command needs beside the tests, by path."""
        runner = RUNNER.read_bytes()
        if self.ordering is None:
            return {self.runner: runner}
        order = ORDER_INSIDE.read_bytes()
        return {self.runner: order + runner, self.ordering.plugin: order}

    def command(self, template: str, *, tracebacks: bool = True) -> str:
        """Without ``tracebacks`` pytest looks for none in what fails, which for our false tests takes it long; only
        where it is plain that pytest itself is given the files. An option, for a variable would reach what tests start.
        """
        words = " ".join(dict.fromkeys(map(FRAMEWORKS[self.kind].words, self.holders)))
        if not tracebacks and self.kind is ReportFormat.PYTEST and _PYTEST.search(template):
            words = f"--tb=no {words}"
        command = (
            template.replace("{files}", words)
            .replace("{report}", quote(self.report))
            .replace("{runner}", quote(self.runner))
        )
        return self.ordering.around(command, self.kind) if self.ordering else command


def refuse_unfit(verifier: Verifier, tests: Mapping[str, BundleFile]) -> None:
    """Raises VerifierError for what could never judge."""
    if verifier.report is ReportFormat.REWARD_FILE:
        if "test.sh" not in tests:
            raise VerifierError("the task has no tests/test.sh to write its reward file")
        return
    if verifier.report is ReportFormat.EXIT_CODE:
        return
    if not verifier.fail_to_pass and not verifier.pass_to_pass:
        raise VerifierError("the task expects no test; name some in fail_to_pass or pass_to_pass")
    for placeholder in FRAMEWORKS[verifier.report].placeholders:
        if placeholder not in verifier.command:
            raise VerifierError(f"the test command lacks {placeholder}; a verdict needs it")


def set_exam(
    verifier: Verifier,
    tests: Mapping[str, BundleFile],
    changed: Iterable[str],
    rng: random.Random,
    *,
    before: bool = True,
    again: Again | None = None,
    seed: int | None = None,
) -> Exam:
    """Another one each time. No added file takes the path of a test or of one that was ``changed``. ``before``: false
    tests may also run before what they are like. ``again`` and ``seed``, files and tests in a random order, where they
    are Python's.
    """
    if is_python(verifier):
        return _python_exam(verifier, tests, changed, rng, before, again or Again(frozenset(), false=False), seed)
    expected = (*verifier.fail_to_pass, *verifier.pass_to_pass)
    held = holders(expected)
    sources = {path: file.content for path, file in tests.items()}
    words = list(dict.fromkeys([*words_in(expected), *NOUNS]))
    planted = plant_foreign(verifier.report, expected, sources, {*held, *tests, *changed}, rng, words)
    among = plant_among(verifier, sources, rng, words, before=before)
    added = {path: BundleFile(content, tests[path].executable) for path, content in among.files.items()}
    canary = NONE if planted is None else planted.canary
    if planted is not None:
        added[canary.path] = BundleFile(canary.content)
        if planted.holder not in held and "" not in held:  # which is everything, as long as nothing else is named
            held.insert(rng.randrange(len(held) + 1), planted.holder)
    canary = replace(
        canary,
        must_fail=(*canary.must_fail, *among.must_fail),
        must_pass=(*canary.must_pass, *among.must_pass),
        must_not_pass=tuple(among.must_not_pass),
        late=tuple(among.late),
    )
    return Exam(verifier.report, {**tests, **added}, tuple(held), canary, None, _unpredictable(rng))


def _python_exam(
    verifier: Verifier,
    tests: Mapping[str, BundleFile],
    changed: Iterable[str],
    rng: random.Random,
    before: bool,
    again: Again,
    seed: int | None,
) -> Exam:
    expected = (*verifier.fail_to_pass, *verifier.pass_to_pass)
    functions_run = verifier.report is ReportFormat.PYTEST
    files = holders(expected)
    taken = {*files, *tests, *changed}
    sources = {path: file.content for path, file in tests.items()}
    words = words_of(sources[path] for path in files if path in sources)
    canary = make_canary(files, taken, rng, words, functions_run=functions_run)
    beside = [test for test in expected if not again.tests or without_parameters(test) not in again.tests]
    contradiction = make_contradiction(beside, sources, taken | {canary.path}, rng, words)
    added = {canary.path: BundleFile(canary.content)}
    false: list[str] = []
    late: list[str] = []
    originals: dict[str, str] = {}
    to_double = _to_double(verifier, files, rng)
    doublable = {test for test in beside if holder(test) in to_double}
    for path in files:
        mended, others = (
            [test for test in listed if test in doublable and holder(test) == path]
            for listed in (verifier.fail_to_pass, verifier.pass_to_pass)
        )
        source = sources.get(path)
        if source is None:
            continue
        if again.false:
            source, names = make_false(source, [test for test in again.tests if holder(test) == path], rng)
            false += (f"{path}::{name}" for name in names)
            added[path] = BundleFile(source, tests[path].executable)
        doubled = plant(path, source, mended, others, rng, words, before=before, functions_run=functions_run)
        if doubled is not None:
            added[path] = BundleFile(doubled.content, tests[path].executable)
            false += (f"{path}::{name}" for name in doubled.false)
            late += (f"{path}::{name}" for name in doubled.late)
            originals |= {f"{path}::{name}": f"{path}::{original}" for name, original in doubled.originals.items()}
    canary = replace(canary, must_not_pass=tuple(false), late=tuple(late), originals=originals)
    if seed is not None:
        random.Random(seed).shuffle(files)
    files.insert(rng.randrange(len(files) + 1), canary.path)
    if contradiction is not None:
        added[contradiction.path] = BundleFile(contradiction.content)
        files.append(contradiction.path)  # last, so that running a test twice cannot disturb the expected run
    return Exam(verifier.report, {**tests, **added}, tuple(files), canary, contradiction, _unpredictable(rng), seed)


def _unpredictable(rng: random.Random) -> str:
    return f"/tmp/{rng.getrandbits(64):016x}/{rng.getrandbits(64):016x}"


def _to_double(verifier: Verifier, files: Sequence[str], rng: random.Random) -> frozenset[str]:
    """The files of tests that the change is to mend, and a few others; to parse all of a large suite takes seconds."""
    mended = holders(verifier.fail_to_pass)
    others = [path for path in files if path not in mended]
    return frozenset(
        rng.sample(mended, min(len(mended), MOST_MENDED)) + rng.sample(others, min(len(others), MOST_OTHERS))
    )
