"""``farm tasks make retrieval``: turn a task that asks for a change into one that asks for the lines to change."""

import asyncio
import errno
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tomlkit

from farm.core import retrieval
from farm.core.change import Change, ChangeKind
from farm.core.retrieval import FileLines, Retrieval, gather
from farm.core.toml import read_toml
from farm.grading import GradingError
from farm.task_generation.searchable_lines import changed_lines, is_unfindable
from farm.task_generation.services import GenerationServices
from farm.task_generation.task_directory import ShellTemplate, TaskDirectory, bundle_files
from farm.task_validation.validate import gold_change
from farm.tasks import TaskBundle, TaskError, ensure_image, load_task, sandbox_spec
from farm.tasks.directory import read_directory
from farm.tasks.files import MANIFEST, below
from farm.tasks.schema.manifest import OF_CHANGES
from farm.tasks.sdist.release_pair import is_test
from sandboxes.errors import ImageError, PathError, SpecError
from sandboxes.interface import Runtime

SUFFIX = "-retrieval"

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
    """A request for retrieval tasks of the tasks at ``sources``.

    Each is written below ``out`` under the name of its source with SUFFIX. The other fields are those of ``Retrieval``.
    """

    sources: Sequence[Path]
    out: Path
    calls_per_turn: int = 8
    max_turns: int = 4
    beta: float = 0.5


@dataclass(frozen=True, slots=True)
class RetrievalTask:
    """A written task: its directory, and the number of expected files and of line ranges in them."""

    directory: Path
    files: int
    ranges: int


@dataclass(slots=True)
class RetrievalSummary:
    """The written tasks, the directories that existed already, and one line for each source that gave no task."""

    made: list[RetrievalTask] = field(default_factory=list)
    there: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


async def make_retrieval(spec: RetrievalSpec, services: GenerationServices) -> RetrievalSummary:
    """Make the tasks whose directories do not exist yet.

    Each is published in one step, so a stopped call can be repeated. Faults of single tasks are in the summary. Raises
    TaskError if two sources have the same name, and RuntimeUnavailable and other errors of ``sandboxes`` for faults of
    the machine.
    """
    summary = RetrievalSummary()
    targets: dict[Path, Path] = {}
    for source in spec.sources:
        directory = spec.out / f"{source.resolve().name}{SUFFIX}"
        if targets.setdefault(directory, source).resolve() != source.resolve():
            raise TaskError(source, f"has the same name as {targets[directory]}", "give each its own --out")
    for directory, source in targets.items():
        if directory.exists():
            summary.there.append(directory)
            continue
        try:
            summary.made.append(await _make(spec, source, directory, services))
        except (TaskError, ImageError, SpecError, GradingError) as error:
            summary.problems.append(str(error))
    return summary


async def _make(spec: RetrievalSpec, source: Path, directory: Path, services: GenerationServices) -> RetrievalTask:
    on_progress, state_dir = services.on_progress, services.state_dir
    bundle = load_task(source, state_dir=state_dir, on_progress=on_progress)
    if bundle.task.retrieval is not None:
        raise TaskError(source, "is a retrieval task already", "name a task whose code is to be changed")
    on_progress(f"{bundle.task.id}: image")
    await ensure_image(bundle, services.images)
    on_progress(f"{bundle.task.id}: lines that its gold solution changes")
    expected = await _expected(source, bundle, services.runtime)
    retrieval_task = Retrieval(spec.calls_per_turn, spec.max_turns, spec.beta, expected)
    retrieval_directory(source, bundle, retrieval_task).publish(
        directory, lambda stage: load_task(stage, state_dir=state_dir)
    )
    return RetrievalTask(directory, len(expected), sum(len(file.lines) for file in expected))


async def _expected(source: Path, bundle: TaskBundle, runtime: Runtime) -> tuple[FileLines, ...]:
    """Return the lines that the gold solution changes. Raises TaskError if there are none that can be found."""
    gold = await gold_change(bundle, runtime)
    old = await _old_files(bundle, gold, runtime)
    changed: list[tuple[str, list[tuple[int, int]]]] = []
    for file in gold.files:
        if file.path not in old or old[file.path] == file.content or is_unfindable(file.path):
            continue
        lines = await asyncio.to_thread(changed_lines, file.path, old[file.path], file.content)
        if lines is None:
            raise TaskError(source, f"too much of {file.path} is changed to say which lines", "leave the task out")
        if lines:
            changed.append((file.path, lines))
    if not changed:
        fault = "its gold solution changes no existing line except versions, catalogues, comments and white space"
        raise TaskError(source, fault, "leave the task out")
    return gather(changed, bundle.task.workspace)


async def _old_files(bundle: TaskBundle, gold: Change, runtime: Runtime) -> Mapping[str, bytes]:
    """Read the changed text files from the image, without tests."""
    old: dict[str, bytes] = {}
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "making"})) as sandbox:
        for file in gold.files:
            if file.kind is ChangeKind.SYMLINK or is_test(file.path) or file.path in bundle.tests:
                continue
            try:
                content = await sandbox.read_file(f"{bundle.task.workspace}/{file.path}")
            except PathError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    raise
                continue
            if b"\0" not in content and b"\0" not in file.content:
                old[file.path] = content
    return old


def retrieval_directory(source: Path, bundle: TaskBundle, wanted: Retrieval) -> TaskDirectory:
    """Return the task directory: the environment of ``source``, and a manifest without the keys that grade a change."""
    files = [{"path": file.path, "lines": [list(lines) for lines in file.lines]} for file in wanted.expected]
    answer = json.dumps({"files": files}) + "\n"
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
        "expected": files,
    }
    test_sh = _TEST_SH.substitute(workspace=repr(bundle.task.workspace), beta=repr(wanted.beta))
    return TaskDirectory(
        manifest=tomlkit.dumps(document),
        instruction=_INSTRUCTION + bundle.task.instruction,
        environment=below(read_directory(source), "environment/"),
        tests=bundle_files({"test.sh": test_sh, "retrieval.py": inspect.getsource(retrieval), "answer.json": answer}),
        solution=bundle_files({"solve.sh": _SOLVE_SH, "answer.json": answer}),
    )
