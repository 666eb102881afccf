"""``search``: the quality and speed of code search, compared with ripgrep and plain BM25 over the same chunks."""

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from farm.bench.results import BenchError, Figure
from farm.bench.search.cases import Suite, docstring_suite, release_suite
from farm.bench.search.metrics import BM25, CODE_BM25, HYBRID, RIPGREP, Quality, qualities, sources
from farm.bench.search.packages import RELEASES, PackageRelease
from farm.tasks.sdist.sdist import fetch_sdist, read_sdist
from sandboxes import Runtime, Sandbox, SandboxSpec
from sandboxes.search.embeddings.distill import DistilError, ensure_table
from sandboxes.search.embeddings.load import WORDS, default_table, load_embedder
from sandboxes.search.embeddings.word_table import Embedder
from sandboxes.search.index_store import IndexStore
from sandboxes.search.sandbox_index import SandboxIndex
from sandboxes.tools import Toolset
from sandboxes.tools.packs.default.codebase_search import CodebaseSearch

OnProgress = Callable[[str, int, int], None]

CHUNKS = 10_000
_CASES = 60
"""Maximum questions of each package, so that no package dominates."""

_LARGEST = 512 * 1024
_TICK_S = 0.001
_WARM_UP = 3


async def measure_search(
    spec: SandboxSpec, runtime: Runtime, *, state_dir: Path, quality: bool, rounds: int, on_progress: OnProgress
) -> tuple[Figure, ...]:
    """Measure quality, if requested, over source distributions, then speed over ``CHUNKS`` chunks of them
    in a sandbox.
    """
    embedder = await asyncio.to_thread(ensure_words, on_progress)
    packages = await asyncio.to_thread(_download_releases, state_dir, on_progress)
    judged = await asyncio.to_thread(_quality_figures, packages, embedder, on_progress) if quality else ()
    return judged + await _speed_figures(spec, runtime, packages, rounds, on_progress)


def ensure_words(on_progress: OnProgress) -> Embedder:
    """Load the farm's own embedder; build its table if it is missing. Raises BenchError."""
    try:
        ensure_table(default_table(), lambda done, of: on_progress("the table of word vectors", done, of))
    except DistilError as error:
        raise BenchError(str(error)) from None
    embedder = load_embedder(WORDS)
    if embedder is None:
        raise BenchError(f"{default_table()} cannot be read; remove it and run the benchmark again")
    return embedder


# Quality


def _download_releases(
    state_dir: Path, on_progress: OnProgress
) -> dict[PackageRelease, tuple[Mapping[str, str], Mapping[str, str]]]:
    """Download the packages; return release → texts of the older and of the newer source distribution."""
    found = {}
    for number, release in enumerate(RELEASES):
        on_progress(f"sources of {release.package}", number, len(RELEASES))
        found[release] = _texts(release, release.old, state_dir), _texts(release, release.new, state_dir)
    return found


def _texts(release: PackageRelease, pinned: tuple[str, str], state_dir: Path) -> Mapping[str, str]:
    version, sha256 = pinned
    path = fetch_sdist(release.package, version, sha256, state_dir=state_dir)
    texts = {}
    for name, file in read_sdist(path).items():
        if len(file.content) <= _LARGEST and b"\0" not in file.content:
            texts[name] = file.content.decode("utf-8", "replace").replace("\r\n", "\n")
    return texts


def _quality_figures(
    packages: Mapping[PackageRelease, tuple[Mapping[str, str], Mapping[str, str]]],
    embedder: Embedder,
    on_progress: OnProgress,
) -> tuple[Figure, ...]:
    docstrings = [docstring_suite(each.package, old, _CASES) for each, (old, _) in packages.items()]
    releases = [release_suite(each.package, old, new, each.new[0], _CASES) for each, (old, new) in packages.items()]
    return (
        *_quality_figures_of("", _measure_quality("docstrings of", docstrings, embedder, on_progress), docstrings),
        *_quality_figures_of("changes_", _measure_quality("changes of", releases, embedder, on_progress), releases),
    )


def _measure_quality(
    label: str, suites: Sequence[Suite], embedder: Embedder, on_progress: OnProgress
) -> Mapping[str, Quality]:
    return qualities(
        suites, embedder, lambda number: on_progress(f"{label} {suites[number].package}", number, len(suites))
    )


def _quality_figures_of(prefix: str, found: Mapping[str, Quality], suites: Sequence[Suite]) -> tuple[Figure, ...]:
    """Return figures in which the hybrid ranker is compared with the best of the others."""
    figures = [Figure(f"{prefix}questions", sum(len(suite.cases) for suite in suites), "")]
    for measure in ("ndcg", "mrr"):
        values = {name: asdict(quality)[measure] for name, quality in found.items()}
        best = max((RIPGREP, BM25, CODE_BM25), key=lambda name: values[name])
        figures.append(Figure(f"{prefix}{measure}10_{HYBRID}", values[HYBRID], "", values[best], best))
        figures += [Figure(f"{prefix}{measure}10_{name}", values[name], "") for name in (CODE_BM25, BM25, RIPGREP)]
    return tuple(figures)


# Speed


async def _speed_figures(
    spec: SandboxSpec,
    runtime: Runtime,
    packages: Mapping[PackageRelease, tuple[Mapping[str, str], Mapping[str, str]]],
    rounds: int,
    on_progress: OnProgress,
) -> tuple[Figure, ...]:
    files = {f"{each.package}/{path}": text for each, (old, _) in packages.items() for path, text in old.items()}
    questions = [case.question for each, (old, _) in packages.items() for case in docstring_suite("", old, 5).cases]
    async with IndexStore(None) as index_store:
        files = await _cut_to_size(index_store, {path: text for path, text in files.items() if path.endswith(".py")})
        indexing = [await _index_again(index_store, files, on_progress, number, rounds) for number in range(rounds)]
        on_progress("a sandbox", 0, 1)
        async with runtime.scope(spec) as one, runtime.scope(spec) as other:
            for sandbox in (one, other):
                await _fill(sandbox, files)
            found = await _in_sandboxes(index_store, one, other, sorted(files), questions, on_progress)
    chunks_per_s, stalls_ms = zip(*indexing, strict=True)
    return (
        Figure("chunks_per_s", statistics.median(chunks_per_s), "1/s"),
        Figure("loop_stall_max_ms", max(stalls_ms), "ms"),
        *(Figure(name, statistics.median(times_s) * 1000, "ms") for name, times_s in found.items()),
    )


async def _cut_to_size(index_store: IndexStore, files: Mapping[str, str]) -> dict[str, str]:
    """Return the first files that have ``CHUNKS`` chunks together."""
    index = await index_store.index(sources(files))
    chunks: dict[str, int] = dict.fromkeys(files, 0)
    for segment in index.segments:
        for file in segment.files:
            chunks[segment.paths[file]] += 1
    taken: dict[str, str] = {}
    left = CHUNKS
    for path, count in chunks.items():
        if count <= left:
            taken[path] = files[path]
            left -= count
    return taken


async def _index_again(
    index_store: IndexStore, files: Mapping[str, str], on_progress: OnProgress, number: int, rounds: int
) -> tuple[float, float]:
    """Return the chunks indexed per second, and the longest stall of the event loop in milliseconds."""
    on_progress("indexing", number, rounds)
    salted = sources({**files, "salt.py": f"salt = {number}\n"})
    stalls = [0.0]
    watch = asyncio.create_task(_watch_loop(stalls))
    began = time.perf_counter()
    index = await index_store.index(salted)
    took_s = time.perf_counter() - began
    watch.cancel()
    return sum(len(segment) for segment in index.segments) / took_s, max(stalls) * 1000


async def _watch_loop(stalls: list[float]) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(_TICK_S)
        stalls.append(time.perf_counter() - before - _TICK_S)


async def _fill(sandbox: Sandbox, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        await sandbox.write_file(f"{sandbox.workdir}/{path}", text.encode("utf-8", "surrogateescape"), parents=True)


async def _in_sandboxes(
    index_store: IndexStore,
    one: Sandbox,
    other: Sandbox,
    paths: Sequence[str],
    questions: Sequence[str],
    on_progress: OnProgress,
) -> dict[str, list[float]]:
    """Return seconds by figure: whole tool calls, refreshes after an edit, and the first refresh in another sandbox.

    The other sandbox holds the same tree.
    """
    tools = Toolset([CodebaseSearch(30_000, index_store)])
    view, second = (SandboxIndex(index_store, sandbox, sandbox.workdir) for sandbox in (one, other))
    await view.refresh()
    firsts = [await _timed(second.refresh())]
    calls, edits = [], []
    for number, question in enumerate(questions):
        on_progress("questions", number, len(questions))
        arguments = json.dumps({"query": question})
        await tools.call(one, "codebase_search", arguments, timeout_s=60)  # indexes the last edit
        calls.append(await _timed(tools.call(one, "codebase_search", arguments, timeout_s=60)))
        path = f"{one.workdir}/{paths[number * 7919 % len(paths)]}"
        await one.write_file(path, await one.read_file(path) + b"\n# edited\n")
        edits.append(await _timed(view.refresh()))
    return {"query_p50_ms": calls[_WARM_UP:], "reindex_file_p50_ms": edits, "first_look_ms": firsts}


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began
