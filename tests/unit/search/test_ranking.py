"""Which chunks answer a question."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.search.embeddings.word_table import WordEmbedder
from sandboxes.search.errors import BadIndex
from sandboxes.search.index.segment import IndexSegment, SourceFile, build
from sandboxes.search.index.segment_format import pack, unpack
from sandboxes.search.ranking import Hit, Part, Question, search
from tests.support.sandboxes.searching import toy

COOKIES = """\
def parse_cookie(header):
    return dict(split(header))


def dump_cookie(name, value):
    return name
"""
URLS = """\
def join(base, url):
    return base + url


class Map:
    def match(self, path):
        return None
"""
SALE = """\
def remove(goods):
    del goods


def add(goods):
    goods.append(1)
"""
FILES = {
    "shop/cookies.py": COOKIES,
    "shop/urls.py": URLS,
    "shop/sale.py": SALE,
    "notes.txt": "The cookie jar is where cookies are kept.\n",
}
EMBEDDER = toy()


def sources(files: Mapping[str, str]) -> list[SourceFile]:
    return [SourceFile(path, hashlib.sha256(text.encode()).digest(), text.encode()) for path, text in files.items()]


def part(segment: IndexSegment, *gone: str) -> Part:
    live = np.array([path not in gone for path in segment.paths], np.bool_)
    return Part(segment, live[segment.files])


def found(
    question: str, *parts: Part, limit: int = 10, within: str = "", embedder: WordEmbedder | None = None
) -> list[Hit]:
    return search(Question.of(question, embedder), parts, limit, within)


WHOLE = part(build(sources(FILES), EMBEDDER))


def test_identifier_is_found_by_its_words() -> None:
    first = found("where is the header of a cookie parsed?", WHOLE)[0]
    assert (first.path, first.first, first.last, first.name) == ("shop/cookies.py", 1, 2, "parse_cookie")


def test_exact_identifier_is_first_hit() -> None:
    assert found("dump_cookie", WHOLE)[0].name == "dump_cookie"


def test_unknown_word_finds_synonym() -> None:
    assert found("delete", WHOLE) == []
    assert found("delete", WHOLE, embedder=EMBEDDER)[0].name == "remove"


def test_unrelated_question_has_no_hits() -> None:
    assert found("zebra", WHOLE, embedder=EMBEDDER) == []


def test_hits_are_limited_to_requested_path() -> None:
    assert {hit.path for hit in found("cookie", WHOLE)} == {"shop/cookies.py", "notes.txt"}
    assert {hit.path for hit in found("cookie", WHOLE, within="shop")} == {"shop/cookies.py"}
    assert {hit.path for hit in found("cookie", WHOLE, within="notes.txt")} == {"notes.txt"}
    assert found("cookie", WHOLE, within="sho") == []


def test_equal_chunks_come_by_path_and_line() -> None:
    files = {f"{name}.py": "def same():\n    pass\n\n\ndef same():\n    pass\n" for name in "cab"}
    hits = found("same", part(build(sources({**files, "d.py": "x = 1"}), None)), limit=4)
    assert [(hit.path, hit.first) for hit in hits] == [("a.py", 1), ("a.py", 5), ("b.py", 1), ("b.py", 5)]


def test_changed_file_is_found_only_by_new_text() -> None:
    later = build(sources({"shop/sale.py": "def remove_cookie():\n    pass\n"}), EMBEDDER)
    parts = (part(WHOLE.segment, "shop/sale.py"), part(later))
    assert [hit.name for hit in found("remove", *parts)] == ["remove_cookie"]


WORDS = st.lists(st.sampled_from(["cookie", "parse", "Map", "join", "url", "goods", "add", "x"]), max_size=8)
DEFINITIONS = WORDS.map(lambda words: f"def {words[0] if words else 'f'}():\n    # {' '.join(words)}\n    pass\n")
TREES = st.dictionaries(
    st.sampled_from(["a.py", "b/c.py", "b/d.txt", "e.js", "f.py"]), st.lists(DEFINITIONS, max_size=4).map("\n".join)
)


@given(TREES, TREES, st.sets(st.sampled_from(["a.py", "b/c.py", "e.js"])), WORDS.map(" ".join))
def test_hits_depend_on_tree_and_not_segments(
    old: dict[str, str], changed: dict[str, str], removed: set[str], question: str
) -> None:
    """Hits and scores are equal for one segment and for several segments of the same tree."""
    now = {path: text for path, text in (old | changed).items() if path not in removed}
    whole = found(question, part(build(sources(now), EMBEDDER)), embedder=EMBEDDER)
    gone = (set(old) & set(changed)) | removed
    pieces = (
        part(build(sources(old), EMBEDDER), *gone),
        part(build(sources(changed), EMBEDDER), *removed),
    )
    apart = found(question, *pieces, embedder=EMBEDDER)
    assert [(hit.path, hit.first, hit.last, hit.name) for hit in apart] == [
        (hit.path, hit.first, hit.last, hit.name) for hit in whole
    ]
    assert [hit.score for hit in apart] == pytest.approx([hit.score for hit in whole])


def same(left: Sequence[IndexSegment], right: Sequence[IndexSegment]) -> bool:
    return [pack(segment) for segment in left] == [pack(segment) for segment in right]


def test_segments_round_trip() -> None:
    segments = [WHOLE.segment, build([], EMBEDDER), build(sources({"caf\udce9.py": "def f(): pass"}), None)]
    data = b"".join(map(pack, segments))
    assert same(unpack(data), segments)


@given(st.data())
def test_corrupt_index_bytes_raise_bad_index(data: st.DataObject) -> None:
    packed = bytearray(pack(WHOLE.segment))
    if data.draw(st.booleans()):
        del packed[data.draw(st.integers(1, len(packed) - 1)) :]
        with pytest.raises(BadIndex):
            unpack(bytes(packed))
        return
    for at, byte in data.draw(
        st.dictionaries(st.integers(0, len(packed) - 1), st.integers(0, 255), max_size=5)
    ).items():
        packed[at] = byte
    try:
        broken = unpack(bytes(packed))
    except BadIndex:
        return
    for segment in broken:  # whatever they say, nothing in them leads outside
        found("parse cookie", part(segment))
