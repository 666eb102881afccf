"""Harness documents, and the digest of the settings that they result in.

system_prompt = "..."       # the farm's own if it is absent
thinking = "keep"           # or "drop"
tools = ["codex"]           # a pack, and tools of it; each task's own if it is absent
parallel_calls = true

[limits]
max_turns = 200
max_tokens = 400_000
agent_s = 7200.0
tool_s = 180.0

[summaries]
trigger_tokens = 100_000
max_tokens = 2_000
query = "..."
max_summaries = 20
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from farm.core.agent import Agent
from farm.core.nesting_limit import TooDeep, read_json
from farm.core.run import EpisodeAssignment, RunSpec
from farm.core.toml import read_toml
from farm.schemas.requests import HarnessBody
from farm.schemas.validation_messages import complaints
from sandboxes.errors import SpecError
from sandboxes.tools.packs import choose

MOST_BYTES = 128 * 1024
_FORMAT_VERSION = 1
"""Part of each digest; to be raised if this module changes the meaning of a setting."""


class BadHarness(ValueError):
    """An invalid harness document; the message is one line that names the key and the remedy."""


def parse_harness(content: bytes, *, is_json: bool = False) -> HarnessBody:
    """Parse a harness document in TOML or JSON.

    Raises BadHarness if it is invalid; for an unknown key the message suggests the most similar one.
    """
    form = "JSON" if is_json else "TOML"
    if len(content) > MOST_BYTES:
        raise BadHarness(f"the harness is too long: {len(content)} bytes; at most {MOST_BYTES} are allowed")
    try:
        document = read_json(content) if is_json else read_toml(content)
    except TooDeep:
        raise BadHarness("the harness is nested too deeply") from None
    except ValueError as error:
        raise BadHarness(f"the harness is not {form}: {str(error).split(';')[0][:200]}") from None
    try:
        return HarnessBody.model_validate(document)
    except ValidationError as error:
        first = complaints([{**item, "loc": ("body", *item["loc"])} for item in error.errors()])[0]
        raise BadHarness(f"{first.field}: {first.message}" if first.field else first.message) from None


def harness_settings(request: RunSpec | EpisodeAssignment) -> dict[str, Any]:
    """Return the effective settings of the harness as JSON values. The tools are null if each task keeps its own."""
    harness, limits = request.harness, request.limits
    return {
        "system_prompt": harness.system_prompt,
        "thinking": str(harness.thinking),
        "tools": _tools(request.tools),
        "limits": {
            "max_turns": limits.max_turns,
            "max_tokens": limits.max_tokens,
            "agent_s": None if limits.agent_s is None else float(limits.agent_s),
            "tool_s": float(limits.tool_s),
        },
        "parallel_calls": harness.parallel_calls,
        "summaries": None if harness.summaries is None else asdict(harness.summaries),
        **({} if request.agent is None else {"agent": _agent(request.agent)}),
    }


def harness_digest(request: RunSpec | EpisodeAssignment) -> str:
    """Return the SHA-256 of the effective settings as canonical JSON. Equal settings have equal digests."""
    content = json.dumps([_FORMAT_VERSION, harness_settings(request)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def _agent(agent: Agent) -> dict[str, Any]:
    return {**asdict(agent), "command": list(agent.command), "pip": list(agent.pip)}


def _tools(words: Sequence[str]) -> dict[str, Any] | None:
    if not words:
        return None
    try:
        choice = choose(words)
    except SpecError:  # an assignment with such words fails, and its record needs a digest too
        return {"pack": None, "tools": list(words)}
    return {"pack": choice.pack.name, "tools": list(choice.tools)}
