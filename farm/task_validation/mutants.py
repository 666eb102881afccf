"""Make wrong solutions that are nearly right: the gold change with one fault in a line that it adds."""

import difflib
import random
from collections.abc import Mapping

from farm.core.change import Change
from farm.task_generation.mutation.edits import apply_edits
from farm.task_generation.mutation.operators import Site, find_sites
from farm.task_validation.cheats import sources_of, with_content

MAX_MUTANTS = 6


def make_mutants(gold: Change, old: Mapping[str, bytes]) -> dict[str, Change]:
    """Return at most MAX_MUTANTS wrong solutions by their description; the same for the same change.

    They cover as many functions as possible, then as many operators. ``old``: the files of the image at the gold
    change's paths.
    """
    sites = [
        (path, site)
        for path, new in sorted(sources_of(gold).items())
        for site in _sites_within(find_sites(new), _added_lines(old.get(path, b""), new))
    ]
    random.Random(0).shuffle(sites)
    mutants: dict[str, Change] = {}
    functions: dict[tuple[str, str], int] = {}
    kinds: dict[str, int] = {}
    while sites and len(mutants) < MAX_MUTANTS:
        path, site = min(
            sites, key=lambda item: (functions.get((item[0], item[1].function), 0), kinds.get(item[1].operator, 0))
        )
        sites.remove((path, site))
        name = f"{path}:{site.function}: {site.operator}, line {site.first}"
        content = apply_edits(sources_of(gold)[path], site.edits)
        if name in mutants or content == old.get(path):
            continue
        mutants[name] = with_content(gold, path, content)
        functions[path, site.function] = functions.get((path, site.function), 0) + 1
        kinds[site.operator] = kinds.get(site.operator, 0) + 1
    return mutants


def _sites_within(sites: list[Site], lines: frozenset[int]) -> list[Site]:
    return [site for site in sites if lines.issuperset(range(site.first, site.last + 1))]


def _added_lines(old: bytes, new: bytes) -> frozenset[int]:
    """Return the lines of ``new``, counted from 1, that ``old`` lacks at that position."""
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    return frozenset(
        line
        for tag, _, _, first, last in matcher.get_opcodes()
        if tag in ("replace", "insert")
        for line in range(first + 1, last + 1)
    )
