"""Choose the faults to try: in lines that tests execute, of every operator, spread over the functions."""

import ast
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from farm.task_generation.mutation.edits import ByteEdit, apply_edits, fingerprint, function_dump, parse_source
from farm.task_generation.mutation.operators import Site, find_sites
from farm.task_generation.mutation.trials import BaselineRun

MAX_PER_FUNCTION = 4
COMMON_SHARE = 0.4
COMMON_CHANCE = 0.25
"""Share of the faults that are tried in lines which more than COMMON_SHARE of the tests execute.

Such a trial takes as long as the whole suite and mostly breaks too much.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of one file by one operator.

    ``key`` hashes the function as it is after the change, so it does not depend on layout. ``tests`` execute the
    changed lines.
    """

    key: str
    path: str
    function: str
    operator: str
    edits: tuple[ByteEdit, ...]
    tests: tuple[str, ...]


def apply_faults(sources: Mapping[str, bytes], faults: Sequence[Fault]) -> Mapping[str, bytes]:
    """Return the changed files. Raises ValueError if two faults overlap."""
    edits: dict[str, list[ByteEdit]] = {}
    for fault in faults:
        edits.setdefault(fault.path, []).extend(fault.edits)
    return {path: apply_edits(sources[path], edits[path]) for path in sorted(edits)}


def choose_faults(sources: Mapping[str, bytes], baseline: BaselineRun, rng: random.Random, limit: int) -> list[Fault]:
    """Return at most ``limit`` different faults, ordered so that every operator comes early."""
    sites = [(path, site) for path in sorted(sources) if baseline.lines.get(path) for site in find_sites(sources[path])]
    chosen: dict[str, Fault] = {}
    per_function: Counter[tuple[str, str]] = Counter()
    trees = {path: parse_source(source) for path, source in sources.items()}
    for path, site in _round_robin(sites, rng):
        if len(chosen) >= limit:
            break
        if per_function[path, site.function] >= MAX_PER_FUNCTION:
            continue
        tests = baseline.tests_of(path, site.first, site.last)
        tree = trees[path]
        if len(tests) > COMMON_SHARE * len(baseline.passing) and rng.random() > COMMON_CHANCE:
            continue
        key = _key(sources[path], tree, path, site) if tests and tree is not None else None
        if key is None or key in chosen:
            continue
        chosen[key] = Fault(key, path, site.function, site.operator, site.edits, tests)
        per_function[path, site.function] += 1
    return list(chosen.values())


def _round_robin(sites: Sequence[tuple[str, Site]], rng: random.Random) -> Iterator[tuple[str, Site]]:
    """Yield one random site of each operator in turn."""
    kinds: dict[str, list[tuple[str, Site]]] = {}
    for path, site in sites:
        kinds.setdefault(site.operator, []).append((path, site))
    for kind in sorted(kinds):
        rng.shuffle(kinds[kind])
    while kinds:
        for kind in sorted(kinds):
            yield kinds[kind].pop()
            if not kinds[kind]:
                del kinds[kind]


def _key(source: bytes, tree: ast.Module, path: str, site: Site) -> str | None:
    """Return the key of the fault, or None if the result is not Python or the function stays the same."""
    changed = parse_source(apply_edits(source, site.edits))
    if changed is None:
        return None
    new_dump = function_dump(changed, site.function)
    return None if new_dump == function_dump(tree, site.function) else fingerprint(path, site.function, new_dump)
