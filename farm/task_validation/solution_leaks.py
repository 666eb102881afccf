"""Search the image of a task for its solution: in every file of a sandbox, in archives, git objects and bytecode."""

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
MAX_FOUND = 20
MAX_PASSAGES = 24
MIN_PASSAGE_BYTES = 40
"""Shorter passages occur in many files by chance."""
_DISTINCTIVE_LINES = 6
"""This many successive lines do not occur in two places by chance."""
_MAX_CONTEXT_LINES = 8
_MAX_EDIT_LINES = 6
_MIN_NAME_CHARS = 12
"""Shorter names, and those of one word, are common."""
_EXCLUDED_DIRECTORIES = frozenset({"site-packages", "dist-packages", "test", "tests"})
_DIRECTORY = "/tmp/farm-residue"
_SKIPPED_DIRECTORIES = ("/proc", "/sys", "/dev", "/.farm", _DIRECTORY)


class SolutionLeak(BaseModel):
    """A finding from a sandbox. Its form is untrusted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: str
    what: str


@dataclass(frozen=True, slots=True)
class ChangedModule:
    """A Python file: its path in the workspace, and its source as solved and as it is in the image."""

    path: str
    solved: bytes
    present: bytes


@dataclass(frozen=True, slots=True)
class SolutionFingerprint:
    """Parts of the solution that must not occur in the image: passages of several lines, and names.

    ``modules``: the solution's Python files, whose bytecode must not occur either.
    """

    passages: tuple[bytes, ...]
    names: tuple[str, ...]
    modules: tuple[ChangedModule, ...]


def solution_fingerprint(gold: Change, present: Mapping[str, bytes]) -> SolutionFingerprint:
    """Return the parts of the gold change that the ``present`` files, by path, lack."""
    passages: dict[bytes, None] = {}
    names: dict[str, None] = {}
    modules: list[ChangedModule] = []
    present_bytes = b"\0".join(present.values())
    present_names = {name for path, text in present.items() if path.endswith(".py") for name in _definitions(text)}
    for file in gold.files:
        if file.kind is not ChangeKind.WRITE or b"\0" in file.content:
            continue
        old = present.get(file.path, b"")
        for passage in _passages(old, file.content):
            if passage not in present_bytes:
                passages[passage] = None
        if file.path.endswith(".py"):
            modules.append(ChangedModule(file.path, file.content, old))
            names |= dict.fromkeys(_definitions(file.content) - present_names)
    return SolutionFingerprint(
        tuple(passages)[:MAX_PASSAGES],
        tuple(sorted(filter(_is_distinctive, names))),
        tuple(modules),
    )


async def find_solution_leaks(sandbox: Sandbox, fingerprint: SolutionFingerprint) -> list[SolutionLeak] | None:
    """Return where parts of the solution occur, or None if the image has no Python to search with."""
    job = {
        "passages": [_base64(passage) for passage in fingerprint.passages],
        "names": fingerprint.names,
        "modules": [[module.path, _base64(module.solved), _base64(module.present)] for module in fingerprint.modules],
        "prune": _SKIPPED_DIRECTORIES,
        "most": MAX_FOUND,
    }
    program = files("farm.task_validation").joinpath("sandbox_leak_scanner.py").read_bytes()
    await sandbox.write_file(f"{_DIRECTORY}/inside.py", program, parents=True)
    await sandbox.write_file(f"{_DIRECTORY}/job.json", json.dumps(job).encode())
    command = f"exec python3 -I -B {_DIRECTORY}/inside.py {_DIRECTORY}/job.json {_DIRECTORY}/result.jsonl"
    await sandbox.exec(("/.farm/bin/bash", "-c", command), timeout_s=TIMEOUT_S, merge_stderr=True)
    try:
        lines = (await sandbox.read_file(f"{_DIRECTORY}/result.jsonl")).splitlines()
    except PathError:
        return None
    if not lines or b"looked_at" not in lines[-1]:
        return None
    leaks = []
    for line in lines[:-1]:
        try:
            leaks.append(SolutionLeak.model_validate_json(line))
        except ValidationError:
            return None
    return leaks


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _passages(old: bytes, new: bytes) -> Iterator[bytes]:
    """Yield added lines with enough lines around them that the standard library lacks them, or that they are long."""
    before, after = (lines_of(content.decode("latin-1")) for content in (old, new))
    for edit in find_edits(before, after, ComparisonBudget()):
        first, last = edit.new_from, min(edit.new_to, edit.new_from + _MAX_EDIT_LINES)
        for context in range(1, _MAX_CONTEXT_LINES + 1):
            lines = after[max(0, first - context) : last + context]
            passage = "".join(lines).encode("latin-1").strip()
            line_count = sum(bool(line.strip()) for line in lines)
            if (
                line_count > 2
                and len(passage) >= MIN_PASSAGE_BYTES
                and (line_count >= _DISTINCTIVE_LINES or passage not in _standard_library())
            ):
                yield passage
                break


def _is_distinctive(name: str) -> bool:
    if len(name) < _MIN_NAME_CHARS or "_" not in name.strip("_"):
        return False
    return not any(
        text.encode() in _standard_library() for text in (f"def {name}(", f"class {name}(", f"class {name}:")
    )


@cache
def _standard_library() -> bytes:
    """Return the source of the standard library, which is in most images and no part of a solution."""
    home = Path(sysconfig.get_path("stdlib"))
    modules = (
        path for path in sorted(home.rglob("*.py")) if _EXCLUDED_DIRECTORIES.isdisjoint(path.relative_to(home).parts)
    )
    return b"\0".join(path.read_bytes() for path in modules)


def _definitions(source: bytes) -> set[str]:
    tree = parse_tests(source)
    if tree is None:
        return set()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
