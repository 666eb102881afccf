"""Retrieval tasks in real sandboxes: an episode, making them, proving them fit, and their verifier for plain Harbor."""

from dataclasses import replace
from pathlib import Path

import pytest

from farm.core.retrieval import FileLines, Retrieval
from farm.core.rollout import Status, check
from farm.episode import NodeServices, run_episode
from farm.grading import decide_answer
from farm.task_generation.retrieval import RetrievalSpec, RetrievalSummary, RetrievalTask, make_retrieval
from farm.task_generation.services import GenerationServices
from farm.task_validation.validate import validate
from farm.tasks import TaskBundle, load_task, sandbox_spec
from sandboxes.images.store import ImageStore
from tests.support.farm.episode_values import EDITOR, Scripted, call, order, say
from tests.support.farm.tiny import task
from tests.support.outside import EitherRuntime

pytestmark = pytest.mark.docker

TOML = """
[task]
name = "tiny/answer"
[metadata]
category = "bug-fix"
[metadata.farm]
workspace = "/repo"
protected = ["tests/"]
max_turns = 50
tools = ["bash", "submit"]
[environment]
docker_image = "{image}"
memory_mb = 512
"""
SOLVE = """\
cd /repo
sed -i s/41/42/ tiny.py
printf 'more = 1\\n' > more.py
mkdir tests && echo 'def test_more(): ...' > tests/test_more.py
head -c 10 /dev/zero > notes.bin
"""


@pytest.fixture
def source(tmp_path: Path, tiny_image: str) -> Path:
    """A task whose gold is a script."""
    for name, text in {
        "task.toml": TOML.format(image=tiny_image),
        "instruction.md": "answer() must return 42.\n",
        "tests/test.sh": "echo 0 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": SOLVE,
    }.items():
        path = tmp_path / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tiny"


async def test_retrieval_answer_with_parallel_calls_is_rewarded(any_runtime: EitherRuntime, tiny_image: str) -> None:
    plain = task(tiny_image)
    wanted = Retrieval(calls_per_turn=3, max_turns=2, beta=0.5, expected=(FileLines("tiny.py", ((2, 2),)),))
    bundle = replace(plain, task=replace(plain.task, retrieval=wanted, max_turns=2))
    looks = say(
        call("grep", {"pattern": "41", "output_mode": "content"}),
        call("glob", {"pattern": "*.py"}),
        call(EDITOR, {"command": "view", "path": "tiny.py"}),
        call("glob", {"pattern": "*"}),
    )
    answer = say(call("answer", {"files": [{"path": "/repo/tiny.py", "lines": [[1, 2]]}]}))
    rollout = await run_episode(order(), bundle, Scripted(looks, answer), NodeServices("n1", any_runtime))
    check(rollout)
    assert rollout.status is Status.COMPLETED
    assert [use.error_kind for use in rollout.turns[0].tool_uses] == [None, None, None, "over_limit"]
    assert "return 41" in rollout.turns[0].tool_uses[0].result
    assert "tiny.py" in rollout.turns[0].tool_uses[1].result
    assert (rollout.reward_components["lines_precision"], rollout.reward_components["lines_recall"]) == (0.5, 1.0)
    assert rollout.reward == pytest.approx((1 + 1.25 * 0.5 / 1.125) / 2)
    assert [name async for name in any_runtime.living()] == []


async def test_retrieval_task_is_created_and_validated(
    tmp_path: Path, source: Path, images: ImageStore, any_runtime: EitherRuntime
) -> None:
    bundle = await made(tmp_path, source, images, any_runtime)
    assert bundle.task.id == "tiny/answer-retrieval"
    assert bundle.task.instruction.endswith("answer() must return 42.\n")
    assert bundle.task.retrieval == Retrieval(2, 3, 2.0, (FileLines("tiny.py", ((2, 2),)),))
    assert bundle.task.tools == ()
    again = await make_retrieval(
        RetrievalSpec([source], tmp_path / "out"), GenerationServices(tmp_path, images, any_runtime, print)
    )
    assert again == RetrievalSummary(there=[tmp_path / "out" / "tiny-retrieval"])
    finding = await validate(bundle, images=images, runtime=any_runtime, on_progress=lambda line: None)
    assert finding.problems == []
    assert finding.nop == [0.0, 0.0, 0.0]
    assert finding.gold == [1.0, 1.0, 1.0]
    further = replace(
        bundle.task.retrieval, expected=(FileLines("gone.py", ((1, 1),)), FileLines("tiny.py", ((2, 9),)))
    )
    unfit = replace(bundle, task=replace(bundle.task, retrieval=further))
    finding = await validate(unfit, images=images, runtime=any_runtime, on_progress=lambda line: None)
    assert finding.problems[0].startswith("gone.py is expected, and cannot be read: ")
    assert finding.problems[1:] == ["line 9 of tiny.py is expected, which has 2 lines"]


async def test_unusable_source_tasks_are_reported_as_problems(
    tmp_path: Path, source: Path, images: ImageStore, any_runtime: EitherRuntime
) -> None:
    (source / "solution" / "solve.sh").write_text("echo new > /repo/only_new.py\n")
    wish = RetrievalSpec([source, tmp_path / "none"], tmp_path / "out")
    outcome = await make_retrieval(wish, GenerationServices(tmp_path, images, any_runtime, print))
    assert outcome.made == []
    assert len(outcome.problems) == 2
    assert "changes no existing line" in outcome.problems[0]
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


ANSWERS = {
    "the known one": '{"files": [{"path": "/repo/./tiny.py", "lines": [[2, 2]]}]}',
    "more": '{"files": [{"path": "tiny.py", "lines": [[1, 2]]}, {"path": "a.py", "lines": [[1, 3]]}]}',
    "backwards": '{"files": [{"path": "tiny.py", "lines": [[2, 1]]}]}',
    "no JSON": "{",
    "half a line": '{"files": [{"path": "tiny.py", "lines": [[1.5, 2]]}]}',
    "lines as text": '{"files": [{"path": "tiny.py", "lines": [["2", "2"]]}]}',
    "lines as truth": '{"files": [{"path": "tiny.py", "lines": [[true, 2]]}]}',
    "an odd key": '{"files": [{"path": "tiny.py", "lines": [[2, 2]], "why": "x"}]}',
}


async def test_harbor_verifier_gives_the_same_reward(
    tmp_path: Path, source: Path, images: ImageStore, any_runtime: EitherRuntime
) -> None:
    bundle = await made(tmp_path, source, images, any_runtime)
    assert bundle.task.retrieval is not None
    async with any_runtime.scope(sandbox_spec(bundle.task, labels={})) as sandbox:
        for home in ("tests", "solution"):
            for file in (tmp_path / "out" / "tiny-retrieval" / home).iterdir():
                await sandbox.write_file(f"/{home}/{file.name}", file.read_bytes(), parents=True)

        async def reward() -> float:
            await sandbox.exec(("bash", "/tests/test.sh"), timeout_s=60)
            return float(await sandbox.read_file("/logs/verifier/reward.txt"))

        assert await reward() == 0.0
        await sandbox.exec(("bash", "/solution/solve.sh"), timeout_s=60)
        assert await reward() == 1.0
        for written in ANSWERS.values():
            await sandbox.write_file("/tmp/answer.json", written.encode())
            assert await reward() == pytest.approx(
                decide_answer(bundle.task.retrieval, bundle.task.workspace, written).reward
            )


async def made(out: Path, source: Path, images: ImageStore, runtime: EitherRuntime) -> TaskBundle:
    wish = RetrievalSpec([source], out / "out", calls_per_turn=2, max_turns=3, beta=2.0)
    outcome = await make_retrieval(wish, GenerationServices(out, images, runtime, lambda line: None))
    directory = out / "out" / "tiny-retrieval"
    assert outcome == RetrievalSummary(made=[RetrievalTask(directory, files=1, ranges=1)])
    assert list((out / "out").iterdir()) == [directory]
    return load_task(directory, state_dir=out)
