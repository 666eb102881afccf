"""A byte-level tokenizer: 256 bytes, merges counted from the corpus of this room, and seven special tokens.

``decode`` is exact for any token ids. A sampled sequence need not equal ``encode(decode(ids))``: most texts have
several token sequences, and ``encode`` returns one of them.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise

MERGES = 320
CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
"""Tokens that structure a conversation. They are no part of a reply's text."""

MARKUP = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Tokens that structure a reply. They are part of its text."""

_MAX_CACHED_WORDS = 65_536
_WORDS = re.compile(rb" ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\n+|[ \t]+|\s")
"""The parts that merges never cross. Every byte belongs to exactly one part."""

_Pair = tuple[bytes, bytes]


class Tokenizer:
    """Token ids 0 to 255 are the bytes, then come the merges in their order, then ``CONTROL`` and ``MARKUP``.

    ``ends`` are the tokens that end a reply.
    """

    def __init__(self, merges: Sequence[_Pair]) -> None:
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        texts = [bytes([byte]) for byte in range(256)] + [left + right for left, right in merges]
        self.special = {name: len(texts) + index for index, name in enumerate((*CONTROL, *MARKUP))}
        self._ids = {text: number for number, text in enumerate(texts)}
        self._texts = (*texts, *(name.encode() for name in self.special))
        self._control = frozenset(self.special[name] for name in CONTROL)
        self.ends = (self.special["<|im_end|>"], self.special["<|endoftext|>"])
        self._cached: dict[bytes, tuple[int, ...]] = {}

    @property
    def size(self) -> int:
        """Return the number of tokens."""
        return len(self._texts)

    @property
    def plain_size(self) -> int:
        """Return the number of tokens that are not special. Their ids come first."""
        return len(self._ids)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token. Raises IndexError for an id outside the vocabulary."""
        return self._texts[token]

    def is_control(self, token: int) -> bool:
        return token in self._control

    def encode(self, text: str, allow: Iterable[str] = ()) -> list[int]:
        """Return the token ids of a text. Names of special tokens are plain text unless ``allow`` lists them."""
        names = sorted(allow)
        if not names:
            return self._encode_plain(text)
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, names))})", text):
            ids += [self.special[part]] if part in names else self._encode_plain(part)
        return ids

    def decode_bytes(self, ids: Iterable[int], *, skip_control: bool = False) -> bytes:
        """Return the exact bytes of token ids. Raises IndexError for an id outside the vocabulary."""
        return b"".join(self._texts[token] for token in ids if not (skip_control and token in self._control))

    def decode(self, ids: Iterable[int], *, skip_control: bool = False) -> str:
        """Return the text of token ids, with U+FFFD for bytes that are not UTF-8."""
        return self.decode_bytes(ids, skip_control=skip_control).decode(errors="replace")

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in _WORDS.findall(text.encode(errors="replace")):
            found = self._cached.get(word)
            if found is None:
                if len(self._cached) >= _MAX_CACHED_WORDS:
                    self._cached.clear()
                found = self._cached[word] = tuple(self._ids[part] for part in self._merge(word))
            ids += found
        return ids

    def _merge(self, word: bytes) -> list[bytes]:
        """Return the parts of a word after all merges, the lowest rank first."""
        parts = [word[index : index + 1] for index in range(len(word))]
        while len(parts) > 1:
            ranks = [self._ranks.get(pair, MERGES) for pair in pairwise(parts)]
            lowest = min(ranks)
            if lowest == MERGES:
                break
            parts = _joined(parts, (parts[at := ranks.index(lowest)], parts[at + 1]))
        return parts


def _joined(parts: Sequence[bytes], pair: _Pair) -> list[bytes]:
    """Return ``parts`` with each occurrence of the pair as one part, from left to right."""
    joined: list[bytes] = []
    index = 0
    while index < len(parts):
        if index + 1 < len(parts) and (parts[index], parts[index + 1]) == pair:
            joined.append(parts[index] + parts[index + 1])
            index += 2
        else:
            joined.append(parts[index])
            index += 1
    return joined


def count_merges(text: bytes, number: int) -> list[_Pair]:
    """Return the merges of a text: repeatedly the most frequent pair, of equal pairs the smallest."""
    words = Counter(_WORDS.findall(text))
    split = {word: [word[index : index + 1] for index in range(len(word))] for word in words}
    counts: Counter[_Pair] = Counter()
    places: defaultdict[_Pair, set[bytes]] = defaultdict(set)
    for word, parts in split.items():
        for pair in pairwise(parts):
            counts[pair] += words[word]
            places[pair].add(word)
    merges: list[_Pair] = []
    while len(merges) < number and any(counts.values()):
        highest = max(counts.values())
        chosen = min(pair for pair, count in counts.items() if count == highest)
        merges.append(chosen)
        for word in places[chosen]:
            before, split[word] = split[word], _joined(split[word], chosen)
            for pair in pairwise(before):
                counts[pair] -= words[word]
            for pair in pairwise(split[word]):
                counts[pair] += words[word]
                places[pair].add(word)
        del counts[chosen], places[chosen]
    return merges


def corpus() -> str:
    """Return the text that merges and n-grams are counted from. Names of special tokens in it are these tokens."""
    return files("farm.model_server").joinpath("corpus.txt").read_text(encoding="utf-8")


@cache
def load_tokenizer() -> Tokenizer:
    """Return the tokenizer of the served models. The same corpus gives the same tokens on every machine."""
    plain = re.sub("|".join(map(re.escape, (*CONTROL, *MARKUP))), "", corpus())
    return Tokenizer(count_merges(plain.encode(), MERGES))
