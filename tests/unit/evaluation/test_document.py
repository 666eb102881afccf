"""The document of an evaluation, the row of an episode, and the export."""

import csv
import io
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from farm.core.rollout import AuditFlag, ToolUse
from farm.evaluation import episodes_csv
from farm.evaluation.measures import count_repeated, episode_row
from farm.schemas.evaluation.document import EvaluationDocument
from farm.schemas.rollout import RolloutHead, RolloutRecord, Sidecar, head_of, sidecar_of
from tests.support.evaluation import answer_of, episode, evaluation
from tests.support.rollouts import make_rollout


def record(**more: Any) -> tuple[RolloutHead, Sidecar]:
    rollout = replace(make_rollout(), **more)
    return head_of(RolloutRecord.of(rollout)), sidecar_of(rollout)


def use(name: str, arguments: str) -> ToolUse:
    return ToolUse("c", name, arguments, "", False, None, 0, False, False, 0.1)


def test_row_has_measures_of_rollout() -> None:
    parts = {"resolved": 1.0, "diff_added": 4.0, "diff_removed": 1.0, "style_new": 2.0, "style_delta": -1.0}
    metrics = {"turns": 3.0, "tool_calls": 2.0, "malformed_bad_json": 1.0, "malformed_unknown_tool": 2.0}
    head, sidecar = record(
        reward_components=parts, metrics=metrics, audit=(AuditFlag("tests", 0, 0, "cat tests"),), policy_version_min=4
    )
    row = episode_row(head, sidecar, policy=1, task=2)
    assert (row.policy, row.task, row.reward, row.solved) == (1, 2, 1.0, True)
    assert (row.diff_lines, row.style_new, row.style_delta, row.malformed) == (5.0, 2.0, -1.0, 3.0)
    assert (row.turns, row.calls, row.seconds, row.audit_flags, row.version_min) == (3.0, 2.0, 1.0, 1, 4)


def test_row_of_failed_episode_has_no_judgement() -> None:
    failed = make_rollout(reward=None)
    row = episode_row(head_of(RolloutRecord.of(failed)), None, policy=0, task=0)
    assert (row.reward, row.solved, row.diff_lines, row.repeated) == (None, None, None, None)
    assert row.error == "infra: SandboxGone"


def test_call_that_repeats_any_earlier_one_counts() -> None:
    [turn] = make_rollout().turns
    calls = [use("bash", "a"), use("bash", "b"), use("bash", "a"), use("grep", "a"), use("bash", "a")]
    _, sidecar = record(turns=(replace(turn, tool_uses=tuple(calls[:2])), replace(turn, tool_uses=tuple(calls[2:]))))
    assert count_repeated(sidecar.turns) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"policies": [{"label": "a", "policy": "a", "run_id": "r", "kind": "nop"}] * 2}, "the same label"),
        ({"tasks": [{"id": "t", "digest": "1"}] * 2}, "the same id"),
        ({"episodes": [episode(policy=1)]}, "beyond the end of its list"),
        ({"episodes": [episode(solved=None)]}, "both be null"),
        ({"episodes": [episode(reward=float("nan"))]}, "finite number"),
        ({"passses": 1}, "passses"),
        ({"passes": 0}, "greater than or equal to 1"),
    ],
)
def test_wrong_document_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        EvaluationDocument.model_validate(evaluation({"a": [[1.0]]}).model_dump() | change)


def test_csv_has_a_row_for_each_episode() -> None:
    document = evaluation({"a": [[1.0, None]], "b": [[0.0, 0.0]]}, prices={"input": 1.0, "output": 1.0})
    rows = list(csv.DictReader(io.StringIO(episodes_csv(answer_of(document)))))
    assert [(row["label"], row["task_id"], row["reward"]) for row in rows] == [
        ("a", "task-0", "1.0"),
        ("a", "task-0", ""),
        ("b", "task-0", "0.0"),
        ("b", "task-0", "0.0"),
    ]
    assert (rows[0]["cost"], rows[0]["evaluation_id"]) == ("0.0011", "eval-000000000001")


def test_csv_has_no_formula_of_hostile_model() -> None:
    document = evaluation({"a": [[1.0]]})
    rows = (document.episodes[0].model_copy(update={"model": '=HYPERLINK("x")'}),)
    written = episodes_csv(answer_of(document.model_copy(update={"episodes": rows})))
    [row] = csv.DictReader(io.StringIO(written))
    assert row["model"] == '\'=HYPERLINK("x")'
