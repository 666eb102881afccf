"""What a verifier is made to run: the expected tests, and those that give a liar away."""

import random
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from farm.core.task import ReportFormat, Verifier
from farm.core.test_frameworks import FRAMEWORKS, containers_of_tests, is_python, without_parameters
from farm.grading.decoys.canary_file import NONE, DecoyFile, make_decoy_file
from farm.grading.decoys.contradiction import make_contradiction
from farm.grading.decoys.control_run import ChosenDecoys, ControlRun, choose_false
from farm.grading.decoys.inline import add_inline_decoys
from farm.grading.decoys.other_languages import make_foreign_decoy, words_in
from farm.grading.decoys.python_source import NOUNS, words_of
from farm.grading.errors import VerifierError
from farm.grading.stress import ORDER_INSIDE, RunOrder
from farm.tasks.bundle import BundleFile

_PYTEST = re.compile(r"(?:^|[\s/])(?:pytest|py\.test)\s[^;&|<>()`\n]*\{files\}")
RUNNER = Path(__file__).parents[1] / "reports" / "unittest_runner.py"


@dataclass(frozen=True, slots=True)
class VerifierPlan:
    """``tests`` are put into the workspace; what ``holders`` hold is run, in this order, and reported in ``report``.

    ``seed``: the tests of each file in a random order.
    """

    kind: ReportFormat
    tests: Mapping[str, BundleFile]
    holders: tuple[str, ...]
    canary: DecoyFile
    report: str
    seed: int | None = None

    @property
    def ordering(self) -> RunOrder | None:
        return None if self.seed is None else RunOrder(self.seed, self.report)

    @property
    def runner(self) -> str:
        """The path of the program that runs unittest's tests."""
        return f"{self.report}.py"

    @property
    def programs(self) -> Mapping[str, bytes]:
        """Programs that the command needs beside the tests, by path."""
        runner = RUNNER.read_bytes()
        if self.ordering is None:
            return {self.runner: runner}
        order = ORDER_INSIDE.read_bytes()
        return {self.runner: order + runner, self.ordering.plugin: order}

    def command(self, template: str, *, tracebacks: bool = True) -> str:
        """Return the test command. Without ``tracebacks`` pytest looks for none in tests that fail.

        That saves much time with false tests. It is an option of the command, because a variable would reach programs
        that tests start. It is given only if the command plainly is pytest's own.
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


def build_verifier_plan(
    verifier: Verifier,
    tests: Mapping[str, BundleFile],
    changed: Iterable[str],
    rng: random.Random,
    *,
    before: bool = True,
    seed: int | None = None,
    control: ControlRun | None = None,
    failed: Collection[str] = (),
) -> VerifierPlan:
    """Return an exam, another one each time. No added file takes the path of a test or of one that was ``changed``.

    ``before``: false tests may also run before tests that they are like. ``seed``: files and tests run in a random
    order if they are Python's. ``control``: which fail-to-pass tests of Python ask for something else under their own
    names, and ``failed`` are tests that stay as they are. The canary's ``must_not_pass`` begins with the false tests,
    and its ``late`` names tests that must pass again.
    """
    if is_python(verifier):
        return _python_exam(verifier, tests, changed, rng, seed, control, failed)
    expected = (*verifier.fail_to_pass, *verifier.pass_to_pass)
    held = containers_of_tests(expected)
    sources = {path: file.content for path, file in tests.items()}
    words = list(dict.fromkeys([*words_in(expected), *NOUNS]))
    planted = make_foreign_decoy(verifier.report, expected, sources, {*held, *tests, *changed}, rng, words)
    among = add_inline_decoys(verifier, sources, rng, words, before=before)
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
    return VerifierPlan(verifier.report, {**tests, **added}, tuple(held), canary, _unpredictable(rng))


def _python_exam(
    verifier: Verifier,
    tests: Mapping[str, BundleFile],
    changed: Iterable[str],
    rng: random.Random,
    seed: int | None,
    control: ControlRun | None,
    failed: Collection[str],
) -> VerifierPlan:
    expected = (*verifier.fail_to_pass, *verifier.pass_to_pass)
    files = containers_of_tests(expected)
    asked = dict(tests)
    chosen = ChosenDecoys({}, frozenset(), frozenset())
    if control is not None:
        scripts = {path: file.content for path, file in tests.items() if path.endswith(".py")}
        chosen = choose_false(scripts, verifier, failed, control, rng)
        asked |= {path: replace(tests[path], content=content) for path, content in chosen.files.items()}
    taken = {*files, *tests, *changed}
    sources = {path: file.content for path, file in asked.items()}
    words = words_of(sources[path] for path in files if path in sources)
    canary = make_decoy_file(files, taken, rng, words, functions_run=verifier.report is ReportFormat.PYTEST)
    away = taken | {canary.path}
    spared = set(map(without_parameters, verifier.never_false))
    of_mended, of_kept = (
        [test for test in ids if without_parameters(test) not in spared]
        for ids in (verifier.fail_to_pass, verifier.pass_to_pass)
    )
    contradiction = make_contradiction(of_mended, sources, away, rng, words) or make_contradiction(
        of_kept, sources, away, rng, words
    )
    if seed is not None:
        random.Random(seed).shuffle(files)
    files.insert(rng.randrange(len(files) + 1), canary.path)
    added = {canary.path: BundleFile(canary.content)}
    originals: Mapping[str, str] = {}
    if contradiction is not None:
        originals = contradiction.originals
        added[contradiction.path] = BundleFile(contradiction.content)
        files.append(contradiction.path)  # last, so that running a test twice cannot disturb the expected run
    must_not_pass = (*sorted(chosen.false), *originals)
    canary = replace(canary, must_not_pass=must_not_pass, late=tuple(sorted(chosen.true)), originals=originals)
    return VerifierPlan(verifier.report, {**asked, **added}, tuple(files), canary, _unpredictable(rng), seed)


def _unpredictable(rng: random.Random) -> str:
    return f"/tmp/{rng.getrandbits(64):016x}/{rng.getrandbits(64):016x}"
