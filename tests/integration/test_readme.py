"""Every command that README shows is run here as it stands, in its order, on a farm of the test's own."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.services import kept_port, require_program

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ELSEWHERE = {
    "tests/run.sh": "it is what runs this test",
}
SHORTER = {f".venv/bin/farm bench {name}": f".venv/bin/farm bench {name} --rounds 1" for name in ("episodes", "start")}
"""The same command with less of it."""


def commands() -> list[str]:
    """The lines of the page's shell blocks, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    lines = (line.split("  #")[0].strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """A state directory and a port of the test's own; what is still up at the end is stopped."""
    require_program("docker")
    state = tmp_path_factory.mktemp("readme")
    with kept_port() as port:
        own = {"FARM_STATE_DIR": str(state / "state"), "FARM_PORT": str(port), "URL": f"127.0.0.1:{port}"}
        chosen = {**os.environ, **own}
        yield chosen
        subprocess.run([ROOT / ".venv/bin/farm", "down"], env=chosen, cwd=ROOT, check=True)


def run(command: str, environ: Mapping[str, str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], env=dict(environ), cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


@pytest.mark.docker
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.xdist_group("ray")
def test_each_command_of_the_page_works(environ: Mapping[str, str], tmp_path: Path) -> None:
    shown = commands()
    assert len(shown) > 10
    for command in shown:
        if command in ELSEWHERE:
            continue
        command = SHORTER.get(command, command).replace(" my-", f" {tmp_path}/my-")
        if "RUN_ID" in command:
            listed = run(".venv/bin/farm status --json", environ)
            assert listed.returncode == 0, listed.stderr
            newest = json.loads(listed.stdout)["runs"][0]["run_id"]
            command = command.replace("RUN_ID", newest) + f" --url http://{environ['URL']}"
        done = run(command, environ)
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert "Traceback" not in done.stderr


def test_what_is_run_elsewhere_is() -> None:
    for where in ELSEWHERE.values():
        assert where.startswith("it is") or (ROOT / where).is_file(), where
    assert set(ELSEWHERE) <= set(commands()) | {"tests/run.sh"}


def test_no_line_of_the_page_is_left_to_be_written() -> None:
    assert not re.search(r"\b[A-Z]+-TABLE\b|TODO|SANDBOX-LIMITS", README)
