"""How a person would edit a text: unique pieces replaced, worked out from the old and the new text."""

import difflib
import functools
import re
from collections.abc import Iterator

_MOST_LINES = 4000
_CONTEXT_LINES = (3, 8, 20)
_NUMBERED = re.compile(r" *(\d+)\t(.*)")


def text_of_view(view: str) -> str | None:
    """The lines of a numbered view without their numbers; None where it is not the view of a whole file."""
    lines = []
    for number, line in enumerate(view.split("\n"), start=1):
        match = _NUMBERED.fullmatch(line)
        if match is None or int(match[1]) != number:
            return None
        lines.append(match[2])
    return "\n".join(lines)


@functools.lru_cache(maxsize=32)
def replacements(old: str, new: str) -> tuple[tuple[str, str], ...] | None:
    """Pairs that, replaced one after another, turn ``old`` into ``new``; each is unique when its turn comes.

    None where no such pairs are found, or the texts are so long that looking for them takes longer than it is worth.
    Remembered, for all episodes of a task ask for the same, and it was half of what an episode of the oracle cost.
    """
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    if max(len(before), len(after)) > _MOST_LINES:
        return None
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    for context in _CONTEXT_LINES:
        text, pairs = old, []
        for piece, replacement in _pieces(matcher, before, after, context):
            if not piece or text.count(piece) != 1:
                break
            text = text.replace(piece, replacement)
            pairs.append((piece, replacement))
        if text == new:
            return tuple(pairs)
    return None


def _pieces(
    matcher: "difflib.SequenceMatcher[str]", before: list[str], after: list[str], context: int
) -> Iterator[tuple[str, str]]:
    for group in matcher.get_grouped_opcodes(context):
        first, last = group[0], group[-1]
        yield "".join(before[first[1] : last[2]]), "".join(after[first[3] : last[4]])
