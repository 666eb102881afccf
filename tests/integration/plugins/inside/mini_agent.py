"""mini-SWE-agent's DefaultAgent in a sandbox of the farm. Arguments: the gateway's URL and a token."""

import sys

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output

COMMANDS = (
    "pwd; echo to-stderr >&2; cat tiny.py",
    "sleep 60",
    "echo 'def answer(): return 42' > tiny.py",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; git diff --no-index /dev/null tiny.py | tail -n 1",
)

environment = get_environment(
    {
        "environment_class": "farm.plugins.mini_swe_agent.FarmEnvironment",
        "url": sys.argv[1],
        "token": sys.argv[2],
        "task_id": "tiny",
        "taskset": "demo",
        "timeout": 2,
    }
)
with environment:
    model = DeterministicModel(outputs=[make_output("", [{"command": command}]) for command in COMMANDS])
    agent = DefaultAgent(
        model, environment, system_template="{{system}}", instance_template="{{instruction}} ({{cwd}})", cost_limit=9.0
    )
    ended = agent.run()
    assert ended == {"exit_status": "Submitted", "submission": "+def answer(): return 42\n"}, ended
    system, opening, *turns = (message["content"] for message in agent.messages)
    assert (system, opening) == ("Linux", "answer() must return 42. (/repo)"), opening
    assert "/repo\nto-stderr\ndef answer():" in turns[1], turns[1]
    assert "timed out after 2 seconds" in turns[3], turns[3]
    assert "<returncode>-1</returncode>" in turns[3], turns[3]
    assert sys.argv[2] not in str(agent.serialize()), "the token is in the trajectory"
    assert environment.grade().reward == 1.0
