"""Whether the solution of a task still lies somewhere in its image: looked for in every file of a sandbox, in archives,
git's objects and bytecode too.
"""

import ast
import base64
import json
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from farm.core.change import Change, ChangeKind
from farm.grading.decoys.python_source import parse_tests
from farm.grading.diff.line_diff import ComparisonBudget, find_edits
from farm.grading.diff.patch import lines_of
from sandboxes.errors import PathError
from sandboxes.interface import Sandbox

TIMEOUT_S = 300
MOST_FOUND = 20
MOST_PASSAGES = 24
LEAST_BYTES = 40
"""A shorter passage stands in many a file by chance."""
_TELLING = 6
"""Lines that do not stand one after the other in two places by chance."""
_AROUND = 8
_LONGEST = 6
_SHORTEST_NAME = 12
"""Shorter names, and those of one word, are in use everywhere."""
_NO_MODULES = frozenset({"site-packages", "dist-packages", "test", "tests"})
_PLACE = "/tmp/farm-residue"
_PRUNED = ("/proc", "/sys", "/dev", "/.farm", _PLACE)


class SolutionLeak(BaseModel):
    """From a sandbox, so not to be trusted in form."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: str
    what: str


@dataclass(frozen=True, slots=True)
class SolutionFingerprint:
    """What must stand nowhere: ``passages`` of several lines, ``names`` that are gone; ``modules``: of Python files the
    path in the workspace, and the text as solved and as it is."""

    passages: tuple[bytes, ...]
    names: tuple[str, ...]
    modules: tuple[tuple[str, bytes, bytes], ...]


def solution_fingerprint(gold: Change, present: Mapping[str, bytes]) -> SolutionFingerprint:
    """What the gold change brings that ``present`` files, by path, do not have."""
    passages: dict[bytes, None] = {}
    names: dict[str, None] = {}
    modules: list[tuple[str, bytes, bytes]] = []
    here = b"\0".join(present.values())
    known = {name for path, text in present.items() if path.endswith(".py") for name in _definitions(text)}
    for file in gold.files:
        if file.kind is not ChangeKind.WRITE or b"\0" in file.content:
            continue
        old = present.get(file.path, b"")
        for passage in _passages(old, file.content):
            if passage not in here:
                passages[passage] = None
        if file.path.endswith(".py"):
            modules.append((file.path, file.content, old))
            names |= dict.fromkeys(_definitions(file.content) - known)
    return SolutionFingerprint(
        tuple(passages)[:MOST_PASSAGES],
        tuple(sorted(filter(_is_telling, names))),
        tuple(modules),
    )


async def find_solution_leaks(sandbox: Sandbox, secrets: SolutionFingerprint) -> list[SolutionLeak] | None:
    """Where what is secret stands. None where it could not be looked for: the image has no Python."""
    job = {
        "passages": [_packed(passage) for passage in secrets.passages],
        "names": secrets.names,
        "modules": [[path, _packed(solved), _packed(present)] for path, solved, present in secrets.modules],
        "prune": _PRUNED,
        "most": MOST_FOUND,
    }
    program = files("farm.task_validation").joinpath("leak_scanner.py").read_bytes()
    await sandbox.write_file(f"{_PLACE}/inside.py", program, parents=True)
    await sandbox.write_file(f"{_PLACE}/job.json", json.dumps(job).encode())
    command = f"exec python3 -I -B {_PLACE}/inside.py {_PLACE}/job.json {_PLACE}/result.jsonl"
    await sandbox.exec(("/.farm/bin/bash", "-c", command), timeout_s=TIMEOUT_S, merge_stderr=True)
    try:
        lines = (await sandbox.read_file(f"{_PLACE}/result.jsonl")).splitlines()
    except PathError:
        return None
    if not lines or b"looked_at" not in lines[-1]:
        return None
    found = []
    for line in lines[:-1]:
        try:
            found.append(SolutionLeak.model_validate_json(line))
        except ValidationError:
            return None
    return found


def _packed(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _passages(old: bytes, new: bytes) -> Iterator[bytes]:
    """What ``new`` has and ``old`` has not, with lines around it: so many that it is unlike all of the standard
    library, or too long to be there by chance."""
    before, after = (lines_of(content.decode("latin-1")) for content in (old, new))
    for edit in find_edits(before, after, ComparisonBudget()):
        first, last = edit.new_from, min(edit.new_to, edit.new_from + _LONGEST)
        for around in range(1, _AROUND + 1):
            lines = after[max(0, first - around) : last + around]
            passage = "".join(lines).encode("latin-1").strip()
            said = sum(bool(line.strip()) for line in lines)
            if said > 2 and len(passage) >= LEAST_BYTES and (said >= _TELLING or passage not in _ordinary()):
                yield passage
                break


def _is_telling(name: str) -> bool:
    if len(name) < _SHORTEST_NAME or "_" not in name.strip("_"):
        return False
    return not any(said.encode() in _ordinary() for said in (f"def {name}(", f"class {name}(", f"class {name}:"))


@cache
def _ordinary() -> bytes:
    """The standard library's modules, which are in most images and tell nothing of a solution."""
    home = Path(sysconfig.get_path("stdlib"))
    modules = (path for path in sorted(home.rglob("*.py")) if _NO_MODULES.isdisjoint(path.relative_to(home).parts))
    return b"\0".join(path.read_bytes() for path in modules)


def _definitions(source: bytes) -> set[str]:
    tree = parse_tests(source)
    if tree is None:
        return set()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
