"""Which faults are worth a trial: those in lines that tests execute, of every kind, spread over the functions."""

import ast
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from farm.task_generation.mutation.edits import ByteEdit, apply_edits, fingerprint, meaning, parsed
from farm.task_generation.mutation.operators import Site, find_sites
from farm.task_generation.mutation.trials import BaselineRun

MOST_PER_FUNCTION = 4
COMMON_SHARE = 0.4
COMMON_CHANCE = 0.25
"""Lines that more than that share of the tests execute make a trial as slow as the whole suite, and mostly break too
much: so few of them are tried."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of one file. ``key`` names the function and what it says afterwards, whatever the layout; ``tests``
    may notice it."""

    key: str
    path: str
    function: str
    operator: str
    edits: tuple[ByteEdit, ...]
    tests: tuple[str, ...]


def apply_faults(sources: Mapping[str, bytes], faults: Sequence[Fault]) -> Mapping[str, bytes]:
    """The changed files. Raises ValueError where two faults touch the same place."""
    edits: dict[str, list[ByteEdit]] = {}
    for fault in faults:
        edits.setdefault(fault.path, []).extend(fault.edits)
    return {path: apply_edits(sources[path], edits[path]) for path in sorted(edits)}


def choose_faults(sources: Mapping[str, bytes], survey: BaselineRun, rng: random.Random, most: int) -> list[Fault]:
    """At most ``most``, each another one, in an order in which every kind comes early."""
    sites = [(path, site) for path in sorted(sources) if survey.lines.get(path) for site in find_sites(sources[path])]
    chosen: dict[str, Fault] = {}
    per_function: Counter[tuple[str, str]] = Counter()
    trees = {path: parsed(source) for path, source in sources.items()}
    for path, site in _in_turn(sites, rng):
        if len(chosen) >= most:
            break
        if per_function[path, site.function] >= MOST_PER_FUNCTION:
            continue
        tests = survey.tests_of(path, site.first, site.last)
        tree = trees[path]
        if len(tests) > COMMON_SHARE * len(survey.passing) and rng.random() > COMMON_CHANCE:
            continue
        key = _key(sources[path], tree, path, site) if tests and tree is not None else None
        if key is None or key in chosen:
            continue
        chosen[key] = Fault(key, path, site.function, site.operator, site.edits, tests)
        per_function[path, site.function] += 1
    return list(chosen.values())


def _in_turn(sites: Sequence[tuple[str, Site]], rng: random.Random) -> Iterator[tuple[str, Site]]:
    """One of each operator, round and round."""
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
    """None where the change is none, or no Python."""
    changed = parsed(apply_edits(source, site.edits))
    if changed is None:
        return None
    says = meaning(changed, site.function)
    return None if says == meaning(tree, site.function) else fingerprint(path, site.function, says)
