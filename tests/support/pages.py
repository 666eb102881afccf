"""The pages of the documentation: their blocks of code, headings, and links."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = (ROOT / "farm" / "docs", ROOT / "sandboxes" / "docs")
PAGES = (README, *sorted(page for folder in DOCS for page in folder.rglob("*.md")))
OTHERS = (*sorted((ROOT / ".github").glob("*.md")), ROOT / "tests" / "attacks" / "README.md")
"""Markdown that is no page of the documentation; its links are checked all the same."""

_BLOCK = re.compile(r"(?:^<!-- not run: ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. ``not_run`` is the reason why the test of the page leaves it out, empty if it runs it.

    In the page's source the reason stands on the line above the block: ``<!-- not run: REASON -->``.
    """

    language: str
    text: str
    not_run: str


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page in these languages, in their order."""
    every = [Block(language, text, reason) for reason, language, text in _BLOCK.findall(page.read_text())]
    return [block for block in every if block.language in languages]


def prose(page: Path) -> str:
    """Return the text of a page without its blocks."""
    return _BLOCK.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    names = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(prose(page)))
    return set(names)


def links(page: Path) -> list[str]:
    """Return the targets of a page's links that lead to no other site."""
    return [target for target in _LINK.findall(prose(page)) if "://" not in target and not target.startswith("mailto:")]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))
