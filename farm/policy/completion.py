"""What an OpenAI-compatible endpoint answers, parsed once and strictly; tokens where the engine gives them.

vLLM: ``prompt_token_ids``, ``choices[].token_ids``, ``choices[].weight_versions``. SGLang:
``choices[].prompt_token_ids``, ``choices[].response_token_ids``, ``metadata.weight_versions`` (later ``sglext``).
Both: ``choices[].logprobs.content[].logprob``. A weight version is a label; its last number is the version.
"""

import json
import math
import re
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from farm.core.rollout import WeightSpan
from farm.rollout.policy import Reply, Sampled, ToolCall

_NUMBER = re.compile(r"(\d{1,18})\D*$")
_IDS = ("token_ids", "response_token_ids", "prompt_token_ids")
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
_EXPECTED = {
    "model_type": "an object",
    "dict_type": "an object",
    "list_type": "a list",
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
}


class Garbage(Exception):
    """The answer is not what was asked for; the message is one line and says what it is instead."""


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


class _Model(_Part):
    id: Text = Field(min_length=1)


class _Models(_Part):
    data: list[_Model] = Field(min_length=1)


_Parsed = TypeVar("_Parsed", bound=_Part)


def parse_models(body: bytes) -> str:
    """The name of the first model of a list of models. Raises Garbage."""
    return _parse(_Models, _read_json(body)).data[0].id


def parse_completion(body: bytes) -> Reply:
    """The first choice of an answer. Raises Garbage.

    Calls that are wrong in themselves (no name, arguments that are not JSON) pass: a turn tells the policy of them.
    """
    raw = _read_json(body)
    answer = _parse(_Answer, raw)
    choice, usage = answer.choices[0], answer.usage or _Usage()
    message = choice.message
    sampled, distrust = None, ""
    try:
        sampled = _sampled(raw)
    except Garbage as error:
        distrust = str(error)
    return Reply(
        content=message.content or "",
        tool_calls=tuple(_tool_call(index, call) for index, call in enumerate(message.tool_calls or ())),
        finish_reason=choice.finish_reason or "",
        request_id=answer.id,
        reasoning=message.reasoning_content if message.reasoning_content is not None else message.reasoning,
        prompt_tokens=usage.prompt_tokens or (len(sampled.prompt_token_ids) if sampled else 0),
        completion_tokens=usage.completion_tokens or (len(sampled.token_ids) if sampled else 0),
        sampled=sampled,
        distrust=distrust,
    )


def _read_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        if not body.strip():
            raise Garbage("the answer is empty") from None
        start = body[:80].decode(errors="replace")
        kind = {b"<": "HTML or XML, not JSON", b"{": "broken JSON", b"[": "broken JSON"}
        raise Garbage(f"the answer is {kind.get(body.strip()[:1], 'not JSON')}: {start!r}") from None


def _parse(kind: type[_Parsed], raw: Any) -> _Parsed:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Garbage(_plainly(raw, first["type"], first["loc"], first["msg"])) from None


def _plainly(raw: Any, problem: str, location: Sequence[str | int], otherwise: str) -> str:
    """What is wrong at ``location``, in the words of the answer instead of the parser's.

    The location is followed only as far as the answer has it: past that it names alternatives of the parser.
    """
    where, value = "", raw
    for step in location:
        if isinstance(value, dict) and (step in value or problem == "missing"):
            where, value = f"{where}.{step}", value.get(step)
        elif isinstance(value, list) and isinstance(step, int):
            where, value = f"{where}[{step}]", value[step]
        else:
            break
    name = where.removeprefix(".") or "the answer"
    if problem in _EXPECTED:
        found = _KINDS.get(type(value), "null")
        return (
            f"{name} is out of range" if found == _EXPECTED[problem] else f"{name} is {found}, not {_EXPECTED[problem]}"
        )
    said = {
        "missing": "is missing",
        "too_short": "is empty",
        "string_too_short": "is empty",
        "greater_than_equal": "is negative",
    }
    return f"{name} {said.get(problem, f'is wrong: {otherwise}')}"


def _tool_call(index: int, call: _Call) -> ToolCall:
    arguments = call.function.arguments
    written = json.dumps(arguments) if isinstance(arguments, dict) else arguments or ""
    return ToolCall(call.id or f"call_{index}", call.function.name, written)


def _sampled(raw: Any) -> Sampled | None:
    """The engine's tokens; None where it gives no ids. Raises Garbage where what it gives cannot be trusted."""
    if all(holder.get(name) is None for holder in (raw, raw["choices"][0]) for name in _IDS):
        return None
    tokens = _parse(_Tokens, raw)
    choice = tokens.choices[0]
    ids = choice.token_ids if choice.token_ids is not None else choice.response_token_ids
    prompt = choice.prompt_token_ids if choice.prompt_token_ids is not None else tokens.prompt_token_ids
    if ids is None or prompt is None:
        raise Garbage(f"token ids of the {'reply' if prompt is None else 'prompt'} alone")
    if choice.logprobs is None or choice.logprobs.content is None:
        raise Garbage("token ids without log-probabilities")
    given = [token.logprob for token in choice.logprobs.content]
    if len(given) != len(ids):
        raise Garbage(f"{len(ids)} token ids with {len(given)} log-probabilities")
    try:
        logprobs = array("f", given)
        sampled = Sampled(array("i", prompt), array("i", ids), logprobs, _spans(tokens, len(ids)))
    except OverflowError:
        raise Garbage("a token id or log-probability does not fit 32 bits") from None
    if min((*ids, *prompt), default=0) < 0:
        raise Garbage("a negative token id")
    if not all(map(math.isfinite, logprobs)):
        raise Garbage("a log-probability that is not finite")
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
