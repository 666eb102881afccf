"""Draft the instruction of a release-pair task, for a person to finish."""

import re
from collections.abc import Mapping, Sequence

from farm.tasks.bundle import BundleFile
from farm.tasks.schema.manifest import ReleaseTable

_CHANGELOG = re.compile(r"(docs?/)?(changelog|changes|history|news|release[_-]?notes)(\.(md|rst|txt))?", re.IGNORECASE)
_ITEM = re.compile(r"^\s*[-*+]\s+")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)|https?://\S+")
_TAIL = re.compile(r"\s*\((?:[^()]*(?:#\d+|@|thanks|by |pr|issue|bpo)[^()]*)\)\.?\s*$", re.IGNORECASE)
_FILE_NAME = re.compile(r"\S*/\S*\.\w+|\S+\.(?:py|toml|cfg|ini|ya?ml|md|rst|txt)\b")
MAX_ITEMS = 20


def draft_instruction(release: ReleaseTable, new: Mapping[str, BundleFile], fail_to_pass: Sequence[str]) -> str:
    """Draft an instruction from the package's change log and from the names of the failing tests. It names no file.

    A person has to check that the behaviour that each hidden test asks for follows from the text.
    """
    items = changelog_items(release.new, new)
    behaviours = sorted({readable_name(test) for test in fail_to_pass})
    parts = [f"# {release.package}: mend what version {release.old} gets wrong\n"]
    parts.append(f"The repository holds {release.package} {release.old}. Change it so that the following holds.\n")
    if items:
        parts.append("\n".join(f"- {item}" for item in items) + "\n")
    parts.append("Behaviours that hidden tests look at:\n")
    parts.append("\n".join(f"- {behaviour}" for behaviour in behaviours) + "\n")
    parts.append("What works today must go on working.\n")
    return "\n".join(parts)


def changelog_items(version: str, files: Mapping[str, BundleFile]) -> list[str]:
    """Return the items below a version's heading in the change log, without links, thanks and items that name files."""
    path = next((path for path in sorted(files) if _CHANGELOG.fullmatch(path)), None)
    if path is None:
        return []
    lines = files[path].content.decode(errors="replace").splitlines()
    heading = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.]*\d)")
    start = next((index for index, line in enumerate(lines) if heading.search(line) and not _ITEM.match(line)), None)
    if start is None:
        return []
    return _items(lines[start + 1 :])[:MAX_ITEMS]


def readable_name(test: str) -> str:
    """Return the words of a test's name: ``tests/a.py::TestB::test_no_such_thing[1]`` is ``no such thing``."""
    name = test.rpartition("::")[2].partition("[")[0]
    return name.removeprefix("test").replace("_", " ").strip() or name


def _items(lines: Sequence[str]) -> list[str]:
    """Return the list items up to the next heading with a version."""
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
