"""What a pytest verifier is made to run: the expected tests, and those that give a liar away."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from shlex import quote

from farm.core.task import Verifier
from farm.grading.canary import Canary, make_canary, plant
from farm.grading.contradiction import Contradiction, make_contradiction
from farm.tasks.bundle import BundleFile


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
    canary = make_canary(files, taken, rng)
    sources = {path: file.content for path, file in tests.items()}
    contradiction = make_contradiction(expected, sources, taken | {canary.path}, rng)
    added = {canary.path: BundleFile(canary.content)}
    planted = []
    for path in files:
        grown = plant(path, sources[path], rng) if path in sources else None
        if grown is not None:
            added[path] = BundleFile(grown[0], tests[path].executable)
            planted.append(grown[1])
    canary = replace(canary, must_not_pass=tuple(planted))
    files.insert(rng.randrange(len(files) + 1), canary.path)
    if contradiction is not None:
        added[contradiction.path] = BundleFile(contradiction.content)
        files.append(contradiction.path)  # last, so that running a test twice cannot disturb the expected run
    report = f"/tmp/{rng.getrandbits(64):016x}/{rng.getrandbits(64):016x}.xml"
    return Exam({**tests, **added}, tuple(files), canary, contradiction, report)
