"""The bodies of requests, checked once, and the sampling parameters that they ask for."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from farm.model_server.errors import RequestError
from farm.model_server.sampling import SamplingParams

MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
_FAULTS_SHOWN = 3


class StreamOptions(BaseModel):
    include_usage: bool = False


class _Fields(BaseModel):
    """The fields of chat and text completions. Fields without a meaning here are kept aside in ``model_extra``."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    n: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    return_weight_versions: bool = False
    return_meta_info: bool = False
    request_id: str | None = None

    def check(self, served_model: str) -> None:
        """Raise RequestError for a value that this server cannot serve."""
        if self.n not in (None, 1):
            raise RequestError(f"n must be 1, got {self.n}; send one request for each reply", "n")
        if self.model not in (None, "", served_model):
            raise RequestError(f"The model `{self.model}` does not exist; it is `{served_model}`", "model")
        if isinstance(self.stop, list) and len(self.stop) > MAX_STOPS:
            raise RequestError(f"stop: at most {MAX_STOPS} strings, got {len(self.stop)}", "stop")

    def sampling(self, room: int, *, top_logprobs: int = 0, require_call: bool = False) -> SamplingParams:
        """Return the sampling parameters. ``room`` is the default for the maximum number of tokens."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(
            max_tokens=self.token_limit() or room,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            min_p=self.min_p or 0.0,
            seed=self.seed,
            stop=tuple(stop),
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            min_tokens=self.min_tokens or 0,
            ignore_eos=self.ignore_eos,
            require_call=require_call,
            top_logprobs=top_logprobs,
        )

    def token_limit(self) -> int | None:
        return self.max_tokens


class ChatRequest(_Fields):
    """``/v1/chat/completions``."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def offered_tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the tools that the prompt offers: none for ``none``, one for a named tool. Raises RequestError."""
        tools = self.tools or []
        if self.tool_choice == "none":
            return []
        if isinstance(self.tool_choice, dict):
            function = self.tool_choice.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            named = [tool for tool in tools if _name(tool) == name]
            if name is None or not named:
                raise RequestError("tool_choice names a tool that is not in tools", "tool_choice")
            return named
        if self.tool_choice == "required" and not tools:
            raise RequestError("tool_choice is `required` but tools are missing", "tool_choice")
        return tools

    @property
    def require_call(self) -> bool:
        return self.tool_choice == "required" or isinstance(self.tool_choice, dict)


class CompletionRequest(_Fields):
    """``/v1/completions``. ``prompt`` is a text or token ids."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool = False

    def one_prompt(self) -> str | list[int]:
        """Return the prompt. Raises RequestError if there is more than one."""
        if self.echo:
            raise RequestError("echo is not supported; the prompt's tokens come with return_token_ids", "echo")
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            if len(prompt) > 1:
                raise RequestError(
                    f"prompt: one prompt is supported, got {len(prompt)}; send several requests", "prompt"
                )
            return prompt[0]
        return prompt  # type: ignore[return-value]  # the other forms have items and were returned above


class TokenizeRequest(BaseModel):
    """``/tokenize`` of a text, with its special tokens."""

    prompt: str


class DetokenizeRequest(BaseModel):
    """``/detokenize``."""

    tokens: list[Annotated[int, Field(ge=0)]]
    skip_special_tokens: bool = False


class WeightSpan(BaseModel):
    version: int | str
    start: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(ge=0)]


class VerifyRequest(BaseModel):
    """``/verify``. The spans cover all of ``token_ids``, in their order."""

    model_config = ConfigDict(extra="forbid")

    prompt_token_ids: list[int]
    token_ids: list[int]
    spans: list[WeightSpan]


Body = TypeVar("Body", bound=BaseModel)


def parse_body(kind: type[Body], body: bytes) -> Body:
    """Return the body of a request. Raises RequestError with the first faults."""
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors(include_url=False)]
        shown = "; ".join(f"{where}: {why}" if where else why for where, why in faults[:_FAULTS_SHOWN])
        raise RequestError(shown, faults[0][0] or None) from None


def version_number(label: int | str) -> int:
    """Return the weight version of a label: its last number. Raises RequestError if it has none."""
    digits = str(label).rstrip()
    end = len(digits)
    while end and not digits[end - 1].isdecimal():
        end -= 1
    start = end
    while start and digits[start - 1].isdecimal():
        start -= 1
    if start == end or end - start > 9:
        raise RequestError(f"weight version {str(label)[:40]!r} has no number of at most nine digits", "version")
    return int(digits[start:end])


def _name(tool: Mapping[str, Any]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None
