"""``tools``: what a call costs, through the whole path from a policy's words to the result it reads."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import cycle

import docker
from docker.models.containers import Container

from farm.bench import containers
from farm.bench.calls import EDIT, Hands, written
from farm.bench.figures import Figure
from farm.bench.rounds import Act, Side, in_turn
from sandboxes import Runtime, Sandbox, SandboxSpec

BASELINE = "docker_exec"
LINES = 1000
_FILE = "/tmp/bench.py"
_TEXT = "".join(f"    value_{number} = compute({number}, base=10)\n" for number in range(LINES))
_CALLS, _DOCKER_CALLS, _FILE_CALLS, _CALLS_EACH = 100, 10, 50, 20

_VIEW = written(command="view", path=_FILE)
_WRITE = written(command="create", path=_FILE, file_text=_TEXT)
_THERE_AND_BACK = (
    written(command="str_replace", path=_FILE, old_str="value_500 = compute(500,", new_str="value_500 = changed(500,"),
    written(command="str_replace", path=_FILE, old_str="value_500 = changed(500,", new_str="value_500 = compute(500,"),
)


async def measure_tools(
    spec: SandboxSpec,
    runtime: Runtime,
    *,
    docker_host: str | None,
    sandboxes: int,
    rounds: int,
    on_round: Callable[[int], None],
) -> tuple[Figure, ...]:
    """``rounds`` times, in turn: calls one after the other in one sandbox, execs in one container, and calls in
    ``sandboxes`` sandboxes at once. The file has ``LINES`` lines."""
    hands = Hands()
    async with AsyncExitStack() as undo:
        daemon = await undo.enter_async_context(containers.connect(docker_host, 1))
        made = await undo.enter_async_context(daemon.container(spec.image, spec.limits))
        crowd = [await undo.enter_async_context(runtime.scope(spec)) for _ in range(sandboxes)]
        await hands.use(crowd[0], EDIT, _WRITE)

        async def exec_by_docker() -> float:
            return await daemon.run(lambda client: _exec_s(client, made))

        true = Side(_calls(hands, crowd[0]), _CALLS)
        docker_true = Side(exec_by_docker, _DOCKER_CALLS)
        view, edit, write = (
            Side(_file_calls(hands, crowd[0], *arguments), _FILE_CALLS)
            for arguments in ((_VIEW,), _THERE_AND_BACK, (_WRITE,))
        )
        at_once = Side(_calls(hands, *crowd), _CALLS_EACH * sandboxes, sandboxes)
        await in_turn((true, docker_true, view, edit, write, at_once), rounds, on_round)
    return (
        Figure("bash_true_p50_ms", true.p50_ms, "ms", docker_true.p50_ms, BASELINE),
        Figure("bash_true_cpu_ms", true.cpu_ms, "ms", docker_true.cpu_ms, BASELINE),
        Figure("view_p50_ms", view.p50_ms, "ms"),
        Figure("edit_p50_ms", edit.p50_ms, "ms"),
        Figure("write_p50_ms", write.p50_ms, "ms"),
        Figure("calls_per_s", at_once.per_s, "1/s"),
    )


def _calls(hands: Hands, *boxes: Sandbox) -> Act:
    """A call in whichever of ``boxes`` is idle the longest."""
    idle = deque(boxes)

    async def call() -> float:
        box = idle.popleft()
        took_s = await hands.run_true(box)
        idle.append(box)
        return took_s

    return call


def _file_calls(hands: Hands, box: Sandbox, *arguments: str) -> Act:
    following = cycle(arguments)

    async def call() -> float:
        return await hands.use(box, EDIT, next(following))

    return call


def _exec_s(client: docker.DockerClient, made: Container) -> float:
    began = time.perf_counter()
    containers.exec_true(client, made)
    return time.perf_counter() - began
