"""Completion in a shell, and the short option of help."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
COMPLETE = """
eval "$(farm --show-completion bash)"
COMP_WORDS=({words}) COMP_CWORD={last}
_farm_completion farm
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def run_bash(script: str) -> str:
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-euc", script], env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("farm", "do"), ["down", "doctor"]),
        (("farm", "runs", "p"), ["pause"]),
        (("farm", "run", "tasks", "--group-s"), ["--group-size"]),
    ],
)
def test_bash_completes_commands_and_options(words: tuple[str, ...], expected: list[str]) -> None:
    found = run_bash(COMPLETE.format(words=" ".join(words), last=len(words) - 1))
    assert found.split() == expected


@pytest.mark.parametrize("command", ["farm", "farm run", "farm runs list", "farm tasks make"])
def test_short_option_shows_help(command: str) -> None:
    assert run_bash(f"{command} -h") == run_bash(f"{command} --help")
