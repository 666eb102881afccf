"""Texts that a policy can choose so that reading them takes an hour, were it not done in one pass; each ends soon."""

import pytest

from sandboxes.interface import Capture
from sandboxes.tools.actions.nearby_names import nearest_names
from sandboxes.tools.packs.codex import parse_patch_call
from sandboxes.tools.packs.default.grep import as_bytes_too
from sandboxes.tools.rendering import captured

LONG = 200_000


@pytest.mark.parametrize(
    "script",
    [
        f"cd {' ' * LONG}x",
        f"cd {'a ' * LONG}&& apply_patch",
        f"cd a{' ' * LONG}& apply_patch <<EOF",
        f"apply_patch{' ' * LONG}'x",
        f"apply_patch << '{'E' * LONG}",
    ],
)
def test_long_script_is_no_patch(script: str) -> None:
    assert parse_patch_call(["bash", "-lc", script]) is None


def test_line_of_carriage_returns_is_empty() -> None:
    assert captured(Capture(b"\r" * 5 * LONG, b"", 0), None) == ""


@pytest.mark.parametrize("pattern", ["é" + "[" * LONG, "é" + "[[:" * LONG, "[é" + "[:a" * LONG])
def test_pattern_with_unclosed_classes_is_kept(pattern: str) -> None:
    assert as_bytes_too(pattern).endswith(pattern[1:])


def test_missing_name_among_many_similar_is_handled() -> None:
    beside = [f"{'a' * 150}{number:05}{'a' * 45}" for number in range(20 * LONG // 100)]
    assert nearest_names("a" * 199, beside) == []
    assert nearest_names("a" * 60, ["a" * 58 + "bb"] * LONG)
