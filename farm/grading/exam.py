"""What a pytest verifier is made to run: the expected tests, and those that give a liar away."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from farm.core.task import Verifier
from farm.grading.canary import Canary, make_canary, plant
from farm.grading.contradiction import Contradiction, make_contradiction
from farm.grading.source import words_of
from farm.tasks.bundle import BundleFile

MOST_MENDED = 6
MOST_OTHERS = 2


@dataclass(frozen=True, slots=True)
class Exam:
    """``tests`` are put into the workspace; ``files`` are run, in this order; the report goes to ``report``."""

    tests: Mapping[str, BundleFile]
    files: tuple[str, ...]
    canary: Canary
    contradiction: Contradiction | None
    report: str

    def command(self, template: str) -> str:
        return template.replace("{files}", " ".join(map(quote, self.files))).replace("{report}", quote(self.report))


def set_exam(verifier: Verifier, tests: Mapping[str, BundleFile], changed: Iterable[str], rng: random.Random) -> Exam:
    """Another one each time. No added file takes the path of a test or of one that was ``changed``."""
    expected = (*verifier.fail_to_pass, *verifier.pass_to_pass)
    files = sorted({test.split("::", 1)[0] for test in expected})
    taken = {*files, *tests, *changed}
    sources = {path: file.content for path, file in tests.items()}
    words = words_of(sources[path] for path in files if path in sources)
    canary = make_canary(files, taken, rng, words)
    contradiction = make_contradiction(expected, sources, taken | {canary.path}, rng, words)
    added = {canary.path: BundleFile(canary.content)}
    planted: list[str] = []
    doubled = _to_double(verifier, files, rng)
    for path in files:
        theirs = [test for test in expected if path in doubled and test.split("::", 1)[0] == path]
        grown = plant(path, sources[path], theirs, rng, words) if path in sources else None
        if grown is not None:
            added[path] = BundleFile(grown[0], tests[path].executable)
            planted += grown[1]
    canary = replace(canary, must_not_pass=tuple(planted))
    files.insert(rng.randrange(len(files) + 1), canary.path)
    if contradiction is not None:
        added[contradiction.path] = BundleFile(contradiction.content)
        files.append(contradiction.path)  # last, so that running a test twice cannot disturb the expected run
    report = f"/tmp/{rng.getrandbits(64):016x}/{rng.getrandbits(64):016x}.xml"
    return Exam({**tests, **added}, tuple(files), canary, contradiction, report)


def _to_double(verifier: Verifier, files: Sequence[str], rng: random.Random) -> frozenset[str]:
    """The files of tests that the change is to mend, and a few others; to parse all of a large suite takes seconds."""
    mended = sorted({test.split("::", 1)[0] for test in verifier.fail_to_pass})
    others = [path for path in files if path not in mended]
    return frozenset(
        rng.sample(mended, min(len(mended), MOST_MENDED)) + rng.sample(others, min(len(others), MOST_OTHERS))
    )
