"""Task directories and task sets, read into bundles."""

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from farm.core.framework import FRAMEWORKS, fault_of, holder
from farm.core.retrieval import Retrieval, gather
from farm.core.task import Artifact, Collect, GradingMode, ReportFormat, Separate, Task, Verifier
from farm.tasks import compose
from farm.tasks.bundle import BundleFile, TaskBundle
from farm.tasks.environment import composed_of, healthcheck_of, users_of
from farm.tasks.errors import TaskError
from farm.tasks.files import MANIFEST, below, read_instruction, required, text
from farm.tasks.manifest import FarmTable, Manifest, parse_manifest
from farm.tasks.original import restore
from farm.tasks.release_pair import prepare
from farm.tasks.sources import OnProgress
from farm.tasks.steps import in_steps
from farm.tasks.unified import PatchError, parse_patch
from sandboxes.dockerfile import instructions
from sandboxes.errors import SpecError
from sandboxes.tools import Toolset

IN_WORKSPACE = "workspace/"
"""Below ``tests/``: what grading puts into the workspace of a pytest task that is no release pair."""

MAX_TASK_BYTES = 256 * 1024 * 1024
DEEPEST = 100
_DEFAULT_WORKSPACE = "/app"
_TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127})?")
_PASSED_OVER = frozenset({"__pycache__", ".DS_Store", ".git"})


def load_taskset(path: Path, *, state_dir: Path, on_progress: OnProgress | None = None) -> tuple[TaskBundle, ...]:
    """The tasks of a task set, in order; every one is prepared, so that loading it again needs no network.

    A task set is a directory of task directories (sorted by name), a single task directory, or a ``.jsonl`` file of
    ``{"path": DIRECTORY}`` rows, relative to that file and inside its directory. Raises TaskError.
    """
    bundles = tuple(
        load_task(directory, state_dir=state_dir, on_progress=on_progress) for directory in task_directories(path)
    )
    seen: dict[str, str] = {}
    for bundle in bundles:
        if bundle.task.id in seen:
            raise TaskError(path, f"two tasks are named {bundle.task.id}", "rename one of them")
        seen[bundle.task.id] = bundle.task.digest
    return bundles


def task_directories(path: Path) -> tuple[Path, ...]:
    """Where the tasks of a set are. Raises TaskError."""
    try:
        found = _directories(path)
    except OSError as error:
        raise TaskError(path, error.strerror or str(error), "name a directory of tasks or a .jsonl file") from None
    if not found:
        raise TaskError(path, "holds no task", f"name a directory whose sub-directories hold a {MANIFEST}")
    return found


def _directories(path: Path) -> tuple[Path, ...]:
    if path.is_dir():
        alone = (path / MANIFEST).is_file()
        return (path,) if alone else tuple(sorted(child for child in path.iterdir() if (child / MANIFEST).is_file()))
    if path.is_file() and path.suffix == ".jsonl":
        return tuple(_rows(path))
    what = "not a task set" if path.exists() else "no such file or directory"
    raise TaskError(path, what, "name a directory of tasks or a .jsonl file")


def load_task(path: Path, *, state_dir: Path, on_progress: OnProgress | None = None) -> TaskBundle:
    """One task directory in the Harbor layout, parsed and prepared. Raises TaskError."""
    files = read_directory(path)
    manifest = parse_manifest(path / MANIFEST, required(path, files, MANIFEST, "write it").content)
    instruction = "" if manifest.steps else read_instruction(path, files, "instruction.md")
    environment = below(files, "environment/")
    composed = composed_of(path, environment)
    docker_image = manifest.environment.docker_image or composed.image
    if docker_image is None and "Dockerfile" not in environment:
        raise TaskError(path / "environment/Dockerfile", "missing", "add it, or name environment.docker_image")
    tests: Mapping[str, BundleFile] = below(files, "tests/")
    gold = None
    farm = manifest.metadata.farm
    report = _report(farm)
    if farm.source is not None:
        prepared = prepare(farm.source, state_dir=state_dir, on_progress=on_progress)
        tests, gold = prepared.tests, prepared.gold
    elif farm.original is not None:
        prepared = restore(farm.original, state_dir=state_dir, on_progress=on_progress)
        tests, gold = prepared.tests, prepared.gold
    elif report is not ReportFormat.REWARD_FILE:
        tests = below(files, f"tests/{IN_WORKSPACE}")
    workspace = farm.workspace or manifest.environment.workdir or composed.workdir or _workspace(environment)
    users = users_of(path / MANIFEST, manifest, environment, report)
    verifier_environment = _verifier_environment(manifest, files)
    separate = _separate(path, manifest, docker_image or image_name(_task_id(path, manifest), environment), files)
    task = Task(
        id=_task_id(path, manifest),
        digest=digest_of(files),
        instruction=instruction,
        image=docker_image or image_name(_task_id(path, manifest), environment),
        workspace=workspace,
        verifier=replace(_verifier(path, files, manifest, report, separate), user=users.tests),
        agent_timeout_s=manifest.agent.timeout_sec,
        build_timeout_s=manifest.environment.build_timeout_sec,
        max_turns=farm.max_turns if farm.retrieval is None else farm.retrieval.max_turns,
        tools=_tools(path, farm),
        cpus=manifest.environment.cpus,
        memory_mib=manifest.environment.memory_mb,
        storage_mib=manifest.environment.storage_mb,
        network=manifest.network if farm.retrieval is None else (),
        retrieval=_retrieval(farm, workspace),
        env=tuple(sorted({**composed.env, **manifest.environment.env}.items())),
        healthcheck=healthcheck_of(manifest.environment.healthcheck),
        user=users.policy,
    )
    bundle = TaskBundle(
        task=task,
        environment={} if docker_image else environment,
        tests=tests,
        gold=gold,
        solution=below(files, "solution/"),
        test_patch=_test_patch(path, files, farm),
        solution_env=tuple(sorted(manifest.solution.env.items())),
        verifier_environment=verifier_environment,
    )
    if manifest.steps:
        return in_steps(path, manifest, files, bundle)
    _refuse_unjudgeable(path, bundle)
    return bundle


def read_directory(path: Path) -> dict[str, BundleFile]:
    """The files that define a task. A symlink is refused: what it names may lie anywhere. Raises TaskError."""
    files: dict[str, BundleFile] = {}
    room = MAX_TASK_BYTES
    tops = (path / top for top in (MANIFEST, "instruction.md", "environment", "tests", "solution", "steps"))
    try:
        found = sorted(chain.from_iterable(_walk(top) for top in tops))
    except OSError as error:
        place = Path(error.filename).relative_to(path).as_posix()
        raise TaskError(path, f"{place[:100]!a} cannot be read ({error.strerror})", "make it readable") from None
    for file in found:
        name = file.relative_to(path).as_posix()
        if name.count("/") > DEEPEST:
            raise TaskError(path, f"{name[:100]!a} lies more than {DEEPEST} directories deep", "lay it flatter")
        if not _is_unicode(name):
            raise TaskError(path, f"{name[:100]!a} is no name in UTF-8", "rename it")
        if file.is_symlink():
            raise TaskError(file, "a symlink", "put the file itself there")
        if not file.is_file():
            raise TaskError(file, "not a regular file", "remove it")
        try:
            room -= file.stat().st_size
            if room < 0:
                raise TaskError(path, f"holds more than {MAX_TASK_BYTES >> 20} MiB", "fetch large files in the build")
            files[name] = BundleFile(file.read_bytes(), os.access(file, os.X_OK) and bool(file.stat().st_mode & 0o100))
        except OSError as error:
            raise TaskError(file, f"cannot be read ({error.strerror})", "make it readable") from None
    return files


def digest_of(files: Mapping[str, BundleFile]) -> str:
    """SHA-256 over names, modes and contents; what the digest of a task, and of its environment, is."""
    total = hashlib.sha256()
    for name in sorted(files):
        file = files[name]
        total.update(f"{len(name.encode())}:{name}:{int(file.executable)}:{len(file.content)}:".encode())
        total.update(file.content)
    return total.hexdigest()


def image_name(task_id: str, environment: Mapping[str, BundleFile]) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", task_id.lower()).strip("-")
    return f"farm-task-{slug}:{digest_of(environment)[:12]}"


def _rows(path: Path) -> Iterator[Path]:
    home = path.resolve().parent
    for number, line in enumerate(text(path, path.read_bytes()).splitlines(), start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            row = json.loads(line)
            name = row["path"]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise TaskError(path, "not a row", 'write {"path": "DIRECTORY"}', key=place) from None
        directory = home / str(name)
        try:
            inside = isinstance(name, str) and directory.resolve().is_relative_to(home)
            there = inside and (directory / MANIFEST).is_file()
        except (ValueError, OSError):  # a zero byte, half a surrogate pair, a name too long for a path
            raise TaskError(path, f"{name[:100]!r} can be no path", "correct it", key=place) from None
        if not inside:
            raise TaskError(path, f"{name!r} leaves the directory of the file", "name a path inside it", key=place)
        if not there:
            raise TaskError(path, f"{name!r} holds no {MANIFEST}", "correct the path", key=place)
        yield directory


def _walk(top: Path) -> Iterator[Path]:
    left = [top]
    while left:
        path = left.pop()
        if path.is_symlink() or path.is_file():
            yield path
        elif path.is_dir():
            left += [child for child in path.iterdir() if child.name not in _PASSED_OVER and child.suffix != ".pyc"]
        elif path.exists():
            yield path


def _is_unicode(name: str) -> bool:
    """Whether a file's name was in UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _task_id(path: Path, manifest: Manifest) -> str:
    return checked_name(path / MANIFEST, manifest.task.name or path.resolve().name, key="task.name")


def checked_name(file: Path, name: str, *, key: str = "") -> str:
    """Raises TaskError, about ``file``, for a name that no task may have."""
    if not _TASK_ID.fullmatch(name):
        raise TaskError(file, f"{name!r} is no task name", "use letters, digits, dots and dashes", key=key)
    return name


def _report(farm: FarmTable) -> ReportFormat:
    if farm.report is not None:
        return farm.report
    expected = farm.fail_to_pass or farm.pass_to_pass or farm.source or farm.original
    return ReportFormat.PYTEST if expected else ReportFormat.REWARD_FILE


def _verifier(
    path: Path, files: Mapping[str, BundleFile], manifest: Manifest, report: ReportFormat, separate: Separate | None
) -> Verifier:
    farm = manifest.metadata.farm
    default = FRAMEWORKS[report].command if report.names_tests else ""
    return Verifier(
        mode=farm.grading if separate is None else GradingMode.SEPARATE,
        command=default if farm.test_command is None else farm.test_command,
        report=report,
        fail_to_pass=_ids(path, files, "fail_to_pass", farm.fail_to_pass, report),
        pass_to_pass=_ids(path, files, "pass_to_pass", farm.pass_to_pass, report),
        protected=farm.protected,
        timeout_s=manifest.verifier.timeout_sec,
        env=tuple(sorted(manifest.verifier.env.items())),
        separate=separate,
    )


def _ids(
    path: Path, files: Mapping[str, BundleFile], key: str, value: tuple[str, ...] | str, report: ReportFormat
) -> tuple[str, ...]:
    """A list, or a file of the task with one id a line; blank lines are passed over. Raises TaskError."""
    where, ids = path / MANIFEST, value
    if isinstance(value, str):
        if value not in files:
            raise TaskError(where, f"{value} is not there", "add the file", key=f"metadata.farm.{key}")
        where = path / value
        ids = tuple(filter(None, text(where, files[value].content).splitlines()))
    for test in ids if report.names_tests else ():
        if fault := fault_of(test, report):
            raise TaskError(where, fault, "correct it", key=f"metadata.farm.{key}")
    return tuple(ids)


def _test_patch(path: Path, files: Mapping[str, BundleFile], farm: FarmTable) -> bytes:
    """Checked here, so that no episode finds out."""
    if farm.test_patch is None:
        return b""
    key = "metadata.farm.test_patch"
    if farm.source is not None:
        raise TaskError(path / MANIFEST, "means nothing beside a source, which brings the tests", "remove it", key=key)
    if farm.test_patch not in files:
        raise TaskError(path / MANIFEST, f"{farm.test_patch} is not there", "add the file", key=key)
    content = files[farm.test_patch].content
    try:
        if not parse_patch(content):
            raise PatchError("empty")
    except PatchError as error:
        raise TaskError(path / farm.test_patch, str(error), "make it anew with git diff --binary") from None
    return content


def _verifier_environment(manifest: Manifest, files: Mapping[str, BundleFile]) -> dict[str, BundleFile]:
    """What a verifier's own image is built of: ``tests/``, where that has a Dockerfile."""
    tests = below(files, "tests/")
    table = manifest.verifier.environment
    named = table is not None and table.docker_image is not None
    return tests if manifest.separate and not named and "Dockerfile" in tests else {}


def _separate(path: Path, manifest: Manifest, image: str, files: Mapping[str, BundleFile]) -> Separate | None:
    """``image`` is the task's own, which the verifier's is a fresh copy of where nothing else is said."""
    if not manifest.separate:
        return None
    if manifest.metadata.farm.report not in (None, ReportFormat.REWARD_FILE):
        raise TaskError(
            path / MANIFEST, "a verifier of its own writes a reward file", "remove it", key="metadata.farm.report"
        )
    if any(f"tests/{name}" in files for name in compose.NAMES):
        raise TaskError(path / "tests" / compose.NAMES[0], "a sandbox is one container", "write tests/Dockerfile")
    built = _verifier_environment(manifest, files)
    given = manifest.verifier.environment
    table = given or manifest.environment
    named = given.docker_image if given is not None else None
    if named is None and built:
        named = image_name(f"{_task_id(path, manifest)}-verifier", built)
    return Separate(
        image=named or image,
        workdir=None if given is None and named is not None else table.workdir,
        artifacts=tuple(Artifact(item.source, item.exclude) for item in manifest.artifacts),
        collect=tuple(Collect(item.command, item.timeout_sec) for item in manifest.verifier.collect),
        brings_tests=named is not None,
        cpus=table.cpus,
        memory_mib=table.memory_mb,
        storage_mib=table.storage_mb,
        env=tuple(sorted(table.env.items())),
    )


def _workspace(environment: Mapping[str, BundleFile]) -> str:
    """The image's last absolute WORKDIR, where the Dockerfile says it plainly; Harbor's custom otherwise."""
    dockerfile = environment["Dockerfile"].content.decode(errors="replace") if "Dockerfile" in environment else ""
    lines = dockerfile.split("\n")
    named = [
        lines[item.first].split(None, 1)[-1].strip() for item in instructions(dockerfile) if item.name == "WORKDIR"
    ]
    plain = [name for name in named if name.startswith("/") and "$" not in name and posixpath.normpath(name) != "/"]
    return posixpath.normpath(plain[-1]) if plain else _DEFAULT_WORKSPACE


def _retrieval(farm: FarmTable, workspace: str) -> Retrieval | None:
    table = farm.retrieval
    if table is None:
        return None
    expected = gather([(file.path, file.lines) for file in table.expected], workspace)
    return Retrieval(table.calls_per_turn, table.max_turns, table.beta, expected)


def _tools(path: Path, farm: FarmTable) -> tuple[str, ...]:
    try:
        tools = Toolset.of(farm.tools)
        if farm.retrieval is not None:
            tools.only_reading()
    except SpecError as error:
        raise TaskError(path / MANIFEST, str(error), "correct the name", key="metadata.farm.tools") from None
    return farm.tools


def _refuse_unjudgeable(path: Path, bundle: TaskBundle) -> None:
    """What the verifier could never judge is found here, not by the first episode."""
    if bundle.task.retrieval is not None:
        return
    verifier = bundle.task.verifier
    if verifier.report is ReportFormat.REWARD_FILE:
        if "test.sh" not in bundle.tests and not (verifier.separate and verifier.separate.brings_tests):
            raise TaskError(path / "tests/test.sh", "missing", "add it, or name metadata.farm.fail_to_pass")
        return
    if verifier.report is ReportFormat.EXIT_CODE:
        if not verifier.command:
            raise TaskError(path / MANIFEST, "missing", "add it", key="metadata.farm.test_command")
        if verifier.fail_to_pass or verifier.pass_to_pass:
            raise TaskError(path / MANIFEST, "an exit code names no test", "remove the ids", key="metadata.farm.report")
        return
    key = "metadata.farm.fail_to_pass"
    if not verifier.fail_to_pass:
        raise TaskError(path / MANIFEST, "no test is expected to pass", "name at least one", key=key)
    twice = sorted({*verifier.fail_to_pass} & {*verifier.pass_to_pass})
    if twice:
        raise TaskError(path / MANIFEST, f"{twice[0]} is in pass_to_pass too", "keep it in one list", key=key)
    framework = FRAMEWORKS[verifier.report]
    for placeholder in framework.placeholders:
        if placeholder not in verifier.command:
            raise TaskError(path / MANIFEST, f"lacks {placeholder}", "add it", key="metadata.farm.test_command")
    if framework.in_files and (bundle.gold is not None or bundle.tests) and not bundle.test_patch:
        for test in (*verifier.fail_to_pass, *verifier.pass_to_pass):
            file = holder(test)
            if file not in bundle.tests:
                raise TaskError(path / MANIFEST, f"{test}: the tests hold no {file}", "correct the id", key=key)
