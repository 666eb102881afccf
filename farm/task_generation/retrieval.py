"""``farm tasks make retrieval``: of a task whose code is to be changed, one whose code is to be found."""

import asyncio
import errno
import inspect
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tomlkit

from farm.core import retrieval
from farm.core.change import Change, ChangeKind
from farm.core.retrieval import FileLines, Retrieval, gather
from farm.core.toml import read_toml
from farm.grading import GradingError
from farm.task_generation.publish import ShellTemplate, publish, write_files
from farm.task_generation.searchable_lines import changed_lines, is_unfindable
from farm.task_validation.validate import gold_change
from farm.tasks import TaskBundle, TaskError, ensure_image, load_task, sandbox_spec
from farm.tasks.files import MANIFEST
from farm.tasks.schema.manifest import OF_CHANGES
from farm.tasks.sdist.release_pair import is_test
from sandboxes.errors import ImageError, PathError, SpecError
from sandboxes.images.store import ImageStore
from sandboxes.interface import Runtime

SUFFIX = "-retrieval"

OnProgress = Callable[[str], None]


_INSTRUCTION = """\
Below is an issue of this repository. Do not resolve it: find the code that whoever resolves it has to change. Name
the files, and in each the ranges of lines that would be removed or rewritten; where lines would only be added, the line
before and the line after them. Leave out tests, and files that are not there yet.

Where you have no tool to answer with, write `{"files": [{"path": "…", "lines": [[first, last], …]}, …]}` to
/tmp/answer.json.

---

"""

_TEST_SH = ShellTemplate("""\
#!/bin/bash
# The verifier where plain Harbor runs this task: it reads /tmp/answer.json. The farm judges the answer by itself.
mkdir -p /logs/verifier
echo 0 > /logs/verifier/reward.txt
PYTHONPATH=/tests python3 -B - <<'END'
import json

from retrieval import gather, score


def read(path):
    named = []
    answer = json.load(open(path))
    assert set(answer) == {"files"}
    for file in answer["files"]:
        assert set(file) == {"path", "lines"} and type(file["path"]) is str
        ranges = [(first, last) for first, last in file["lines"]]
        assert all(type(first) is type(last) is int and 1 <= first <= last for first, last in ranges)
        named.append((file["path"], ranges))
    return gather(named, @workspace)


reward = score(read("/tests/answer.json"), read("/tmp/answer.json"), @beta).reward
open("/logs/verifier/reward.txt", "w").write(f"{reward}\\n")
END
""")

_SOLVE_SH = """\
#!/bin/bash
# The known answer where plain Harbor runs this task.
cp "$(dirname "$0")/answer.json" /tmp/answer.json
"""


@dataclass(frozen=True, slots=True)
class RetrievalSpec:
    """What to make of the tasks at ``sources``, each below ``out`` by its name and SUFFIX; else as in ``Retrieval``."""

    sources: Sequence[Path]
    out: Path
    calls_per_turn: int = 8
    max_turns: int = 4
    beta: float = 0.5


@dataclass(frozen=True, slots=True)
class RetrievalTask:
    """One task, with so many expected files, and ranges of lines in them."""

    directory: Path
    files: int
    ranges: int


@dataclass(slots=True)
class RetrievalSummary:
    """``there``: directories that an earlier call made. ``problems``: why nothing came of a source, one line each."""

    made: list[RetrievalTask] = field(default_factory=list)
    there: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


async def make_retrieval(
    wish: RetrievalSpec, *, state_dir: Path, images: ImageStore, runtime: Runtime, say: OnProgress
) -> RetrievalSummary:
    """Make those that are not there yet; each is written in one step, so that whoever is stopped may begin again.

    Raises TaskError where two sources have one name, RuntimeUnavailable and other errors of ``sandboxes`` for what is
    wrong with the machine.
    """
    outcome = RetrievalSummary()
    wanted: dict[Path, Path] = {}
    for source in wish.sources:
        directory = wish.out / f"{source.resolve().name}{SUFFIX}"
        if wanted.setdefault(directory, source).resolve() != source.resolve():
            raise TaskError(source, f"has the name of {wanted[directory]}", "make the two below places of their own")
    for directory, source in wanted.items():
        if directory.exists():
            outcome.there.append(directory)
            continue
        try:
            outcome.made.append(await _make(wish, source, directory, state_dir, images, runtime, say))
        except (TaskError, ImageError, SpecError, GradingError) as error:
            outcome.problems.append(str(error))
    return outcome


async def _make(
    wish: RetrievalSpec,
    source: Path,
    directory: Path,
    state_dir: Path,
    images: ImageStore,
    runtime: Runtime,
    say: OnProgress,
) -> RetrievalTask:
    bundle = load_task(source, state_dir=state_dir, on_progress=say)
    if bundle.task.retrieval is not None:
        raise TaskError(source, "asks for an answer already", "name a task whose code is to be changed")
    say(f"{bundle.task.id}: image")
    await ensure_image(bundle, images)
    say(f"{bundle.task.id}: what its gold solution changes")
    expected = await _expected(source, bundle, runtime)
    wanted = Retrieval(wish.calls_per_turn, wish.max_turns, wish.beta, expected)

    def write(stage: Path) -> None:
        if (source / "environment").is_dir():
            shutil.copytree(source / "environment", stage / "environment")
        write_files(stage, _files(source, bundle, wanted))
        load_task(stage, state_dir=state_dir)

    publish(directory, write)
    return RetrievalTask(directory, len(expected), sum(len(file.lines) for file in expected))


async def _expected(source: Path, bundle: TaskBundle, runtime: Runtime) -> tuple[FileLines, ...]:
    gold = await gold_change(bundle, runtime)
    old = await _old_files(bundle, gold, runtime)
    found: list[tuple[str, list[tuple[int, int]]]] = []
    for file in gold.files:
        if file.path not in old or old[file.path] == file.content or is_unfindable(file.path):
            continue
        lines = await asyncio.to_thread(changed_lines, file.path, old[file.path], file.content)
        if lines is None:
            raise TaskError(source, f"too much of {file.path} is changed to say which lines", "leave the task out")
        if lines:
            found.append((file.path, lines))
    if not found:
        told = "but for versions, catalogues, comments and white space its gold solution changes no line that was there"
        raise TaskError(source, told, "leave the task out")
    return gather(found, bundle.task.workspace)


async def _old_files(bundle: TaskBundle, gold: Change, runtime: Runtime) -> Mapping[str, bytes]:
    """The changed text files of the repository, without tests, as they are in the image."""
    old: dict[str, bytes] = {}
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "making"})) as sandbox:
        for file in gold.files:
            if file.kind is ChangeKind.SYMLINK or is_test(file.path) or file.path in bundle.tests:
                continue
            try:
                content = await sandbox.read_file(f"{bundle.task.workspace}/{file.path}")
            except PathError as fault:
                if fault.errno not in (errno.ENOENT, errno.ENOTDIR):
                    raise
                continue
            if b"\0" not in content and b"\0" not in file.content:
                old[file.path] = content
    return old


def _files(source: Path, bundle: TaskBundle, wanted: Retrieval) -> Mapping[str, str]:
    named = [{"path": file.path, "lines": [list(lines) for lines in file.lines]} for file in wanted.expected]
    answer = json.dumps({"files": named}) + "\n"
    document = read_toml((source / MANIFEST).read_bytes())
    if "name" in document.get("task", {}):
        document["task"]["name"] += SUFFIX
    farm = document.setdefault("metadata", {}).setdefault("farm", {})
    for key in (*OF_CHANGES, "tools"):
        farm.pop(key, None)
    farm["retrieval"] = {
        "calls_per_turn": wanted.calls_per_turn,
        "max_turns": wanted.max_turns,
        "beta": wanted.beta,
        "expected": named,
    }
    places = {"workspace": repr(bundle.task.workspace), "beta": repr(wanted.beta)}
    return {
        MANIFEST: tomlkit.dumps(document),
        "instruction.md": _INSTRUCTION + bundle.task.instruction,
        "tests/test.sh": _TEST_SH.substitute(places),
        "tests/retrieval.py": inspect.getsource(retrieval),
        "tests/answer.json": answer,
        "solution/solve.sh": _SOLVE_SH,
        "solution/answer.json": answer,
    }
