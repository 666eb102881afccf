"""Wrong solutions that are nearly right: the gold change with one fault in a line that it brings."""

import difflib
import random
from collections.abc import Mapping

from farm.core.change import Change
from farm.task_generation.mutation.edits import apply_edits
from farm.task_generation.mutation.operators import Site, find_sites
from farm.task_validation.cheats import sources_of, with_content

MOST_MUTANTS = 6


def mutants(gold: Change, old: Mapping[str, bytes]) -> dict[str, Change]:
    """At most MOST_MUTANTS, by what and where; the same for the same change, of as many functions as there are, and
    then of as many kinds. ``old``: what the image holds at the gold's paths."""
    sites = [
        (path, site)
        for path, new in sorted(sources_of(gold).items())
        for site in _within(find_sites(new), _brought(old.get(path, b""), new))
    ]
    random.Random(0).shuffle(sites)
    found: dict[str, Change] = {}
    functions: dict[tuple[str, str], int] = {}
    kinds: dict[str, int] = {}
    while sites and len(found) < MOST_MUTANTS:
        path, site = min(
            sites, key=lambda one: (functions.get((one[0], one[1].function), 0), kinds.get(one[1].operator, 0))
        )
        sites.remove((path, site))
        name = f"{path}:{site.function}: {site.operator}, line {site.first}"
        content = apply_edits(sources_of(gold)[path], site.edits)
        if name in found or content == old.get(path):
            continue
        found[name] = with_content(gold, path, content)
        functions[path, site.function] = functions.get((path, site.function), 0) + 1
        kinds[site.operator] = kinds.get(site.operator, 0) + 1
    return found


def _within(sites: list[Site], lines: frozenset[int]) -> list[Site]:
    return [site for site in sites if lines.issuperset(range(site.first, site.last + 1))]


def _brought(old: bytes, new: bytes) -> frozenset[int]:
    """The lines of ``new``, from 1, that ``old`` does not have there."""
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    return frozenset(
        line
        for tag, _, _, first, last in matcher.get_opcodes()
        if tag in ("replace", "insert")
        for line in range(first + 1, last + 1)
    )
