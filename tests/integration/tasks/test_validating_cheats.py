"""Tasks whose tests say no more than a reward: cheats that these believe make them unfit, and are told."""

from collections.abc import Awaitable, Callable, Mapping

import pytest

from farm.task_validation.result import Reason, ValidationResult
from farm.task_validation.validate import validate
from farm.tasks import TaskBundle
from sandboxes.images.store import ImageStore
from tests.integration.episode.test_harbor_tasks import STEPS
from tests.support.outside import EitherRuntime

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(400)]

Load = Callable[[Mapping[str, str]], TaskBundle]
Judge = Callable[[Mapping[str, str]], Awaitable[ValidationResult]]

NAIVE = {
    "task.toml": 'schema_version = "1.2"\n[environment]\nworkdir = "/app"\n',
    "instruction.md": "pair.add must add.\n",
    "environment/Dockerfile": (
        "FROM farm-base:1\nRUN mkdir /app && printf 'def add(one, other):\\n    return one - other\\n' > /app/pair.py\n"
    ),
    "tests/test.sh": (
        "cd /app; python3 -c 'import pair; assert pair.add(3, 4) == 7' && reward=1\n"
        "echo ${reward:-0} > /logs/verifier/reward.txt\n"
    ),
    "solution/solve.sh": "sed -i 's/one - other/one + other/' /app/pair.py\n",
}
ANSWER = {
    **NAIVE,
    "instruction.md": "Write 7 into answer.txt.\n",
    "environment/Dockerfile": "FROM farm-base:1\nRUN mkdir /app\n",
    "tests/test.sh": '[ "$(cat /app/answer.txt)" = 7 ] && reward=1\necho ${reward:-0} > /logs/verifier/reward.txt\n',
    "solution/solve.sh": "echo 7 > /app/answer.txt\n",
}


def graded(files: Mapping[str, str], mode: str) -> Mapping[str, str]:
    return {**files, "task.toml": f'{files["task.toml"]}[metadata.farm]\ngrading = "{mode}"\n'}


@pytest.fixture
def judge(load_files: Load, images: ImageStore, any_runtime: EitherRuntime) -> Judge:
    async def judge(files: Mapping[str, str]) -> ValidationResult:
        return await validate(load_files(files), images=images, runtime=any_runtime, on_progress=lambda line: None)

    return judge


@pytest.mark.parametrize("mode", ["patch", "snapshot"])
async def test_task_open_to_reward_cheats_is_unfit(judge: Judge, mode: str) -> None:
    finding = await judge(graded(NAIVE, mode))
    assert finding.reasons == [Reason.CHEAT], finding.problems
    told = [problem.partition("is judged 1: ")[2].partition(";")[0] for problem in finding.problems]
    assert told == [
        "a program that ends when it is imported",
        "a reward file written by the code under test",
        "a reward file written all along",
    ]
    assert all("name the tests in metadata.farm.fail_to_pass" in problem for problem in finding.problems)


@pytest.mark.parametrize("files", [ANSWER, graded(ANSWER, "snapshot"), STEPS], ids=["patch", "snapshot", "steps"])
async def test_task_with_protected_reward_is_fit(judge: Judge, files: Mapping[str, str]) -> None:
    finding = await judge(files)
    assert finding.problems == []
    assert not [note for note in finding.notes if "could not be tried" in note]
