"""Evaluations made up for tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from farm.evaluation import compute_results
from farm.schemas.evaluation.document import EvaluationDocument
from farm.schemas.evaluation.results import EvaluationAnswer

HARNESS = "a" * 64


def episode(
    policy: int = 0, task: int = 0, index: int = 0, *, reward: float | None = 1.0, **more: Any
) -> dict[str, Any]:
    """``reward`` None: the episode was not judged."""
    row: dict[str, Any] = {
        "rollout_id": f"run-{policy}-g{task:06d}-{index:03d}",
        "policy": policy,
        "task": task,
        "status": "completed",
        "stop_reason": "agent_done",
        "error": "",
        "reward": reward,
        "reward_version": "rules-1",
        "solved": None if reward is None else reward == 1.0,
        "turns": 4.0,
        "calls": 5.0,
        "prompt_tokens": 1000.0,
        "completion_tokens": 100.0,
        "seconds": 10.0,
        "malformed": 0.0,
        "repeated": 1.0,
        "audit_flags": 0,
        "diff_lines": 6.0,
        "style_new": 0.0,
        "style_delta": 0.0,
    }
    if reward is None:
        row |= {"status": "failed", "stop_reason": "error", "error": "infra: SandboxGone"}
    return row | more


def evaluation(
    rewards: Mapping[str, Sequence[Sequence[float | None]]],
    *,
    digests: Sequence[str] = (),
    names: Sequence[str] = (),
    **more: Any,
) -> EvaluationDocument:
    """Return the document of policies with their rewards by task and pass. ``digests``: the versions of the tasks."""
    tasks = len(next(iter(rewards.values())))
    chosen = names or [f"task-{place}" for place in range(tasks)]
    document = {
        "taskset": "/tasks",
        "passes": max(len(passes) for of_policy in rewards.values() for passes in of_policy),
        "seed": 3,
        "harness_digest": HARNESS,
        "policies": [
            {"label": label, "policy": label, "run_id": f"run-{label}", "kind": "openai"} for label in rewards
        ],
        "tasks": [
            {
                "id": chosen[place],
                "digest": digests[place] if digests else "1",
                "difficulty": ("easy", "hard")[place % 2],
                "reference_lines": 3,
            }
            for place in range(tasks)
        ],
        "episodes": [
            episode(policy, task, index, reward=reward)
            for policy, of_policy in enumerate(rewards.values())
            for task, passes in enumerate(of_policy)
            for index, reward in enumerate(passes)
        ],
    }
    return EvaluationDocument.model_validate(document | more)


def answer_of(document: EvaluationDocument, number: int = 1) -> EvaluationAnswer:
    """Return the evaluation as the farm would store it."""
    return EvaluationAnswer(
        evaluation_id=f"eval-{number:012x}",
        created_at=float(number),
        document=document,
        results=compute_results(document),
    )
