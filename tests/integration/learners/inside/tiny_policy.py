"""A random Llama of two layers whose every token is an action, served over HTTP as vLLM serves a model.

A reply is three tokens. Their text names them, so the chat template gives the same tokens again for a later prompt.
"""

import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROLES = {"system": 0, "user": 1, "tool": 2, "assistant": 3}
VOCABULARY = 20
REPLY_TOKENS = 3
MESSAGE_TOKENS = 12
MEND = {"command": "echo 'def answer(): return 42' > tiny.py"}
LOOK = {"command": "true"}
ACTIONS = (None, MEND, LOOK, LOOK, LOOK)
"""What the last token of a reply does, by its remainder: end the episode, or run a command."""


def save_model(directory: Path, seed: int) -> None:
    """Save random weights and a tokenizer in the form that ``from_pretrained`` reads."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        initializer_range=0.15,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    words = Tokenizer(WordLevel({f"t{token}": token for token in range(VOCABULARY)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t0").save_pretrained(directory)


def render(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the tokens of messages, and of the beginning of a reply."""
    tokens = []
    for message in messages:
        words = str(message.get("content") or "").split()
        tokens.append(ROLES[message["role"]])
        if message["role"] == "assistant":
            tokens += [int(word[1:]) for word in words]
        else:
            tokens += [4 + zlib.crc32(word.encode()) % (VOCABULARY - 4) for word in words[:MESSAGE_TOKENS]]
    return [*tokens, ROLES["assistant"]]


class ServedPolicy:
    """The model behind its server. It is the ``inner`` weight transfer of the trainer."""

    def __init__(self, directory: Path, version: int) -> None:
        self.version = version
        self._model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
        self._change = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self._answer))
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def init_weight_transfer(self) -> None:
        assert self._model.dtype is torch.float32

    def pause(self) -> None:
        self._change.acquire()

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, tensor in iterator:
                parameters.pop(name).copy_(tensor)
        assert not parameters, parameters
        self.version += 1

    def resume(self) -> None:
        self._change.release()

    def destroy(self) -> None:
        self.close()

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        prompt = render(request["messages"])
        with self._change:
            reply, logprobs = self._sample(prompt)
            version = self.version
        message: dict[str, Any] = {"role": "assistant", "content": " ".join(f"t{token}" for token in reply)}
        action = ACTIONS[reply[-1] % len(ACTIONS)]
        calls = action is not None and request.get("tool_choice") != "none"
        if action is not None and calls:
            function = {"name": "bash", "arguments": json.dumps(action)}
            message["tool_calls"] = [{"id": f"call-{len(prompt)}", "type": "function", "function": function}]
        return {
            "id": f"reply-{len(prompt)}-{reply}",
            "model": "tiny",
            "prompt_token_ids": prompt,
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": "tool_calls" if calls else "stop",
                    "token_ids": reply,
                    "logprobs": {"content": [{"token": "", "logprob": logprob} for logprob in logprobs]},
                    "weight_versions": [{"version": version, "start": 0, "end": len(reply)}],
                }
            ],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(reply)},
        }

    @torch.no_grad()
    def _sample(self, prompt: list[int]) -> tuple[list[int], list[float]]:
        tokens, logprobs = list(prompt), []
        for _ in range(REPLY_TOKENS):
            scores = torch.log_softmax(self._model(torch.tensor([tokens])).logits[0, -1], -1)
            tokens.append(int(torch.multinomial(scores.exp(), 1)))
            logprobs.append(float(scores[tokens[-1]]))
        return tokens[len(prompt) :], logprobs


def handler(answer: Callable[[Mapping[str, Any]], dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 512}]})

        def do_POST(self) -> None:
            self._send(answer(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def _send(self, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            return

    return Handler


def name_the_cpu() -> None:
    """Give the CPU a device name. TRL's trainer asks CUDA for the name to look up the speed of the GPU."""
    torch.cuda.get_device_name = lambda device=None: "CPU"


def use_packed_attention_of_cpu(name: str) -> None:
    """Register attention over packed rows under the name of TRL's, whose kernel needs a GPU."""

    def attend(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *, scaling: float | None = None, **tree: Any
    ) -> tuple[torch.Tensor, None]:
        key, value = (part.repeat_interleave(module.num_key_value_groups, 1) for part in (key, value))
        starts, ends = tree["tree_cu_seqlens_q"].tolist(), tree["tree_cu_seqlens_k"].tolist()
        parts = []
        for segment in range(len(starts) - 1):
            rows = slice(starts[segment], starts[segment + 1])
            seen = tree["tree_kv_index"][ends[segment] : ends[segment + 1]]
            length = rows.stop - rows.start
            causal = torch.ones(length, len(seen), dtype=torch.bool).tril(len(seen) - length)
            parts.append(
                torch.nn.functional.scaled_dot_product_attention(
                    query[:, :, rows], key[:, :, seen], value[:, :, seen], attn_mask=causal, scale=scaling
                )
            )
        return torch.cat(parts, 2).transpose(1, 2), None

    AttentionInterface.register(name, attend)
