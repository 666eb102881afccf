"""Sessions of OpenEnv's own client. The argument is the server's URL."""

import sys

from openenv.core.generic_client import GenericEnvClient

MEND = {"name": "bash", "arguments": {"command": "echo 'def answer(): return 42' > tiny.py; pwd"}}
SUBMIT = {"name": "submit", "arguments": "{}"}

with GenericEnvClient(base_url=sys.argv[1]).sync() as first, GenericEnvClient(base_url=sys.argv[1]).sync() as second:
    opened = first.reset(seed=1, episode_id="e1")
    assert (opened.observation["instruction"], opened.reward) == ("answer() must return 42.", None), opened
    assert "bash" in [tool["function"]["name"] for tool in opened.observation["tools"]]
    second.reset()
    assert first.state()["sandbox_id"] != second.state()["sandbox_id"]
    mended = first.step(MEND)
    assert mended.observation["result"].startswith("/repo\n"), mended
    assert (mended.reward, mended.done) == (None, False)
    state = first.state()
    assert (state["episode_id"], state["step_count"], state["task_id"]) == ("e1", 1, "tiny"), state
    ended = first.step(SUBMIT)
    assert (ended.reward, ended.done, ended.metadata["verdict"]["verdict"]) == (1.0, True, "resolved"), ended
    assert second.step(SUBMIT).reward == 0.0
    assert not first.reset().done
    assert first.state()["step_count"] == 0
