"""The prior of a reply: how likely reasoning, text, tool calls and the end of the reply are at each position.

A position has experts. Each expert is the language model's own distribution, limited to some tokens. The next token's
distribution is their mixture plus ``LEAK`` of the unlimited model, so every token keeps a probability above zero.
The position is a function of the token ids alone, of the prompt and of the reply so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from farm.model_server.priors.tool_grammar import (
    END,
    Choice,
    Position,
    Symbol,
    Text,
    advance,
    call_grammar,
    offered_tools,
)
from farm.model_server.tokenizer import Tokenizer, load_tokenizer

LEAK = 0.004
"""The share of the unlimited language model inside a reply."""

MAX_EXPERTS = 3
_SPELLING_POWER = 0.25
"""The power of the language model's probabilities between spellings of a call, so that rare names are called too."""

_LENGTH_SCALE = 64.0
"""The preference for a token over one that is a byte shorter, between tokens that spell the same text."""

_MAX_COUNT = 64
_MAX_EXPERTS_CACHED = 16_384
_PRINTABLE = frozenset(range(0x20, 0x7F))
_SENTENCE_TOKENS = 5
_LONG_TOKENS = 40


class Phase(StrEnum):
    OUTSIDE = "outside"
    """Not in an assistant's reply."""
    HEADER = "header"
    """Between ``<|im_start|>`` and the end of the role's line."""
    START = "start"
    THINK = "think"
    THOUGHT = "thought"
    """After a line of reasoning."""
    AFTER_THINK = "after_think"
    ANSWER = "answer"
    """Before the first token that is neither reasoning nor a blank line."""
    TEXT = "text"
    LINE = "line"
    """After a line of text."""
    CALL = "call"
    AFTER_CALL = "after_call"
    BETWEEN = "between"
    """After a call and a line break."""


@dataclass(frozen=True, slots=True)
class ReplyPosition:
    """``count`` tokens are in the current text; ``ended``: the last one ends a sentence. ``header``: role so far."""

    phase: Phase = Phase.OUTSIDE
    grammar: Symbol | None = None
    count: int = 0
    ended: bool = False
    call: Position | None = None
    header: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Expert:
    """The language model limited to ``ids``, as ``weight`` of the whole distribution.

    The probability of each token is raised to ``power`` and multiplied by its ``scale``.
    """

    weight: float
    ids: NDArray[np.intp]
    scale: NDArray[np.float64]
    power: float = 1.0


class ReplyPrior:
    """The positions and experts over one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special
        self._names = {token: name for name, token in tokenizer.special.items()}
        plain = [(token, tokenizer.token_bytes(token)) for token in range(tokenizer.plain_size)]
        self._text = np.array([token for token, text in plain if _PRINTABLE.issuperset(text)])
        self._string = np.array([token for token, text in plain if (_PRINTABLE - set(b'"\\')).issuperset(text)])
        self._text_scale, self._string_scale = np.ones(len(self._text)), np.ones(len(self._string))
        self._newline, self._blank_line = (tokenizer.encode(text)[0] for text in ("\n", "\n\n"))
        self._by_first: dict[int, list[tuple[int, bytes]]] = {byte: [] for byte in range(256)}
        for token, text in plain:
            self._by_first[text[0]].append((token, text))
        self._experts: dict[ReplyPosition, tuple[Expert, ...]] = {}

    def locate(self, ids: Sequence[int]) -> ReplyPosition:
        """Return the position after token ids."""
        start = self._special["<|im_start|>"]
        at = _last(ids, start)
        position = ReplyPosition()
        if at is not None:
            for index in range(at, len(ids)):
                position = self.push(position, ids, index)
        return position

    def push(self, position: ReplyPosition, ids: Sequence[int], index: int) -> ReplyPosition:
        """Return the position after the token at ``index`` of ``ids``."""
        token = ids[index]
        name = self._names.get(token)
        if name is not None:
            return self._after_special(position, name)
        text = self._tokenizer.token_bytes(token)
        if position.phase is Phase.HEADER:
            return self._after_header(replace(position, header=position.header + text), ids)
        return _after_text(position, text)

    def allowed(self, position: ReplyPosition) -> NDArray[np.intp] | None:
        """Return the tokens that lead to a well-formed call of an offered tool and to the end of the reply after it.

        Return None, for no limit, if no tool is offered.
        """
        if position.grammar is None:
            return None
        if position.phase in (Phase.CALL, Phase.AFTER_CALL, Phase.BETWEEN):
            return np.concatenate([expert.ids for expert in self.experts(position)])
        return np.array([self._special["<tool_call>"]])

    def experts(self, position: ReplyPosition) -> tuple[Expert, ...]:
        """Return the experts of a position; none means the unlimited language model."""
        key = position
        if position.call is not None and isinstance(position.call.symbol, Text):
            key = replace(position, call=_shortened(position.call, position.call.symbol))
        found = self._experts.get(key)
        if found is None:
            if len(self._experts) >= _MAX_EXPERTS_CACHED:
                self._experts.clear()
            found = self._experts[key] = self._make_experts(key)
        return found

    def _after_special(self, position: ReplyPosition, name: str) -> ReplyPosition:
        """Return the position after a special token. One in an unusual place leads to plain text."""
        phase, grammar = position.phase, position.grammar
        match name:
            case "<|im_start|>":
                return ReplyPosition(Phase.HEADER)
            case "<|im_end|>" | "<|endoftext|>":
                return ReplyPosition()
            case _ if phase in (Phase.OUTSIDE, Phase.HEADER):
                return ReplyPosition()
            case "<think>" if phase is Phase.START:
                return ReplyPosition(Phase.THINK, grammar)
            case "</think>" if phase in (Phase.THINK, Phase.THOUGHT):
                return ReplyPosition(Phase.AFTER_THINK, grammar)
            case "<tool_call>" if grammar is not None and phase not in (Phase.CALL, Phase.THINK, Phase.THOUGHT):
                return ReplyPosition(Phase.CALL, grammar, call=Position(grammar))
            case "</tool_call>" if position.call is not None and position.call.symbol is END:
                return ReplyPosition(Phase.AFTER_CALL, grammar)
            case _:
                return ReplyPosition(Phase.TEXT, grammar, count=_SENTENCE_TOKENS)

    def _after_header(self, position: ReplyPosition, ids: Sequence[int]) -> ReplyPosition:
        if b"\n" not in position.header:
            return position
        if position.header != b"assistant\n":
            return ReplyPosition()
        return ReplyPosition(Phase.START, call_grammar(offered_tools(self._system_message(ids))))

    def _system_message(self, ids: Sequence[int]) -> str:
        """Return the text of the first message if it is a system message, otherwise nothing."""
        start, end = self._special["<|im_start|>"], self._special["<|im_end|>"]
        if not ids or ids[0] != start or end not in ids:
            return ""
        header, _, text = self._tokenizer.decode(ids[1 : ids.index(end)]).partition("\n")
        return text if header == "system" else ""

    def _make_experts(self, position: ReplyPosition) -> tuple[Expert, ...]:
        return tuple(part for part in self._parts(position) if part.weight)

    def _parts(self, position: ReplyPosition) -> list[Expert]:
        offered = position.grammar is not None
        text = partial(Expert, ids=self._text, scale=self._text_scale)
        match position.phase:
            case Phase.START if offered:
                return [self._mark(0.35, "<think>"), self._mark(0.42, "<tool_call>"), text(0.23)]
            case Phase.START:
                return [self._mark(0.25, "<think>"), text(0.75)]
            case Phase.ANSWER if offered:
                return [self._mark(0.75, "<tool_call>"), text(0.25)]
            case Phase.ANSWER:
                return [text(1.0)]
            case Phase.TEXT:
                stop = _stop_probability(position)
                line = 0.7 * stop if offered else 0.0
                end = self._mark(stop - line, "<|im_end|>")
                return [text(1.0 - stop), end, self._token(line, self._newline)]
            case Phase.LINE if offered:
                return [self._mark(0.9, "<tool_call>"), text(0.1)]
            case Phase.LINE:
                return [text(0.8), self._mark(0.2, "<|im_end|>")]
            case Phase.THINK if position.count == 0:
                return [self._token(1.0, self._newline)]
            case Phase.THINK:
                stop = _stop_probability(position)
                return [text(1.0 - stop), self._token(stop, self._newline)]
            case Phase.THOUGHT:
                return [self._mark(1.0, "</think>")]
            case Phase.AFTER_THINK:
                return [self._token(1.0, self._blank_line)]
            case Phase.CALL if position.call is not None:
                return self._call_parts(position.call)
            case Phase.AFTER_CALL:
                return [self._mark(0.9, "<|im_end|>"), self._token(0.1, self._newline)]
            case Phase.BETWEEN:
                return [self._mark(1.0, "<tool_call>")]
            case _:
                return []

    def _call_parts(self, call: Position) -> list[Expert]:
        match call.symbol:
            case Choice(options):
                return [self._spelling(1.0, call, _rests(call, [text for text, _ in options]))]
            case Text(hints):
                live = _rests(call, hints)
                close = _close_probability(call, live)
                hint = 0.0 if not any(live) else 0.7 if not call.done else 0.95 * (1.0 - close)
                closing = self._spelling(close, call, [b'"'])
                follow = self._spelling(hint, call, [rest for rest in live if rest])
                return [closing, follow, Expert(1.0 - close - hint, self._string, self._string_scale)]
            case _:
                return [self._mark(1.0, "</tool_call>")]

    def _spelling(self, weight: float, call: Position, rests: Sequence[bytes]) -> Expert:
        """Return the expert of the tokens that begin one of several texts and fit the grammar, each text alike."""
        scales: dict[int, float] = {}
        for rest in rests:
            fitting = {
                token: _LENGTH_SCALE ** (len(text) - 1)
                for token, text in self._by_first[rest[0]]
                if (rest.startswith(text) or text.startswith(rest)) and advance(call, text) is not None
            }
            total = sum(fitting.values())
            for token, scale in fitting.items():
                scales[token] = scales.get(token, 0.0) + scale / total
        return Expert(weight, np.array([*scales], dtype=np.intp), np.array([*scales.values()]), _SPELLING_POWER)

    def _mark(self, weight: float, name: str) -> Expert:
        return self._token(weight, self._special[name])

    def _token(self, weight: float, token: int) -> Expert:
        return Expert(weight, np.array([token]), np.ones(1))


def _after_text(position: ReplyPosition, text: bytes) -> ReplyPosition:
    """Return the position after a token that is not special."""
    phase, grammar = position.phase, position.grammar
    is_line = not text.strip(b"\n")
    count = min(position.count + 1, _MAX_COUNT)
    ended = text.endswith((b".", b"!", b"?"))
    match phase:
        case Phase.OUTSIDE:
            return position
        case Phase.CALL if position.call is not None:
            call = advance(position.call, text)
            if call is not None:
                return replace(position, call=call)
            return ReplyPosition(Phase.TEXT, grammar, count=_SENTENCE_TOKENS)
        case Phase.THINK if is_line and position.count:
            return ReplyPosition(Phase.THOUGHT, grammar, position.count)
        case Phase.THINK | Phase.THOUGHT:
            return ReplyPosition(Phase.THINK, grammar, count, ended)
        case Phase.TEXT if is_line:
            return ReplyPosition(Phase.LINE, grammar, position.count)
        case Phase.START | Phase.AFTER_THINK | Phase.ANSWER if is_line:
            return ReplyPosition(Phase.ANSWER, grammar)
        case Phase.AFTER_CALL if is_line:
            return ReplyPosition(Phase.BETWEEN, grammar)
        case _:
            return ReplyPosition(Phase.TEXT, grammar, count, ended)


def _last(ids: Sequence[int], token: int) -> int | None:
    for index in range(len(ids) - 1, -1, -1):
        if ids[index] == token:
            return index
    return None


def _rests(call: Position, texts: Sequence[bytes]) -> list[bytes]:
    """Return the bytes that are left of the texts that begin with the call's bytes."""
    return [text[len(call.done) :] for text in texts if text.startswith(call.done)]


def _shortened(call: Position, symbol: Text) -> Position:
    """Return a position with the same experts whose bytes are bounded: only their number counts if no hint fits."""
    if any(hint.startswith(call.done) for hint in symbol.hints):
        return call
    return Position(symbol, b"\0" * min(len(call.done), _MAX_COUNT))


def _stop_probability(position: ReplyPosition) -> float:
    """Return the probability that a text ends here: mostly after a sentence."""
    if position.count < _SENTENCE_TOKENS:
        return 0.0
    if position.ended:
        return 0.6
    return 0.01 if position.count < _LONG_TOKENS else 0.1


def _close_probability(call: Position, live: Sequence[bytes]) -> float:
    """Return the probability that a string ends here: likely after a whole hint, otherwise by its length."""
    if b"" in live:
        return 0.9
    if live:
        return 0.02
    return min(0.9, 0.03 + 0.03 * len(call.done))


@cache
def load_prior() -> ReplyPrior:
    """Return the prior over the served models' vocabulary."""
    return ReplyPrior(load_tokenizer())
