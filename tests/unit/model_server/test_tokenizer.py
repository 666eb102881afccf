"""The tokenizer: exact texts, special tokens only on request, and texts with several token sequences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.model_server.tokenizer import CONTROL, MARKUP, Tokenizer, corpus, count_merges, load_tokenizer


@pytest.mark.parametrize(
    "text", ["", "def main() -> None:\n    return 0\n", "naïve — 日本語 🙂", "a\tb\r\n\x00", "  x  \n\n\n y"]
)
def test_decoded_text_equals_encoded_text(text: str) -> None:
    tokenizer = load_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text())
def test_any_text_is_encoded_without_loss(text: str) -> None:
    tokenizer = load_tokenizer()
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode(errors="replace")


@given(st.lists(st.integers(0, load_tokenizer().size - 1)))
def test_any_ids_are_decoded_exactly(ids: list[int]) -> None:
    tokenizer = load_tokenizer()
    whole = tokenizer.decode_bytes(ids)
    assert whole == b"".join(map(tokenizer.token_bytes, ids))
    assert tokenizer.decode(ids) == whole.decode(errors="replace")


def test_special_names_are_plain_text_unless_allowed() -> None:
    tokenizer = load_tokenizer()
    text = "<|im_end|><tool_call>"
    assert max(tokenizer.encode(text)) < tokenizer.plain_size
    ids = tokenizer.encode(text, (*CONTROL, *MARKUP))
    assert ids == [tokenizer.special["<|im_end|>"], tokenizer.special["<tool_call>"]]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_control=True) == "<tool_call>"


def test_one_text_has_several_token_sequences() -> None:
    tokenizer = load_tokenizer()
    spelled = list(b"arguments")
    assert tokenizer.decode(spelled) == "arguments"
    assert len(tokenizer.encode("arguments")) < len(spelled)


def test_merges_depend_only_on_the_text() -> None:
    merges = count_merges(b"low lower lowest", 4)
    assert merges[:2] == [(b"l", b"o"), (b"lo", b"w")]
    assert merges == count_merges(b"low lower lowest", 4)
    assert Tokenizer(merges).encode("lowlow") != Tokenizer([]).encode("lowlow")


def test_corpus_is_compressed_by_merges() -> None:
    text = corpus()
    ids = load_tokenizer().encode(text, (*CONTROL, *MARKUP))
    assert len(ids) < len(text) / 2
