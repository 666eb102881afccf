"""``turns``: episodes of a real small model in real sandboxes, while weights change and contexts are summarised.

Each token that a rollout publishes is computed again by a fresh pass of the model. Two model servers run in processes
of their own, one with the API of vLLM and one with that of SGLang. New weights arrive several times a second. Every
other change aborts the requests that are running, so that the farm has to continue them.
"""

import asyncio
import contextlib
import itertools
import statistics
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context

import httpx

from farm.bench.bench_episode import make_assignment, temporary_journals
from farm.bench.results import BenchError, Figure
from farm.core.harness import Harness, SummarySettings
from farm.core.rollout import Rollout, SegmentKind, TurnKind
from farm.core.run import EpisodeLimits, PolicySpec
from farm.core.task import ReportFormat
from farm.episode import JournalDirectory, NodeServices, run_episode
from farm.model_server import count_segment_mismatches
from farm.policy import EndpointPool, PolicyRoutes, make_policy
from farm.tasks import TaskBundle
from sandboxes import WarmPool

DIALECTS = ("vllm", "sglang")
TOLERANCE = 1e-3
CHANGE_EVERY_S = 0.4
TURNS = 8
REPLY_TOKENS = 160
CONTEXT_GROWTH = 900
"""Tokens beyond the opening messages after which a context is summarised."""

SUMMARY_TOKENS = 80
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class TurnsOptions:
    """``episodes`` in all, ``concurrency`` at once."""

    episodes: int = 1000
    concurrency: int = 200


@dataclass(frozen=True, slots=True)
class _Checked:
    """The figures of one rollout: its segments by kind, its mismatches, and the seconds between its turns."""

    segments: int
    compacted: int
    tokens: int
    versions: int
    mismatches: int
    overheads_s: tuple[float, ...]


async def measure_turns(
    bundle: TaskBundle, pool: WarmPool, options: TurnsOptions, *, on_episode: Callable[[int], None]
) -> tuple[Figure, ...]:
    """Run the episodes and verify each token. The task's image must exist; its tests are replaced by ``true``.

    ``overhead_p50_ms`` is the time from one turn of an episode to the next without model and tools, so it is the farm's
    own. Raises BenchError if a server does not start, or if an episode fails or cannot be trained on.
    """
    bundle = _cheaply_graded(bundle)
    services, numbers = NodeServices("bench", pool), iter(range(options.episodes))
    checked: list[_Checked] = []
    async with _model_servers() as urls, temporary_journals() as journals:
        routes = PolicyRoutes(EndpointPool())
        opening = await _opening_tokens(bundle, services, routes, urls[0])
        harness = Harness(summaries=SummarySettings(opening + CONTEXT_GROWTH, SUMMARY_TOKENS))
        changing = asyncio.create_task(_change_weights(urls))
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as verifier:

            async def lane() -> None:
                for number in numbers:
                    rollout = await _episode(bundle, services, routes, journals, number, urls, harness)
                    loop = asyncio.get_running_loop()
                    checked.append(await loop.run_in_executor(verifier, check_rollout, rollout))
                    on_episode(len(checked))

            try:
                async with asyncio.TaskGroup() as lanes:
                    for _ in range(min(options.concurrency, options.episodes)):
                        lanes.create_task(lane())
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from None
            finally:
                changing.cancel()
                await asyncio.gather(changing, return_exceptions=True)
                await routes.close()
    return _figures(checked)


def check_rollout(rollout: Rollout) -> _Checked:
    """Verify each token of a rollout. Runs in another process, so that it takes no time from the episodes."""
    segments = rollout.segments
    turns = [turn for turn in rollout.turns if turn.kind is TurnKind.TURN]
    gaps = tuple(
        after.started_at - before.started_at - before.model_s - before.tools_s
        for before, after in itertools.pairwise(turns)
        if after.index == before.index + 1 and not _has_summary_after(rollout, before.index)
    )
    return _Checked(
        segments=len(segments),
        compacted=sum(segment.kind is SegmentKind.COMPACTED for segment in segments),
        tokens=sum(sum(segment.loss_mask) for segment in segments),
        versions=len({span.version for segment in segments for span in segment.weight_versions}),
        mismatches=sum(count_segment_mismatches(segment, 0, TOLERANCE) for segment in segments),
        overheads_s=gaps,
    )


def _has_summary_after(rollout: Rollout, index: int) -> bool:
    return any(turn.kind is TurnKind.SUMMARY and turn.index == index for turn in rollout.turns)


def _figures(checked: Sequence[_Checked]) -> tuple[Figure, ...]:
    overheads_s = [gap for one in checked for gap in one.overheads_s]
    if not overheads_s:
        raise BenchError("no episode had a second turn; raise --episodes")
    return (
        Figure("overhead_p50_ms", 1000 * statistics.median(overheads_s), "ms"),
        Figure("logprob_mismatches", sum(one.mismatches for one in checked), "tokens"),
        Figure("tokens_checked", sum(one.tokens for one in checked), "tokens"),
        Figure("segments_checked", sum(one.segments for one in checked), "segments"),
        Figure("summaries", sum(one.compacted for one in checked), "segments"),
        Figure("episodes_of_several_versions", sum(one.versions > 1 for one in checked), "episodes"),
        Figure("episodes", len(checked), "episodes"),
    )


def _cheaply_graded(bundle: TaskBundle) -> TaskBundle:
    """Return the task with a verifier that only has to run, because the bench measures turns."""
    verifier = replace(
        bundle.task.verifier, command="true", report=ReportFormat.EXIT_CODE, fail_to_pass=(), pass_to_pass=()
    )
    return replace(bundle, task=replace(bundle.task, verifier=verifier), tests={})


async def _opening_tokens(bundle: TaskBundle, services: NodeServices, routes: PolicyRoutes, url: str) -> int:
    """Return the number of tokens of the opening messages, by an episode of one turn."""
    async with temporary_journals() as journals:
        rollout = await _episode(bundle, services, routes, journals, 10**6, (url,), Harness(), turns=1)
    return rollout.turns[0].prompt_tokens


async def _episode(
    bundle: TaskBundle,
    services: NodeServices,
    routes: PolicyRoutes,
    journals: JournalDirectory,
    number: int,
    urls: Sequence[str],
    harness: Harness,
    *,
    turns: int = TURNS,
) -> Rollout:
    spec = PolicySpec(
        "openai",
        endpoint=urls[number % len(urls)],
        sampling_params={"seed": number, "temperature": 1.0, "max_tokens": REPLY_TOKENS},
    )
    order = make_assignment(bundle, number, spec, EpisodeLimits(max_turns=turns, tool_s=10.0), harness)
    policy = make_policy(spec, bundle, seed=number, routes=routes, session=order.rollout_id)
    journal = journals.of(order)
    rollout = await run_episode(order, bundle, policy, services, journal=journal)
    journal.remove()
    if not rollout.trainable:
        why = rollout.error.message if rollout.error else rollout.reason
        raise BenchError(f"episode {number} cannot be trained on: {why}")
    return rollout


@asynccontextmanager
async def _model_servers() -> AsyncIterator[tuple[str, ...]]:
    """Serve a model in a process of each dialect. Yield their base URLs."""
    processes: list[Process] = []
    try:
        urls = []
        for dialect in DIALECTS:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "farm.cli.main",
                "dev",
                "model-server",
                "--port=0",
                f"--dialect={dialect}",
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=DEVNULL,
            )
            processes.append(process)
            urls.append(await _url_of(process, dialect))
        yield tuple(urls)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _url_of(process: Process, dialect: str) -> str:
    """Return the base URL that a model server prints. Raises BenchError."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_S):
            line = (await process.stdout.readline()).decode()
    except TimeoutError:
        line = ""
    words = [word.rstrip(";") for word in line.split() if word.startswith("http")]
    if not words:
        raise BenchError(f"the {dialect} model server did not start; try `farm dev model-server --dialect {dialect}`")
    return words[0]


async def _change_weights(urls: Sequence[str]) -> None:
    """Load the next version every ``CHANGE_EVERY_S``. Every other change aborts the running requests."""
    versions: Iterator[int] = itertools.count(2)
    async with httpx.AsyncClient(timeout=_START_S, trust_env=False) as http:
        for version, mode in zip(versions, itertools.cycle(("keep", "abort")), strict=False):
            await asyncio.sleep(CHANGE_EVERY_S)
            for url in urls:
                body = {"version": version, "mode": mode}
                (await http.post(f"{url.removesuffix('/v1')}/update_weights", json=body)).raise_for_status()
