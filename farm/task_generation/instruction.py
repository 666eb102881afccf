"""A first draft of an instruction, for a person to make good."""

import re
from collections.abc import Mapping, Sequence

from farm.tasks.bundle import BundleFile
from farm.tasks.schema.manifest import ReleaseTable

_CHANGELOG = re.compile(r"(docs?/)?(changelog|changes|history|news|release[_-]?notes)(\.(md|rst|txt))?", re.IGNORECASE)
_ITEM = re.compile(r"^\s*[-*+]\s+")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)|https?://\S+")
_TAIL = re.compile(r"\s*\((?:[^()]*(?:#\d+|@|thanks|by |pr|issue|bpo)[^()]*)\)\.?\s*$", re.IGNORECASE)
_FILE_NAME = re.compile(r"\S*/\S*\.\w+|\S+\.(?:py|toml|cfg|ini|ya?ml|md|rst|txt)\b")
_MOST_ITEMS = 20


def draft(release: ReleaseTable, new: Mapping[str, BundleFile], fail_to_pass: Sequence[str]) -> str:
    """What the package's own change log says of the newer release, and what the failing tests are about.

    Names no file. A draft: whoever takes it into use makes sure that each hidden test follows from it.
    """
    items = changes_of(release.new, new)
    behaviours = sorted({spoken(test) for test in fail_to_pass})
    parts = [f"# {release.package}: mend what version {release.old} gets wrong\n"]
    parts.append(f"The repository holds {release.package} {release.old}. Change it so that the following holds.\n")
    if items:
        parts.append("\n".join(f"- {item}" for item in items) + "\n")
    parts.append("Behaviours that hidden tests look at:\n")
    parts.append("\n".join(f"- {behaviour}" for behaviour in behaviours) + "\n")
    parts.append("What works today must go on working.\n")
    return "\n".join(parts)


def changes_of(version: str, files: Mapping[str, BundleFile]) -> list[str]:
    """The items under a version's heading in the change log, without links, names of people and of files."""
    path = next((path for path in sorted(files) if _CHANGELOG.fullmatch(path)), None)
    if path is None:
        return []
    lines = files[path].content.decode(errors="replace").splitlines()
    heading = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.]*\d)")
    start = next((index for index, line in enumerate(lines) if heading.search(line) and not _ITEM.match(line)), None)
    if start is None:
        return []
    return _items(lines[start + 1 :])[:_MOST_ITEMS]


def spoken(test: str) -> str:
    """``tests/test_a.py::TestB::test_no_such_thing[1]`` as ``no such thing``."""
    name = test.rpartition("::")[2].partition("[")[0]
    return name.removeprefix("test").replace("_", " ").strip() or name


def _items(lines: Sequence[str]) -> list[str]:
    items: list[str] = []
    for line in lines:
        if re.match(r"^\S*\s*v?\d+\.\d+", line.lstrip("#= ")) and not _ITEM.match(line):
            break
        if _ITEM.match(line):
            items.append(_ITEM.sub("", line))
        elif items and line.startswith("  ") and line.strip():
            items[-1] += " " + line.strip()
    cleaned = (_TAIL.sub("", _LINK.sub(r"\1", item)).strip() for item in items)
    return [item for item in cleaned if item and not _FILE_NAME.search(item)]
