"""``tools``: what a call costs, through the whole path from a policy's words to the result it reads."""

import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import cycle

import docker
from docker.models.containers import Container

from farm.bench import docker_baseline
from farm.bench.interleave import Act, Side, in_turn
from farm.bench.results import BenchError, Figure
from farm.bench.tool_calls import EDIT, BenchCalls, written
from sandboxes import Runtime, Sandbox, SandboxSpec
from sandboxes.search.index_store import IndexStore

BASELINE = "docker_exec"
LINES = 1000
TREE = "/usr/lib"
"""What ``grep`` and ``glob`` look through: some 4,400 files in the farm's base image, 1,400 of them Python's."""

_FILE = "/tmp/bench.py"
_TEXT = "".join(f"    value_{number} = compute({number}, base=10)\n" for number in range(LINES))
_EDITED = range(100, LINES, 200)
"""The lines that ``multi_edit`` and ``apply_patch`` change in one call."""
_CALLS, _DOCKER_CALLS, _FILE_CALLS, _CALLS_EACH, _SEARCHES = 100, 10, 50, 20, 20

_VIEW = written(command="view", path=_FILE)
_WRITE = written(command="create", path=_FILE, file_text=_TEXT)
_JOB = written(command="echo begun", background=True)
_JOB_NUMBER = re.compile(r"\[job (\d+) ")
_GREP = written(pattern=r"def \w*timeout", path=TREE, glob="*.py", output_mode="content")
_DOCKER_GREP = ["grep", "-rnE", "--include=*.py", r"def \w*timeout", TREE]
_GLOB = written(pattern="*parse*.py", path=TREE)
_DOCKER_FIND = ["find", TREE, "-name", "*parse*.py"]
_SEARCH = tuple(
    written(query=query)
    for query in ("where are errors raised", "read the configuration", "escape text for output", "compare two values")
)
_READS = (
    *((EDIT, written(command="view", path=_FILE, view_range=[first, first + 99])) for first in (1, 301, 601)),
    *(("grep", written(pattern=word)) for word in ("import", "return", "class")),
    *(("glob", written(pattern=pattern)) for pattern in ("*.py", "*.md")),
)


def _line(number: int, function: str) -> str:
    return f"    value_{number} = {function}({number}, base=10)"


def _there_and_back(change: Callable[[str, str], str]) -> tuple[str, str]:
    """Arguments of calls in turn: of one that changes a function's name, and of one that changes it back."""
    return change("compute", "changed"), change("changed", "compute")


def _str_replace(old: str, new: str) -> str:
    return written(command="str_replace", path=_FILE, old_str=_line(500, old), new_str=_line(500, new))


def _multi_edit(old: str, new: str) -> str:
    edits = [{"old_string": _line(number, old), "new_string": _line(number, new)} for number in _EDITED]
    return written(file_path=_FILE, edits=edits)


def _apply_patch(old: str, new: str) -> str:
    hunks = [f"@@\n-{_line(number, old)}\n+{_line(number, new)}\n" for number in _EDITED]
    return written(input=f"*** Begin Patch\n*** Update File: {_FILE}\n{''.join(hunks)}*** End Patch\n")


async def measure_tools(
    spec: SandboxSpec,
    runtime: Runtime,
    library: IndexStore,
    *,
    docker_host: str | None,
    sandboxes: int,
    rounds: int,
    on_round: Callable[[int], None],
) -> tuple[Figure, ...]:
    """``rounds`` times, in turn: calls one after the other in one sandbox, execs in one container, and calls in
    ``sandboxes`` sandboxes at once. The file has ``LINES`` lines, and the working directory of ``spec`` is a
    repository, where code is searched by meaning."""
    hands, codex, claude = BenchCalls(library=library), BenchCalls("codex"), BenchCalls("claude-code")
    async with AsyncExitStack() as undo:
        daemon = await undo.enter_async_context(docker_baseline.connect(docker_host, 1))
        made = await undo.enter_async_context(daemon.container(spec.image, spec.limits))
        crowd = [await undo.enter_async_context(runtime.scope(spec)) for _ in range(sandboxes)]
        box = crowd[0]
        await hands.use(box, EDIT, _WRITE)

        def using(tool: str, *arguments: str, by: BenchCalls = hands, times: int = _FILE_CALLS) -> Side:
            return Side(_uses(by, box, tool, arguments), times)

        def by_docker(*argv: str) -> Side:
            return Side(_execs(daemon, made, argv), _DOCKER_CALLS)

        sides = (
            true := Side(_calls(hands, box), _CALLS),
            docker_true := by_docker("sh", "-c", "true"),
            view := using(EDIT, _VIEW),
            edit := using(EDIT, *_there_and_back(_str_replace)),
            write := using(EDIT, _WRITE),
            multi_edit := using("MultiEdit", *_there_and_back(_multi_edit), by=claude),
            apply_patch := using("apply_patch", *_there_and_back(_apply_patch), by=codex),
            grep := using("grep", _GREP, times=_SEARCHES),
            docker_grep := by_docker(*_DOCKER_GREP),
            glob := using("glob", _GLOB, times=_SEARCHES),
            docker_find := by_docker(*_DOCKER_FIND),
            search := using("codebase_search", *_SEARCH, times=_SEARCHES),
            job := Side(_job(hands, box), _SEARCHES),
            together := Side(lambda: hands.use_at_once(box, _READS), _SEARCHES),
            one_by_one := Side(_one_by_one(hands, box), _SEARCHES),
            at_once := Side(_calls(hands, *crowd), _CALLS_EACH * sandboxes, sandboxes),
        )
        await in_turn(sides, rounds, on_round)
    return (
        Figure("bash_true_p50_ms", true.p50_ms, "ms", docker_true.p50_ms, BASELINE),
        Figure("bash_true_cpu_ms", true.cpu_ms, "ms", docker_true.cpu_ms, BASELINE),
        Figure("view_p50_ms", view.p50_ms, "ms"),
        Figure("edit_p50_ms", edit.p50_ms, "ms"),
        Figure("write_p50_ms", write.p50_ms, "ms"),
        Figure("multi_edit_p50_ms", multi_edit.p50_ms, "ms"),
        Figure("apply_patch_p50_ms", apply_patch.p50_ms, "ms"),
        Figure("grep_p50_ms", grep.p50_ms, "ms", docker_grep.p50_ms, f"{BASELINE}_grep"),
        Figure("glob_p50_ms", glob.p50_ms, "ms", docker_find.p50_ms, f"{BASELINE}_find"),
        Figure("codebase_search_p50_ms", search.p50_ms, "ms"),
        Figure("job_p50_ms", job.p50_ms, "ms"),
        Figure("eight_reads_p50_ms", together.p50_ms, "ms", one_by_one.p50_ms, "one_by_one"),
        Figure("calls_per_s", at_once.per_s, "1/s"),
    )


def _calls(hands: BenchCalls, *boxes: Sandbox) -> Act:
    """A call in whichever of ``boxes`` is idle the longest."""
    idle = deque(boxes)

    async def call() -> float:
        box = idle.popleft()
        took_s = await hands.run_true(box)
        idle.append(box)
        return took_s

    return call


def _uses(hands: BenchCalls, box: Sandbox, tool: str, arguments: Sequence[str]) -> Act:
    following = cycle(arguments)

    async def call() -> float:
        return await hands.use(box, tool, next(following))

    return call


def _job(hands: BenchCalls, box: Sandbox) -> Act:
    """A command begun in the background, and by a second call its end heard."""

    async def call() -> float:
        began = time.perf_counter()
        told = _JOB_NUMBER.search(await hands.hear(box, "bash", _JOB))
        if told is None:
            raise BenchError(f"no job was begun in sandbox {box.id}")
        await hands.hear(box, "bash", written(job=int(told[1]), wait_s=10))
        return time.perf_counter() - began

    return call


def _one_by_one(hands: BenchCalls, box: Sandbox) -> Act:
    async def call() -> float:
        return sum([await hands.use(box, *read) for read in _READS])

    return call


def _execs(daemon: docker_baseline.Docker, made: Container, argv: Sequence[str]) -> Act:
    def timed(client: docker.DockerClient) -> float:
        began = time.perf_counter()
        docker_baseline.execute(client, made, argv)
        return time.perf_counter() - began

    return lambda: daemon.run(timed)
