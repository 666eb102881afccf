"""Tests of the score of retrieval answers, compared with a direct count of files and lines."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.core.retrieval import CONTEXT_LINES, NARROW_SHARE, FileLines, f_measure, gather, score

Named = list[tuple[str, list[tuple[int, int]]]]

WORKSPACE = "/srv/repo"
PATHS = st.sampled_from(["a.py", "b.py", "src/c.py", "/srv/repo/a.py", "./b.py", "src/../a.py", "/etc/passwd"])
RANGES = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair))), max_size=4)
NAMED = st.lists(st.tuples(PATHS, RANGES), max_size=6)
WANTED = st.lists(st.tuples(PATHS, RANGES.filter(bool)), min_size=1, max_size=6)
BETAS = st.floats(0.01, 100)


def lines_of(files: tuple[FileLines, ...]) -> set[tuple[str, int]]:
    return {(file.path, line) for file in files for first, last in file.lines for line in range(first, last + 1)}


@given(WANTED, NAMED, BETAS)
def test_score_equals_direct_count(wanted: Named, named: Named, beta: float) -> None:
    expected, answer = gather(wanted, WORKSPACE), gather(named, WORKSPACE)
    found = score(expected, answer, beta)
    right_lines = lines_of(expected) & lines_of(answer)
    near = {(path, line + by) for path, line in lines_of(expected) for by in range(-CONTEXT_LINES, CONTEXT_LINES + 1)}
    narrow = {file.path for file in answer if len(lines_of((file,)) & near) >= NARROW_SHARE * len(lines_of((file,)))}
    right_files = {path for path, _ in right_lines} & narrow
    for seen, right, said, wanted_count in (
        (found.files, right_files, answer, len(expected)),
        (found.lines, right_lines, lines_of(answer), len(lines_of(expected))),
    ):
        assert seen.precision == (len(right) / len(said) if said else 0.0)
        assert seen.recall == len(right) / wanted_count
        assert 0 <= seen.f <= 1
        assert min(seen.precision, seen.recall) - 1e-9 <= seen.f <= max(seen.precision, seen.recall) + 1e-9
    assert 0 <= found.reward <= 1
    assert found.reward == (found.files.f + found.lines.f) / 2
    assert set(found.components) == {
        f"{of}_{what}" for of in ("files", "lines") for what in ("precision", "recall", "f")
    }


@given(WANTED, BETAS)
def test_exact_answer_earns_one_empty_zero(wanted: Named, beta: float) -> None:
    expected = gather(wanted, WORKSPACE)
    assert score(expected, expected, beta).reward == 1.0
    assert score(expected, (), beta).reward == 0.0


@given(NAMED, st.randoms(use_true_random=False))
def test_order_repetition_and_splitting_are_irrelevant(named: Named, rng: random.Random) -> None:
    pieces = [
        (path, [(line, line)]) for path, ranges in named for first, last in ranges for line in range(first, last + 1)
    ]
    shuffled = [*named, *named, *pieces]
    rng.shuffle(shuffled)
    assert gather(shuffled, WORKSPACE) == gather(named, WORKSPACE)


@given(WANTED, BETAS)
def test_extra_file_lowers_only_precision(wanted: Named, beta: float) -> None:
    expected = gather(wanted, WORKSPACE)
    more = score(expected, gather([*wanted, ("more.py", [(1, 5)])], WORKSPACE), beta)
    assert (more.files.recall, more.lines.recall) == (1.0, 1.0)
    assert more.files.precision < 1.0
    assert more.lines.precision < 1.0
    assert more.reward < 1.0


def test_beta_weights_recall() -> None:
    """P = 1/2, R = 1."""
    assert f_measure(0.5, 1.0, 1.0) == pytest.approx(2 / 3)
    assert f_measure(0.5, 1.0, 0.5) == pytest.approx(1.25 * 0.5 / (0.125 + 1))
    assert f_measure(0.5, 1.0, 0.5) < f_measure(0.5, 1.0, 1.0) < f_measure(0.5, 1.0, 2.0)
    assert f_measure(0.5, 1.0, 0.001) == pytest.approx(0.5, abs=1e-5)
    assert f_measure(0.5, 1.0, 1000) == pytest.approx(1.0, abs=1e-5)
    assert f_measure(0.0, 0.0, 0.5) == 0.0


def test_huge_range_counts_all_its_lines() -> None:
    expected = gather([("a.py", [(10, 19)])], WORKSPACE)
    found = score(expected, gather([("a.py", [(1, 10**9)])], WORKSPACE), 0.5)
    assert found.lines.recall == 1.0
    assert found.lines.precision == 1e-8
    assert found.reward < 1e-7


def test_file_counts_only_with_narrow_ranges() -> None:
    expected = gather([("a.py", [(10, 19)]), ("b.py", [(1, 1)])], WORKSPACE)
    for answer, files in (
        ([("a.py", []), ("b.py", [])], 0.0),
        ([("a.py", [(20, 29)]), ("b.py", [(2, 3)])], 0.0),
        ([("a.py", [(2, 53)]), ("b.py", [(1, 18)])], 1.0),
        ([("a.py", [(2, 54)]), ("b.py", [(1, 19)])], 0.0),
        ([("a.py", [(19, 25)]), ("b.py", [])], 0.5),
    ):
        assert score(expected, gather(answer, WORKSPACE), 1.0).files.f == files
    assert score(expected, gather([("a.py", []), ("b.py", [])], WORKSPACE), 1.0).reward == 0.0


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("src/a.py", "src/a.py"),
        ("/srv/repo/src/a.py", "src/a.py"),
        ("//srv/repo//src/./a.py", "src/a.py"),
        ("src/../../repo/src/a.py", "src/a.py"),
        ("/srv/repository/a.py", "../repository/a.py"),
        ("../../../../../etc/passwd", "../../etc/passwd"),
    ],
)
def test_paths_of_one_file_are_merged(path: str, known: str) -> None:
    assert gather([(path, [])], WORKSPACE) == (FileLines(known, ()),)
