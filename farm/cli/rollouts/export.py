"""Export of rollouts to ``.jsonl.zst``, ``.jsonl`` or ``.parquet``, by the file's suffix. The file is written
atomically.
"""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.cli.errors import CliError

if TYPE_CHECKING:
    from farm.client import FarmClient

Row = dict[str, Any]
Write = Callable[[Row], None]

ROWS_AT_ONCE = 64
"""Rollouts per row group of Parquet; a row group is held in memory until it is full."""


def fetch(client: "FarmClient", rollout_id: str, *, with_turns: bool) -> Row:
    """Return a rollout in its JSON form; ``with_turns`` adds its turns, opening messages, patch and reason."""
    from farm.schemas.rollout import RolloutRecord

    row: Row = {"branches": []}  # the record of a rollout without branch points leaves the key out
    row |= RolloutRecord.of(client.rollout(rollout_id)).model_dump(mode="json")
    return row | client.turns(rollout_id).model_dump(mode="json") if with_turns else row


def fetch_all(
    client: "FarmClient",
    rollout_ids: Iterable[str],
    *,
    with_turns: bool,
    on_unreadable: Callable[[str, str], None],
) -> Iterator[Row]:
    """Yield rollouts one by one. ``on_unreadable`` is called with the id of an unreadable record, and the reason."""
    from farm.client import Unreadable

    for rollout_id in rollout_ids:
        try:
            row = fetch(client, rollout_id, with_turns=with_turns)
        except Unreadable as error:
            on_unreadable(rollout_id, error.problem.detail)
        else:
            yield row


@contextmanager
def writer(path: Path, *, with_turns: bool) -> Iterator[Write]:
    """Yield a function that writes rows. ``path`` is replaced at the end of the block, and untouched if it fails."""
    opened = _opener(path)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with opened(fresh, with_turns) as write:
            yield write
        fresh.replace(path)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}; name another file") from None
    finally:
        fresh.unlink(missing_ok=True)


def _opener(path: Path) -> Callable[[Path, bool], AbstractContextManager[Write]]:
    for end, opened in {".jsonl.zst": _jsonl_zst, ".jsonl": _jsonl, ".parquet": _parquet}.items():
        if path.name.endswith(end):
            return opened
    raise CliError(f"{path}: name a file that ends in .jsonl.zst, .jsonl or .parquet")


@contextmanager
def _jsonl(path: Path, with_turns: bool) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as file:
        yield lambda row: _line(file, row)


@contextmanager
def _jsonl_zst(path: Path, with_turns: bool) -> Iterator[Write]:
    import zstandard

    with (
        path.open("wb") as file,
        zstandard.ZstdCompressor(level=6).stream_writer(file) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as text,
    ):
        yield lambda row: _line(text, row)


def _line(file: io.TextIOBase, row: Row) -> None:
    file.write(json.dumps(row, separators=(",", ":")) + "\n")


@contextmanager
def _parquet(path: Path, with_turns: bool) -> Iterator[Write]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise CliError(
            "writing Parquet needs pyarrow; pip install 'rollout-farm[parquet]', or export .jsonl.zst"
        ) from None
    schema = _schema(pyarrow, with_turns)
    rows: list[Row] = []
    with parquet.ParquetWriter(path, schema, compression="zstd") as file:

        def flush() -> None:
            if rows:
                file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                rows.clear()

        def write(row: Row) -> None:
            rows.append({name: _cell(name, value) for name, value in row.items()})
            if len(rows) == ROWS_AT_ONCE:
                flush()

        yield write
        flush()


AS_JSON = ("sampling_params", "turns", "messages_head")
"""Columns without a fixed type, stored as JSON text."""

_MAPS = ("reward_components", "metrics")


def _cell(name: str, value: Any) -> Any:
    if name in AS_JSON:
        return json.dumps(value)
    return list(value.items()) if name in _MAPS else value


def _schema(arrow: Any, with_turns: bool) -> Any:
    """Return a schema as narrow as the record's: token ids are int32, masks uint8, logprobs float32."""
    text, integer, real, flag = arrow.string(), arrow.int64(), arrow.float64(), arrow.bool_()
    numbers = arrow.map_(text, real)
    texts = dict.fromkeys(("rollout_id", "run_id", "group_id", "task_id", "task_digest", "image_digest"), text)
    texts |= dict.fromkeys(("split", "status", "stop_reason", "reward_version", "policy", "farm_version", "node"), text)
    texts |= {"tool_pack": text, "harness_digest": text, "model": text, "sampling_params": text}
    error = arrow.struct({"origin": text, "type": text, "message": text, "retryable": flag})
    flags = arrow.list_(arrow.struct({"kind": text, "turn": integer, "call": integer, "evidence": text}))
    points = dict.fromkeys(("branch", "branches", "turn", "segment", "token"), integer)
    branches = arrow.list_(arrow.struct({"node": text, "holder": text, **points}))
    sampled = arrow.struct({"start": integer, "end": integer, "finish_reason": text, "request_id": text})
    segment = arrow.struct(
        {
            "token_ids": arrow.list_(arrow.int32()),
            "loss_mask": arrow.list_(arrow.uint8()),
            "logprobs": arrow.list_(arrow.float32()),
            "weight_versions": arrow.list_(arrow.struct({"version": integer, "start": integer, "end": integer})),
            "prompt_length": integer,
            "turns": arrow.list_(sampled),
            "kind": text,
            "routed_experts": text,
        }
    )
    types = {
        **texts,
        **dict.fromkeys(("schema_version", "attempt", "group_index", "group_size"), integer),
        **dict.fromkeys(("policy_version_min", "policy_version_max"), integer),
        **dict.fromkeys(("reward", "created_at", "finished_at"), real),
        "error": error,
        "reward_components": numbers,
        "metrics": numbers,
        "trainable": flag,
        "tools": arrow.list_(text),
        "audit": flags,
        "branches": branches,
        "segments": arrow.list_(segment),
    }
    if with_turns:
        types |= dict.fromkeys(("turns", "messages_head", "patch", "reason"), text)
    return arrow.schema(types)
