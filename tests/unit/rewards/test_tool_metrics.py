"""Tests of the components for effort and misuse."""

import json
from typing import Any

import pytest

from farm.core.rollout import ToolUse, Turn
from farm.rewards import count_effort, count_misuse
from farm.rewards.tool_metrics import TODO_LISTS
from sandboxes.tools.packs import PACKS


def use(name: str, arguments: Any = None, *, result: str = "ok", error: str | None = None) -> ToolUse:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolUse("c", name, text, result, error is not None, error, None, False, False, 0.0)


def turn(*uses: ToolUse) -> Turn:
    return Turn(0, "", None, uses, "stop", "", 100, 7, 0.0, 0.0, 0.0)


def test_effort_counts_turns_calls_and_tokens() -> None:
    assert count_effort([turn(use("bash"), use("bash")), turn()]) == {
        "effort_turns": 2.0,
        "effort_calls": 2.0,
        "effort_prompt_tokens": 200.0,
        "effort_completion_tokens": 14.0,
    }


def test_malformed_calls_are_counted_by_kind() -> None:
    kinds = ("unknown_tool", "bad_json", "bad_json", "bad_arguments", "over_limit", "refused", "timeout")
    counts = count_misuse([turn(*(use("bash", {"n": n}, error=kind) for n, kind in enumerate(kinds)))])
    assert (counts["misuse_malformed"], counts["misuse_bad_json"], counts["misuse_over_limit"]) == (4.0, 2.0, 1.0)


@pytest.mark.parametrize(
    ("uses", "repeated"),
    [
        ((use("bash", {"command": "ls"}),) * 3, 2),
        ((use("bash", {"command": "ls"}), use("grep", {"pattern": "x"}), use("bash", {"command": "ls"})), 0),
        ((use("bash", {"command": "ls"}), use("bash", {"command": "ls"}, result="other")), 1),
        ((use("bash", {"job": 1}, result="a"), use("bash", {"job": 1}, result="b")), 0),
        ((use("BashOutput", {"bash_id": "1"}, result="a"), use("BashOutput", {"bash_id": "1"}, result="a")), 1),
    ],
)
def test_repeated_call_is_counted_except_job_polling(uses: Any, repeated: int) -> None:
    assert count_misuse([turn(item) for item in uses])["misuse_repeated"] == repeated


def todo(*states: str) -> dict[str, Any]:
    return {"todos": [{"content": "x", "status": state, "activeForm": "x"} for state in states]}


@pytest.mark.parametrize(
    ("uses", "unfinished"),
    [
        ((), 0),
        ((use("TodoWrite", todo("pending", "in_progress", "completed")),), 2),
        ((use("TodoWrite", todo("pending", "pending")), use("TodoWrite", todo("completed"))), 0),
        ((use("TodoWrite", todo("pending")), use("TodoWrite", "{", error="bad_json")), 1),
        ((use("update_plan", {"plan": [{"step": "x", "status": "pending"}]}),), 1),
        ((use("update_plan", {"plan": "x"}),), 0),
        ((use("update_plan", "[" * 100_000),), 0),
        ((use("TodoWrite", "9" * 10_000),), 0),
    ],
)
def test_unfinished_items_of_last_list_are_counted(uses: Any, unfinished: int) -> None:
    assert count_misuse([turn(*uses)])["misuse_unfinished_todos"] == unfinished


def test_todo_list_tools_exist() -> None:
    assert set(TODO_LISTS) <= {name for pack in PACKS.values() for name in pack.tools}
