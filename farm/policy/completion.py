"""What an OpenAI-compatible endpoint answers, parsed once and strictly; tokens where the engine gives them.

vLLM: ``prompt_token_ids``, ``choices[].token_ids``, ``choices[].weight_versions``. SGLang:
``choices[].prompt_token_ids``, ``choices[].response_token_ids``, ``metadata.weight_versions`` (later ``sglext``).
Both: ``choices[].logprobs.content[].logprob``. A weight version is a label; its last number is the version.
"""

import json
import logging
import math
import re
from array import array
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from farm.core.rollout import WeightSpan
from farm.rollout.policy import Reply, Sampled, ToolCall

_NUMBER = re.compile(r"(\d{1,18})\D*$")
_log = logging.getLogger(__name__)


class Garbage(Exception):
    """The answer is no chat completion; the message is one line."""


def _valid_unicode(value: Any) -> Any:
    """Half of a surrogate pair, which JSON lets a model write, becomes U+FFFD: the text must be writable as UTF-8."""
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_valid_unicode)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Function(_Part):
    name: Text = ""
    arguments: Text | dict[str, Any] | None = None


class _Call(_Part):
    id: Text | None = None
    function: _Function = _Function()


class _Message(_Part):
    content: Text | None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None
    tool_calls: list[_Call] | None = None


class _Choice(_Part):
    message: _Message
    finish_reason: Text | None = None


class _Usage(_Part):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(_Part):
    id: Text = ""
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


class _Span(_Part):
    version: int | str
    start: int = Field(ge=0)
    end: int = Field(ge=0)


class _Spans(_Part):
    weight_versions: list[_Span] | None = None


class _TokenLogprob(_Part):
    logprob: float


class _Logprobs(_Part):
    content: list[_TokenLogprob] | None = None


class _TokenChoice(_Spans):
    token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Tokens(_Part):
    choices: list[_TokenChoice] = Field(min_length=1)
    prompt_token_ids: list[int] | None = None
    metadata: _Spans | None = None
    sglext: _Spans | None = None


def parse_completion(body: bytes) -> Reply:
    """The first choice of an answer. Raises Garbage.

    Calls that are wrong in themselves (no name, arguments that are not JSON) pass: a turn tells the policy of them.
    """
    try:
        raw = json.loads(body)
        answer = _Answer.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Garbage(f"{'.'.join(map(str, first['loc'])) or 'the answer'}: {first['msg']}") from None
    except (ValueError, RecursionError):
        raise Garbage(f"it is not JSON: {body[:80]!r}") from None
    choice, usage = answer.choices[0], answer.usage or _Usage()
    message = choice.message
    sampled = _sampled(raw)
    return Reply(
        content=message.content or "",
        tool_calls=tuple(_tool_call(index, call) for index, call in enumerate(message.tool_calls or ())),
        finish_reason=choice.finish_reason or "",
        request_id=answer.id,
        reasoning=message.reasoning_content if message.reasoning_content is not None else message.reasoning,
        prompt_tokens=usage.prompt_tokens or (len(sampled.prompt_token_ids) if sampled else 0),
        completion_tokens=usage.completion_tokens or (len(sampled.token_ids) if sampled else 0),
        sampled=sampled,
    )


def _tool_call(index: int, call: _Call) -> ToolCall:
    arguments = call.function.arguments
    written = json.dumps(arguments) if isinstance(arguments, dict) else arguments or ""
    return ToolCall(call.id or f"call_{index}", call.function.name, written)


def _sampled(raw: Any) -> Sampled | None:
    """The engine's tokens, or None where the answer does not hold all of them in a form that can be trusted."""
    try:
        tokens = _Tokens.model_validate(raw)
        choice = tokens.choices[0]
        ids = choice.token_ids if choice.token_ids is not None else choice.response_token_ids
        prompt = choice.prompt_token_ids if choice.prompt_token_ids is not None else tokens.prompt_token_ids
        if ids is None or prompt is None or choice.logprobs is None or choice.logprobs.content is None:
            return None
        logprobs = array("f", (token.logprob for token in choice.logprobs.content))
        sampled = Sampled(array("i", prompt), array("i", ids), logprobs, _spans(tokens, len(ids)))
    except (ValidationError, OverflowError) as error:
        _log.warning("an endpoint's token fields cannot be read; its replies will not be trained on: %s", error)
        return None
    if len(logprobs) != len(ids) or not all(map(math.isfinite, logprobs)) or min((*ids, *prompt), default=0) < 0:
        _log.warning(
            "an endpoint gave %d tokens with %d log-probabilities, or values out of range", len(ids), len(logprobs)
        )
        return None
    return sampled


def _spans(tokens: _Tokens, length: int) -> tuple[WeightSpan, ...]:
    """Spans over the sampled tokens; none where a label holds no number or a span lies outside."""
    holders: Sequence[_Spans | None] = (tokens.choices[0], tokens.metadata, tokens.sglext)
    found = next((holder.weight_versions for holder in holders if holder and holder.weight_versions), ())
    spans = []
    for span in found:
        match = _NUMBER.search(str(span.version))
        if match is None or span.end > length or span.start > span.end:
            return ()
        if span.start < span.end:
            spans.append(WeightSpan(int(match[1]), span.start, span.end))
    return tuple(spans)
