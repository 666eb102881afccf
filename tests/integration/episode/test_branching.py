"""Trees in real sandboxes: branches have the files and the shells of the trunk, and share nothing afterwards."""

import pytest

from farm.core.rollout import Rollout, check
from farm.core.run import EpisodeAssignment, PolicySpec, rollout_id
from farm.core.run_options.branching import Branching
from farm.episode import Delivered, EpisodeJournal, NodeServices, Policy, Tree
from farm.tasks.bundle import TaskBundle
from sandboxes import DockerRuntime, OciRuntime
from tests.support.farm.episode_values import DONE, Scripted, Step, call, create, order, say
from tests.support.farm.tiny import MENDED, task

pytestmark = pytest.mark.docker

GROUP = "run-g000000"


class Host:
    """The host of one tree. ``scripts``: the steps of each leaf from the first turn on."""

    def __init__(self, scripts: list[list[Step]]) -> None:
        self.scripts = scripts
        self.rollouts: list[Rollout] = []
        self.orders: list[int] = []

    def make_policy(self, leaf: EpisodeAssignment) -> Policy:
        self.orders.append(leaf.group_index)
        return Scripted(*self.scripts[leaf.group_index])

    async def deliver(self, leaf: EpisodeAssignment, rollout: Rollout) -> Delivered:
        check(rollout)
        self.rollouts.append(rollout)
        return Delivered(rollout)


async def grow(runtime: DockerRuntime | OciRuntime, bundle: TaskBundle, branching: Branching, host: Host) -> None:
    asked = order(
        rollout_id=rollout_id(GROUP, 0),
        group_index=0,
        group_size=branching.leaves,
        branching=branching,
        leaves=tuple(range(branching.leaves)),
        policy=PolicySpec("openai", "http://model/v1", "tiny"),
    )
    await Tree(asked, bundle, NodeServices("n1", runtime), host, EpisodeJournal()).grow()
    assert [name async for name in runtime.living()] == []


def bash(command: str, **more: str) -> Step:
    return say(call("bash", {"command": command, **more}))


def output(rollout: Rollout, turn: int) -> str:
    return rollout.turns[turn].tool_uses[0].result


SET_UP = bash(
    "mkdir -p sub && cd sub && export EXPORTED='a b' && plain=$'c\\nd' && set -u && shopt -s nullglob "
    '&& say() { echo said "$1"; }'
)
OTHER = bash("cd / && other=2", session="second")
ASK = bash('pwd; echo "$EXPORTED"; echo "$plain"; say it; echo *.none; echo ${-//[^u]/}')
ASK_OTHER = bash("pwd; echo $other", session="second")


async def test_branches_have_shells_of_trunk(either_runtime: DockerRuntime | OciRuntime, tiny_image: str) -> None:
    bundle = task(tiny_image)
    script = [SET_UP, OTHER, ASK, ASK_OTHER, DONE]
    host = Host([script, script])
    await grow(either_runtime, bundle, Branching(2, (2,)), host)
    assert [rollout.metrics["shared_turns"] for rollout in host.rollouts] == [2, 2]
    for rollout in host.rollouts:
        lines = output(rollout, 2).split("\n")
        assert lines[:6] == [f"{bundle.task.workspace}/sub", "a b", "c", "d", "said it", ""], lines
        assert lines[6] == "u"
        assert output(rollout, 3).split("\n")[:2] == ["/", "2"]


async def test_branches_share_no_later_change(either_runtime: DockerRuntime | OciRuntime, tiny_image: str) -> None:
    """The second leaf mends the program. The first one does not, and neither sees the other's work."""
    bundle = task(tiny_image)
    look = bash("cat notes.txt; ls -A /tmp")
    trunk = [bash("echo trunk >> notes.txt"), bash("true")]
    broken, mended = [bash("echo broken >> notes.txt"), look, DONE], [say(create(MENDED, "tiny.py")), look, DONE]
    host = Host([[*trunk, *broken], [*trunk, *mended]])
    await grow(either_runtime, bundle, Branching(2, (2,)), host)
    assert [rollout.reward for rollout in host.rollouts] == [0.0, 1.0]
    seen = [output(rollout, 3).removesuffix("[exit code 0]").split() for rollout in host.rollouts]
    assert seen == [["trunk", "broken"], ["trunk"]], "the files with the state of the shells are gone too"
    assert [rollout.metrics["change_files"] for rollout in host.rollouts] == [1, 2]


async def test_background_jobs_end_in_every_branch(oci_runtime: OciRuntime, tiny_image: str) -> None:
    count = bash("pgrep -f 'sleep 7654' | grep -v $$ | wc -l; ls -A /tmp")
    script = [bash("sleep 7654 > /dev/null 2>&1 &"), count, count, DONE]
    host = Host([script, script])
    await grow(oci_runtime, task(tiny_image), Branching(2, (2,)), host)
    assert [output(rollout, 2).split()[0] for rollout in host.rollouts] == ["0", "0"]
