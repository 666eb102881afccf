"""One OpenAI-compatible endpoint, shared by all who ask it: its connections, and what it was found to accept."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from farm.rollout.policy import PolicyError

MAX_ANSWER_BYTES = 256 * 1024 * 1024
_REFUSED_FIELDS = (400, 422)
_log = logging.getLogger(__name__)

_DIALECTS: tuple[Mapping[str, Any], ...] = (
    {"logprobs": True, "return_token_ids": True, "return_weight_versions": True, "return_meta_info": True},
    {"logprobs": True, "return_token_ids": True},
    {"logprobs": True},
    {},
)
"""What may be asked for besides the reply, most telling first; vLLM and SGLang take the first, others less."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Endpoint:
    """``url`` is the base (``http://host:8000/v1``) or its ``/chat/completions``.

    ``request_timeout_s`` bounds the wait for one reply, ``models_timeout_s`` that for the list of models; nothing of
    the environment (proxies, keys) is consulted. ``model`` is the one served, once somebody has asked.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        request_timeout_s: float = 1800.0,
        models_timeout_s: float = 20.0,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/chat/completions")
        self.model = ""
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(request_timeout_s, connect=10.0, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
            trust_env=False,
            verify=self.url.startswith("https:"),  # without TLS, loading the certificates is 30 ms for nothing
        )
        self._dialect = 0
        self._settled = False
        self._models_timeout_s = models_timeout_s
        self._distrusted = False

    async def chat(self, body: Mapping[str, Any]) -> Answer:
        """One chat completion, asked with as much as the endpoint takes. Raises httpx.HTTPError.

        The first requests find out what that is: while nothing has been accepted, a refusal of the fields steps down.
        """
        level = self._dialect
        while True:
            answer = await self._ask("POST", "/chat/completions", {**body, **_DIALECTS[level]})
            if answer.status == httpx.codes.OK:
                if not self._settled:
                    self._dialect, self._settled = level, True
                return answer
            if self._settled or answer.status not in _REFUSED_FIELDS or level + 1 == len(_DIALECTS):
                return answer
            level += 1

    async def models(self) -> Answer:
        """Which models are served. Raises httpx.HTTPError, also where the answer is not there in time."""
        try:
            async with asyncio.timeout(self._models_timeout_s):
                return await self._ask("GET", "/models")
        except TimeoutError:
            raise httpx.ReadTimeout(
                f"/models gave no answer within {self._models_timeout_s:g} s; name the model (--model) to do without it"
            ) from None

    def distrust(self, why: str) -> None:
        """Tell the log, once, that what this endpoint samples cannot be trained on."""
        if not self._distrusted:
            self._distrusted = True
            _log.warning("%s gives inconsistent tokens; its replies are not trained on: %s", self.url, why)

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        async with self._client.stream(method, self.url + path, json=body) as response:
            parts, size = [], 0
            async for part in response.aiter_bytes():
                size += len(part)
                if size > MAX_ANSWER_BYTES:
                    raise httpx.DecodingError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
                parts.append(part)
            return Answer(response.status_code, response.headers, b"".join(parts))


class Endpoints:
    """A node's endpoints by address. ``api_key`` goes to every one of them."""

    def __init__(self, *, api_key: str | None = None, request_timeout_s: float = 1800.0) -> None:
        self._api_key = api_key
        self._request_timeout_s = request_timeout_s
        self._known: dict[str, Endpoint] = {}

    def at(self, url: str) -> Endpoint:
        """The endpoint at ``url``, one for all who ask. Raises PolicyError for what is no http address."""
        if url not in self._known:
            try:
                parsed = httpx.URL(url)
            except httpx.InvalidURL as error:
                raise PolicyError(f"{url} is no address of an endpoint: {error}", retryable=False) from None
            if parsed.scheme not in ("http", "https") or not parsed.host:
                raise PolicyError(f"{url!r} is no address of an endpoint; write http://HOST:PORT/v1", retryable=False)
            self._known[url] = Endpoint(url, api_key=self._api_key, request_timeout_s=self._request_timeout_s)
        return self._known[url]

    async def close(self) -> None:
        for endpoint in self._known.values():
            await endpoint.close()
        self._known.clear()
