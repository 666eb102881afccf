"""Harbor's separate verifier: in a fresh copy of the image or an image of its own, with nothing but artifacts."""

from collections.abc import Callable, Mapping

import pytest

from farm.core.rollout import Rollout
from farm.core.task import Artifact, Collect
from farm.episode import NodeServices, run_episode
from farm.task_validation.validate import validate
from farm.tasks import TaskBundle, ensure_image, pack, unpack
from sandboxes.images.store import ImageStore
from tests.support.farm.episode_values import Scripted, call, order, say
from tests.support.outside import EitherRuntime

pytestmark = pytest.mark.docker

TOML = """
schema_version = "1.3"
artifacts = ["/app/answer.txt", {{source = "/app/out", exclude = ["*.log"]}}]
[verifier]
{verifier}
env = {{WANTED = "42"}}
[[verifier.collect]]
command = "echo made > /logs/artifacts/made || (mkdir -p /logs/artifacts; echo made > /logs/artifacts/made)"
[agent]
user = "root"
[environment]
workdir = "/app"
memory_mb = 512
env = {{MODE = "fast"}}
[environment.healthcheck]
command = "test -e /ready"
"""
TEST_SH = """\
#!/bin/bash
cd /
reward=0
[ "$(cat /app/answer.txt)" = "$WANTED" ] && [ "$(cat /logs/artifacts/made)" = made ] && reward=1
for path in /app/secret /app/out/x.log /app/linked /tmp/left; do [ -e $path ] && reward=0; done
[ "$(cat /app/out/deep/a)" = a ] || reward=0
echo "{\\"reward\\": $reward}" > /logs/verifier/reward.json
"""
SOLVE = "mkdir -p /app/out/deep; echo 42 > /app/answer.txt; echo a > /app/out/deep/a; echo b > /app/out/x.log\n"


Load = Callable[[Mapping[str, str]], TaskBundle]


def written(verifier: str = 'environment_mode = "separate"', *, own_image: bool = False) -> dict[str, str]:
    files = {
        "task.toml": TOML.format(verifier=verifier),
        "instruction.md": "Write 42 into /app/answer.txt.\n",
        "environment/Dockerfile": "FROM farm-base:1\nRUN mkdir /app && touch /ready\n",
        "tests/test.sh": TEST_SH,
        "solution/solve.sh": SOLVE,
    }
    if own_image:
        files["tests/Dockerfile"] = "FROM farm-base:1\nCOPY test.sh /tests/test.sh\nRUN touch /verifier\n"
        files["tests/test.sh"] = TEST_SH + "[ -e /verifier ] || echo 0 > /logs/verifier/reward.json\n"
    return files


async def after(command: str, bundle: TaskBundle, runtime: EitherRuntime) -> Rollout:
    """An episode in which a policy gives that command, and submits."""
    policy = Scripted(say(call("bash", {"command": command})), say(call("submit", {})))
    rollout = await run_episode(order(), bundle, policy, NodeServices("n1", runtime))
    assert not [name async for name in runtime.living()]
    return rollout


@pytest.mark.slow
@pytest.mark.parametrize("own_image", [False, True])
async def test_only_artifacts_reach_the_verifier(
    own_image: bool, load_files: Load, images: ImageStore, any_runtime: EitherRuntime
) -> None:
    bundle = load_files(written(own_image=own_image))
    separate = bundle.task.verifier.separate
    assert separate is not None
    assert separate.artifacts == (Artifact("/app/answer.txt"), Artifact("/app/out", ("*.log",)))
    assert separate.brings_tests is own_image
    assert (separate.image == bundle.task.image) is not own_image
    assert [type(hook) for hook in separate.collect] == [Collect]
    assert unpack(pack(bundle)) == bundle
    finding = await validate(bundle, images=images, runtime=any_runtime, on_progress=lambda line: None)
    assert finding.problems == []
    assert (set(finding.nop), set(finding.gold)) == ({0.0}, {1.0})

    # What a policy leaves elsewhere, or links to, or writes in the verifier's places, is not there.
    cheats = (
        "mkdir -p /tests /logs/verifier /logs/artifacts; echo 1 > /logs/verifier/reward.txt; touch /tmp/left; "
        "echo 'echo 1 > /logs/verifier/reward.json' > /tests/test.sh; ln -s /etc /app/linked; touch /app/secret; "
        "ln -s /etc/passwd /app/answer.txt; mkdir -p /app/out/deep; ln -s /ready /app/out/deep/a"
    )
    for command, reward in ((cheats, 0.0), (f"{cheats}; rm -r /app/answer.txt /app/out; {SOLVE}", 1.0)):
        rollout = await after(command, bundle, any_runtime)
        assert (rollout.reward, rollout.reward_components["graded_separate"]) == (reward, 1.0), rollout.reason


async def test_too_many_artifacts_give_zero_reward(
    load_files: Load, images: ImageStore, any_runtime: EitherRuntime
) -> None:
    bundle = load_files(written())
    await ensure_image(bundle, images)
    command = "mkdir -p /app/out; cd /app/out; for i in $(seq 6000); do : > $i; done"
    rollout = await after(command, bundle, any_runtime)
    assert rollout.reward == 0.0
    assert "6000 files" in rollout.reason


@pytest.mark.parametrize(
    ("artifacts", "measured"),
    [
        ('["/app"]', {"diff_added": 2.0, "diff_removed": 4.0, "style_new": 1.0}),
        ('["/app/src/a.py"]', {"diff_added": 2.0, "diff_removed": 1.0, "style_new": 1.0}),
        ('["/app/none"]', {"diff_added": 0.0, "diff_removed": 0.0}),
        ('["/srv/out"]', {}),
    ],
)
async def test_change_is_measured_for_artifacts_in_workspace(
    artifacts: str,
    measured: Mapping[str, float],
    load_files: Load,
    images: ImageStore,
    any_runtime: EitherRuntime,
) -> None:
    files = {
        "task.toml": f'artifacts = {artifacts}\n[verifier]\nenvironment_mode = "separate"\n',
        "instruction.md": "Do something.\n",
        "environment/Dockerfile": (
            "FROM farm-base:1\nWORKDIR /app/src\nRUN printf 'a = 1\\nb = 2\\n' > a.py && printf '1\\n2\\n3\\n' > gone\n"
            "WORKDIR /app\n"
        ),
        "tests/test.sh": "echo 0.5 > /logs/verifier/reward.txt\n",
    }
    bundle = load_files(files)
    await ensure_image(bundle, images)
    command = "printf 'import os\\na = 1\\nb = 3\\n' > src/a.py; rm src/gone; mkdir /srv/out; echo x > /srv/out/x"
    rollout = await after(command, bundle, any_runtime)
    assert rollout.reward == 0.5, rollout.error
    seen = {name: value for name, value in rollout.reward_components.items() if name.startswith(("diff_", "style_"))}
    assert {name: seen[name] for name in measured} == measured
    assert bool(seen) is bool(measured)
    assert ("/src/a.py" in rollout.patch) is ("style_new" in measured)


async def test_removed_artifacts_are_graded_without_error(
    load_files: Load, images: ImageStore, any_runtime: EitherRuntime
) -> None:
    files = {
        "task.toml": 'artifacts = ["/app/answer.txt"]\n[verifier]\nenvironment_mode = "separate"\n',
        "instruction.md": "Write 42 into /app/answer.txt.\n",
        "environment/Dockerfile": "FROM farm-base:1\nRUN mkdir /app && echo 41 > /app/answer.txt\nWORKDIR /app\n",
        "tests/test.sh": (
            "set -e\ngrep -q 42 /app/answer.txt && reward=1 || reward=0\ntest -e /app/answer.txt\n"
            "echo $reward > /logs/verifier/reward.txt\n"
        ),
    }
    bundle = load_files(files)
    await ensure_image(bundle, images)
    for command in ("true", "rm /app/answer.txt"):
        rollout = await after(command, bundle, any_runtime)
        assert (rollout.reward, rollout.error) == (0.0, None), rollout.reason
