"""Words, their parts and their stems."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.search.terms import LONGEST_WORD, parts, stem, terms, words


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("parse_http_date", ("parse", "http", "date")),
        ("parseHTTPDate_v2", ("parse", "http", "date", "v", "2")),
        ("XMLHttpRequest", ("xml", "http", "request")),
        ("__init__", ("init",)),
        ("sha256sum", ("sha", "256", "sum")),
        ("größe_überprüfen", ("größe", "überprüfen")),
        ("_", ()),
    ],
)
def test_word_is_split_at_case_digits_and_underscores(word: str, expected: tuple[str, ...]) -> None:
    assert parts(word) == expected


@pytest.mark.parametrize(
    "forms",
    [
        ("parse", "parses", "parsed", "parsing", "parser"),
        ("cookie", "cookies"),
        ("match", "matches", "matching"),
        ("query", "queries"),
        ("tokenize", "tokenizer", "tokenization", "tokenise"),
        ("validate", "validates", "validation", "validator"),
        ("stop", "stopped", "stopping"),
        ("quick", "quickly"),
        ("class", "classes"),
    ],
)
def test_forms_of_a_word_have_one_stem(forms: tuple[str, ...]) -> None:
    assert len({stem(form) for form in forms}) == 1, {form: stem(form) for form in forms}


@pytest.mark.parametrize("pair", [("status", "state"), ("string", "strip"), ("process", "proceed"), ("thing", "the")])
def test_other_words_have_other_stems(pair: tuple[str, str]) -> None:
    assert stem(pair[0]) != stem(pair[1])


def test_identifier_is_term_beside_its_parts() -> None:
    assert terms("_getUser_names") == ("get", "user", "nam", "getuser_names")
    assert terms("user") == (stem("user"),)


@given(st.text())
def test_any_text_has_terms_of_bounded_length(text: str) -> None:
    for word in words(text):
        assert all(0 < len(term) <= 3 * LONGEST_WORD for term in terms(word))
