"""``tools``: the cost of a tool call, from the policy's text to the result that the policy reads."""

import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import cycle

import docker
from docker.models.containers import Container

from farm.bench import docker_containers
from farm.bench.interleave import Act, Side, in_turn
from farm.bench.results import BenchError, Figure
from farm.bench.tool_calls import EDIT, BenchCalls, to_json
from sandboxes import Runtime, Sandbox, SandboxSpec
from sandboxes.search.index_store import IndexStore

BASELINE = "docker_exec"
LINES = 1000
TREE = "/usr/lib"
"""The tree that ``grep`` and ``glob`` search: about 4,400 files in the farm's base image, 1,400 of them Python's."""

_FILE = "/tmp/bench.py"
_TEXT = "".join(f"    value_{number} = compute({number}, base=10)\n" for number in range(LINES))
_CHANGED_LINES = range(100, LINES, 200)
"""The lines that one call of ``multi_edit`` or ``apply_patch`` changes."""
_CALLS, _DOCKER_CALLS, _FILE_CALLS, _CALLS_EACH, _SEARCHES = 100, 10, 50, 20, 20

_VIEW = to_json(command="view", path=_FILE)
_WRITE = to_json(command="create", path=_FILE, file_text=_TEXT)
_JOB = to_json(command="echo begun", background=True)
_JOB_NUMBER = re.compile(r"\[job (\d+) ")
_GREP = to_json(pattern=r"def \w*timeout", path=TREE, glob="*.py", output_mode="content")
_DOCKER_GREP = ["grep", "-rnE", "--include=*.py", r"def \w*timeout", TREE]
_GLOB = to_json(pattern="*parse*.py", path=TREE)
_DOCKER_FIND = ["find", TREE, "-name", "*parse*.py"]
_SEARCH = tuple(
    to_json(query=query)
    for query in ("where are errors raised", "read the configuration", "escape text for output", "compare two values")
)
_READS = (
    *((EDIT, to_json(command="view", path=_FILE, view_range=[first, first + 99])) for first in (1, 301, 601)),
    *(("grep", to_json(pattern=word)) for word in ("import", "return", "class")),
    *(("glob", to_json(pattern=pattern)) for pattern in ("*.py", "*.md")),
)


def _line(number: int, function: str) -> str:
    return f"    value_{number} = {function}({number}, base=10)"


def _rename_and_back(change: Callable[[str, str], str]) -> tuple[str, str]:
    """Return arguments of two alternating calls: one renames a function, the other renames it back."""
    return change("compute", "changed"), change("changed", "compute")


def _str_replace(old: str, new: str) -> str:
    return to_json(command="str_replace", path=_FILE, old_str=_line(500, old), new_str=_line(500, new))


def _multi_edit(old: str, new: str) -> str:
    edits = [{"old_string": _line(number, old), "new_string": _line(number, new)} for number in _CHANGED_LINES]
    return to_json(file_path=_FILE, edits=edits)


def _apply_patch(old: str, new: str) -> str:
    hunks = [f"@@\n-{_line(number, old)}\n+{_line(number, new)}\n" for number in _CHANGED_LINES]
    return to_json(input=f"*** Begin Patch\n*** Update File: {_FILE}\n{''.join(hunks)}*** End Patch\n")


async def measure_tools(
    spec: SandboxSpec,
    runtime: Runtime,
    index_store: IndexStore,
    *,
    docker_host: str | None,
    sandboxes: int,
    rounds: int,
    on_round: Callable[[int], None],
) -> tuple[Figure, ...]:
    """Alternate for ``rounds`` rounds: sequential calls in a sandbox, execs in a container, and calls in many
    sandboxes.

    The last side uses ``sandboxes`` sandboxes at once. The edited file has ``LINES`` lines. The working directory of
    ``spec`` is a repository, which ``codebase_search`` searches. The keyword parameters are the options of the command.
    """
    default_calls, codex, claude = BenchCalls(index_store=index_store), BenchCalls("codex"), BenchCalls("claude-code")
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(docker_containers.connect(docker_host, 1))
        container = await stack.enter_async_context(daemon.container(spec.image, spec.limits))
        all_sandboxes = [await stack.enter_async_context(runtime.scope(spec)) for _ in range(sandboxes)]
        sandbox = all_sandboxes[0]
        await default_calls.time_call(sandbox, EDIT, _WRITE)

        def using(tool: str, *arguments: str, calls: BenchCalls = default_calls, times: int = _FILE_CALLS) -> Side:
            return Side(_uses(calls, sandbox, tool, arguments), times)

        def by_docker(*argv: str) -> Side:
            return Side(_execs(daemon, container, argv), _DOCKER_CALLS)

        sides = (
            true := Side(_calls(default_calls, sandbox), _CALLS),
            docker_true := by_docker("sh", "-c", "true"),
            view := using(EDIT, _VIEW),
            edit := using(EDIT, *_rename_and_back(_str_replace)),
            write := using(EDIT, _WRITE),
            multi_edit := using("MultiEdit", *_rename_and_back(_multi_edit), calls=claude),
            apply_patch := using("apply_patch", *_rename_and_back(_apply_patch), calls=codex),
            grep := using("grep", _GREP, times=_SEARCHES),
            docker_grep := by_docker(*_DOCKER_GREP),
            glob := using("glob", _GLOB, times=_SEARCHES),
            docker_find := by_docker(*_DOCKER_FIND),
            search := using("codebase_search", *_SEARCH, times=_SEARCHES),
            job := Side(_job(default_calls, sandbox), _SEARCHES),
            together := Side(lambda: default_calls.time_concurrent(sandbox, _READS), _SEARCHES),
            one_by_one := Side(_one_by_one(default_calls, sandbox), _SEARCHES),
            at_once := Side(_calls(default_calls, *all_sandboxes), _CALLS_EACH * sandboxes, sandboxes),
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


def _calls(default_calls: BenchCalls, *sandboxes: Sandbox) -> Act:
    """Return an operation that makes a call in the sandbox that has been idle the longest."""
    idle = deque(sandboxes)

    async def call() -> float:
        sandbox = idle.popleft()
        took_s = await default_calls.run_true(sandbox)
        idle.append(sandbox)
        return took_s

    return call


def _uses(default_calls: BenchCalls, sandbox: Sandbox, tool: str, arguments: Sequence[str]) -> Act:
    following = cycle(arguments)

    async def call() -> float:
        return await default_calls.time_call(sandbox, tool, next(following))

    return call


def _job(default_calls: BenchCalls, sandbox: Sandbox) -> Act:
    """Return an operation that starts a background job and waits for its end by a second call."""

    async def call() -> float:
        began = time.perf_counter()
        job = _JOB_NUMBER.search(await default_calls.result_text(sandbox, "bash", _JOB))
        if job is None:
            raise BenchError(f"sandbox {sandbox.id} started no background job")
        await default_calls.result_text(sandbox, "bash", to_json(job=int(job[1]), wait_s=10))
        return time.perf_counter() - began

    return call


def _one_by_one(default_calls: BenchCalls, sandbox: Sandbox) -> Act:
    async def call() -> float:
        return sum([await default_calls.time_call(sandbox, *read) for read in _READS])

    return call


def _execs(daemon: docker_containers.Docker, container: Container, argv: Sequence[str]) -> Act:
    def timed(client: docker.DockerClient) -> float:
        began = time.perf_counter()
        docker_containers.execute(client, container, argv)
        return time.perf_counter() - began

    return lambda: daemon.run(timed)
