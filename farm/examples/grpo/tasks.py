"""Generate the tasks of the closed loop: a repository of 64 files, and an instruction that names the right one.

A file holds one of eight words. The instruction names the file whose word belongs in ``answer.py``. So a policy has to
read the instruction, then the file. The held-out tasks ask for files that no training task asks for. Each word is the
answer of an eighth of the tasks of both sets.
"""

import argparse
import random
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from farm.examples.grpo.language import ANSWER, PLACES, THINGS, WORDS
from farm.task_generation.task_directory import WORKSPACE, ShellTemplate, TaskDirectory, bundle_files
from farm.tasks import BASE_IMAGE, load_task
from farm.tasks.errors import TaskError

_MANIFEST = """\
schema_version = "1.0"

[agent]
timeout_sec = 300.0

[verifier]
timeout_sec = 60.0

[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 256
storage_mb = 256

[metadata.farm]
workspace = "/workspace"
report = "tap"
test_command = "python3 -S -E tests/check_answer.py > {report}"
max_turns = 4
fail_to_pass = ["::word"]
"""

_DOCKERFILE = ShellTemplate("""\
FROM @base
WORKDIR @workspace
COPY workspace .
""")

_TEST = """\
import sys

sys.path.insert(0, ".")
from answer import WORD

print("1..1")
print("ok 1 - word" if WORD == "{word}" else "not ok 1 - word")
"""

_TEST_SH = ShellTemplate("""\
#!/bin/bash
# The verifier of plain Harbor. The farm runs the expected tests itself and reads their report.
mkdir -p /logs/verifier
cp -R /tests/workspace/. @workspace
cd @workspace && python3 -S -E tests/check_answer.py | grep -q '^ok' && echo 1 > /logs/verifier/reward.txt ||
    echo 0 > /logs/verifier/reward.txt
""")

_SOLVE_SH = ShellTemplate("""\
#!/bin/bash
set -eu
echo 'WORD = "@word"' > @workspace/@answer
""")

_PHRASES = (
    "The word is in {path}. Set WORD in answer.py to it.\n",
    "Set WORD in answer.py to the word that {path} holds.\n",
)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One file of the repository, by the numbers of its place and its thing."""

    place: int
    thing: int

    @property
    def path(self) -> str:
        return f"{PLACES[self.place]}/{THINGS[self.thing]}.txt"


@dataclass(frozen=True, slots=True)
class Family:
    """The word of each file, and the files that are asked for in training and held out."""

    words: dict[Cell, str]
    train: tuple[Cell, ...]
    held_out: tuple[Cell, ...]


def make_family(seed: int) -> Family:
    """Fill the files by a seed. Each place, thing and word occurs equally often in both sets."""
    rng, size = random.Random(seed), len(WORDS)
    held_out = [Cell(place, (place + shift) % size) for shift in (0, 3) for place in range(size)]
    train = [Cell(place, thing) for place in range(size) for thing in range(size)]
    train = [cell for cell in train if cell not in held_out]
    words: dict[Cell, str] = {}
    for cells in (train, held_out):
        dealt = list(WORDS) * (len(cells) // size)
        rng.shuffle(dealt)
        words |= zip(cells, dealt, strict=True)
    return Family(words, tuple(train), tuple(held_out))


def write_tasks(directory: Path, seed: int = 0) -> Family:
    """Write the task sets ``train`` and ``held-out`` below a directory. Raises TaskError if one of them exists."""
    family = make_family(seed)
    for target in (directory / "train", directory / "held-out"):
        if target.exists():
            raise TaskError(target, "exists already", "choose another directory, or remove it")
    files = {f"workspace/{cell.path}": f"{word}\n" for cell, word in sorted(family.words.items())}
    files[f"workspace/{ANSWER}"] = 'WORD = ""\n'
    files["Dockerfile"] = _DOCKERFILE.substitute({"base": BASE_IMAGE, "workspace": WORKSPACE})
    environment = bundle_files(files)
    for name, cells in (("train", family.train), ("held-out", family.held_out)):
        for cell, (number, phrase) in product(cells, enumerate(_PHRASES)):
            word = family.words[cell]
            values = {"workspace": WORKSPACE, "word": word, "answer": ANSWER}
            tests = {"test.sh": _TEST_SH.substitute(values), "workspace/tests/check_answer.py": _TEST.format(word=word)}
            task = TaskDirectory(
                manifest=_MANIFEST,
                instruction=phrase.format(path=cell.path),
                environment=environment,
                tests=bundle_files(tests),
                solution=bundle_files({"solve.sh": _SOLVE_SH.substitute(values)}),
            )
            target = directory / name / f"{PLACES[cell.place]}-{THINGS[cell.thing]}-{number}"
            task.publish(target, lambda stage: load_task(stage, state_dir=stage.parent))
    return family


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the task sets train and held-out.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        write_tasks(arguments.directory, arguments.seed)
    except (TaskError, OSError) as error:
        sys.exit(f"error: {error}")
