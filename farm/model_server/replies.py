"""Answers in OpenAI's form: chat and text completions, whole and as streams."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from farm.model_server.chat_template import Call, ParsedReply, parse_growing, parse_reply
from farm.model_server.dialects import Chunk, Dialect, Wanted
from farm.model_server.exchange import DONE, event
from farm.model_server.generation import ABORT, Generation, reply_text
from farm.model_server.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Answering:
    """The properties that all answers to one request share. ``with_calls``: tool calls are parsed."""

    tokenizer: Tokenizer
    dialect: Dialect
    wanted: Wanted
    model: str
    with_calls: bool = False
    include_usage: bool = False

    def chat(self, generation: Generation) -> dict[str, Any]:
        """Return a whole chat completion."""
        parsed = parse_reply(reply_text(generation, self.tokenizer), with_calls=self.with_calls)
        message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning is not None:
            message[self.dialect.reasoning_field] = parsed.reasoning
        if parsed.calls:
            message["content"] = parsed.content or None
            message["tool_calls"] = [_call(generation, *item) for item in enumerate(parsed.calls)]
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(generation, parsed)}
        choice["logprobs"] = self._chat_logprobs(generation, 0) if self.wanted.logprobs else None
        return self._whole("chat.completion", generation, choice)

    def completion(self, generation: Generation) -> dict[str, Any]:
        """Return a whole text completion."""
        choice = {
            "index": 0,
            "text": reply_text(generation, self.tokenizer),
            "finish_reason": generation.finish_reason,
            "logprobs": self._text_logprobs(generation, 0) if self.wanted.logprobs else None,
        }
        return self._whole("text_completion", generation, choice)

    async def stream_chat(self, generation: Generation) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a chat completion. Tool calls come whole, with the last tokens."""
        kind = "chat.completion.chunk"
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        yield self._chunk(kind, generation, first, Chunk((), is_first=True, is_last=False))
        sent, number = ParsedReply("", "", ()), 0
        async for _ in generation.updates():
            text = reply_text(generation, self.tokenizer)
            parse = parse_growing if generation.finish_reason is None else parse_reply
            parsed = parse(text, with_calls=self.with_calls)
            delta = self._delta(generation, sent, parsed)
            if not delta and generation.finish_reason is None and not self.wanted.token_ids:
                continue
            is_last = generation.finish_reason is not None
            choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": None}
            if is_last:
                choice["finish_reason"] = _finish_reason(generation, parsed)
            if self.wanted.logprobs:
                choice["logprobs"] = self._chat_logprobs(generation, number)
            chunk = self._chunk(
                kind, generation, choice, Chunk(generation.tokens[number:], is_first=False, is_last=is_last)
            )
            sent, number = parsed, len(generation.tokens)
            yield chunk
        async for last in self._end_of_stream(kind, generation):
            yield last

    async def stream_completion(self, generation: Generation) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a text completion."""
        kind, sent, number = "text_completion", 0, 0
        async for _ in generation.updates():
            text = reply_text(generation, self.tokenizer)
            choice: dict[str, Any] = {"index": 0, "text": text[sent:], "finish_reason": generation.finish_reason}
            if self.wanted.logprobs:
                choice["logprobs"] = self._text_logprobs(generation, number)
            is_last = generation.finish_reason is not None
            place = Chunk(generation.tokens[number:], is_first=number == 0, is_last=is_last)
            chunk = self._chunk(kind, generation, choice, place)
            sent, number = len(text), len(generation.tokens)
            yield chunk
        async for last in self._end_of_stream(kind, generation):
            yield last

    async def _end_of_stream(self, kind: str, generation: Generation) -> AsyncIterator[bytes]:
        if self.include_usage:
            yield event({**self._head(kind, generation), "choices": [], "usage": _usage(generation)})
        yield DONE

    def _delta(self, generation: Generation, sent: ParsedReply, parsed: ParsedReply) -> dict[str, Any]:
        """Return the parts of a message that were not sent yet."""
        delta: dict[str, Any] = {}
        reasoning = (parsed.reasoning or "")[len(sent.reasoning or "") :]
        content = parsed.content[len(sent.content) :]
        if reasoning:
            delta[self.dialect.reasoning_field] = reasoning
        if content:
            delta["content"] = content
        if parsed.calls:
            delta["tool_calls"] = [
                {"index": index, **_call(generation, index, call)} for index, call in enumerate(parsed.calls)
            ]
        return delta

    def _head(self, kind: str, generation: Generation) -> dict[str, Any]:
        return {"id": generation.id, "object": kind, "created": int(time.time()), "model": self.model}

    def _whole(self, kind: str, generation: Generation, choice: dict[str, Any]) -> dict[str, Any]:
        answer = {**self._head(kind, generation), "choices": [choice], "usage": _usage(generation)}
        self.dialect.add_to_answer(answer, generation, self.wanted)
        return answer

    def _chunk(self, kind: str, generation: Generation, choice: dict[str, Any], chunk: Chunk) -> bytes:
        answer = {**self._head(kind, generation), "choices": [choice]}
        self.dialect.add_to_chunk(answer, generation, self.wanted, chunk)
        return event(answer)

    def _chat_logprobs(self, generation: Generation, start: int) -> dict[str, Any]:
        items = []
        for token, logprob, top in _scored(generation, start):
            others = [self._token(*other) for other in top]
            items.append({**self._token(token, logprob), "top_logprobs": others})
        return {"content": items}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        data = self.tokenizer.token_bytes(token)
        return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}

    def _text_logprobs(self, generation: Generation, start: int) -> dict[str, Any]:
        scored = _scored(generation, start)
        names = [self.tokenizer.decode([token]) for token, _, _ in scored]
        offsets, offset = [], len(self.tokenizer.decode(generation.tokens[:start]))
        for name in names:
            offsets.append(offset)
            offset += len(name)
        tops = [{self.tokenizer.decode([token]): value for token, value in top} for _, _, top in scored]
        return {
            "tokens": names,
            "token_logprobs": [logprob for _, logprob, _ in scored],
            "top_logprobs": tops if any(tops) else None,
            "text_offset": offsets,
        }


_Scored = tuple[int, float, tuple[tuple[int, float], ...]]


def _scored(generation: Generation, start: int) -> list[_Scored]:
    """Return the tokens from ``start`` on, each with its log-probability and the most likely tokens."""
    every = zip(generation.tokens, generation.logprobs, generation.top, strict=True)
    return list(every)[start:]


def _usage(generation: Generation) -> dict[str, Any]:
    prompt, reply = len(generation.prompt_ids), len(generation.tokens)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": reply,
        "total_tokens": prompt + reply,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }


def _call(generation: Generation, index: int, call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call-{generation.number}-{index}", "type": "function", "function": function}


def _finish_reason(generation: Generation, parsed: ParsedReply) -> str | None:
    """Return the finish reason of a chat completion. As in vLLM, a reply with calls ends with ``tool_calls``."""
    is_aborted = generation.finish_reason == ABORT
    return "tool_calls" if parsed.calls and not is_aborted else generation.finish_reason
