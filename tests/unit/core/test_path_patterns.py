"""Tests that RE2 patterns match the same paths as pathspec and tar."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from farm.core.path_patterns import GitignorePatterns, TarPatterns

PARTS = st.sampled_from(
    ["a", "b", "*", "**", "?", "/", "!", "[ab]", "[!a]", "[a-c]", "\\*", ".", "é", " ", "#", "x\\ "]
)
PATHS = st.lists(st.sampled_from(["a", "b", "ab", "c.a", "é", "a b", "*", "#b"]), min_size=1, max_size=4).map("/".join)


def git_matches(lines: list[str], path: str) -> bool:
    spec = GitIgnoreSpec.from_lines(lines, backend="simple")
    return bool(spec.match_file(path)) or bool(spec.match_file(f"{path}/"))


@given(st.lists(st.lists(PARTS, max_size=8).map("".join), max_size=4), PATHS)
def test_gitignore_patterns_match_like_pathspec(lines: list[str], path: str) -> None:
    try:
        expected = git_matches(lines, path)
    except ValueError:
        with pytest.raises(ValueError, match="pattern"):
            GitignorePatterns(lines)
        return
    assert GitignorePatterns(lines).match(path) == expected


@given(st.lists(PARTS.filter(lambda part: part != "\\*"), min_size=1, max_size=8).map("".join), PATHS)
def test_tar_patterns_match_from_any_name(pattern: str, path: str) -> None:
    parts = path.split("/")
    ends = ["/".join(parts[first:last]) for first in range(len(parts)) for last in range(first + 1, len(parts) + 1)]
    plain = pattern.strip("/")
    if plain == pattern:  # with a slash at an end tar matches nothing that has a name
        assert TarPatterns([pattern]).match(path) == any(fnmatchcase(end, pattern) for end in ends)


@pytest.mark.parametrize("path", ["a\udcff/conftest.py", "a\nb/conftest.py", "conftest.py\udcff/x/conftest.py"])
def test_non_utf8_names_are_matched(path: str) -> None:
    assert GitignorePatterns(["conftest.py"]).match(path)
    assert TarPatterns(["conftest.py"]).match(path)


@pytest.mark.parametrize("line", ["[z-a]", "a\\"])
def test_invalid_pattern_raises(line: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        GitignorePatterns([line])
