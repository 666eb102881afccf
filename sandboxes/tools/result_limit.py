"""The limit of what one tool call returns to a policy."""

MAX_CHARS = 30_000
"""The default maximum of characters of a result."""


def clipped(text: str, limit: int) -> str:
    """Return ``text``, with its middle elided if it has more than ``limit`` characters (``limit`` is at least 100)."""
    if len(text) <= limit:
        return text
    keep = limit - 60
    head, tail = text[: keep - keep // 2], text[len(text) - keep // 2 :]
    return f"{head}\n[... {len(text) - keep:,} characters elided ...]\n{tail}"
