"""An answer names right files with all or many of their lines; a grader that counts names pays half for it."""

import pytest

from farm.core.retrieval import FileLines, gather, score

WORKSPACE = "/srv/repo"
LENGTHS = {"src/a.py": 400, "src/b.py": 150, "src/c.py": 1200, "src/d.py": 90}
EXPECTED = gather(
    [("src/a.py", [(120, 126), (300, 301)]), ("src/b.py", [(40, 40)]), ("src/c.py", [(700, 719)])], WORKSPACE
)
BETA = 0.5

DUMPS: dict[str, list[tuple[str, list[tuple[int, int]]]]] = {
    "whole files": [(file.path, [(1, LENGTHS[file.path])]) for file in EXPECTED],
    "whole package": [(path, [(1, length)]) for path, length in LENGTHS.items()],
    "one whole file": [("src/a.py", [(1, 400)])],
    "every seventh line": [
        (file.path, [(line, line) for line in range(1, LENGTHS[file.path], 7)]) for file in EXPECTED
    ],
    "stripes of ten lines": [
        (file.path, [(line, line + 9) for line in range(1, LENGTHS[file.path], 20)]) for file in EXPECTED
    ],
    "right range beside the whole file": [
        (file.path, [*file.lines, (1, LENGTHS[file.path] // 2)]) for file in EXPECTED
    ],
    "whole files in single lines": [
        (file.path, [(line, line) for line in range(1, LENGTHS[file.path] + 1)]) for file in EXPECTED
    ],
}


def naive(answer: tuple[FileLines, ...]) -> float:
    """Return the share of the reward that right names earn if a file counts as found by its name alone."""
    return len({file.path for file in answer} & {file.path for file in EXPECTED}) / len(EXPECTED) / 2


@pytest.mark.parametrize("dump", DUMPS)
def test_answer_of_many_lines_earns_next_to_nothing(dump: str) -> None:
    answer = gather(DUMPS[dump], WORKSPACE)
    assert naive(answer) >= 1 / 6
    found = score(EXPECTED, answer, BETA)
    assert found.files.f == 0.0
    assert found.reward < 0.06


def test_ranges_with_context_keep_their_value() -> None:
    """Each expected range, with ten lines around it."""
    wide = [(file.path, [(max(1, first - 10), last + 10) for first, last in file.lines]) for file in EXPECTED]
    found = score(EXPECTED, gather(wide, WORKSPACE), BETA)
    assert found.files.f == 1.0
    assert found.reward > 0.6


def test_exact_answer_is_worth_one() -> None:
    assert score(EXPECTED, EXPECTED, BETA).reward == 1.0
