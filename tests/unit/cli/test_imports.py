"""Commands import what they need when they run: naming them, and asking what runs, must cost nothing more."""

import subprocess
import sys

HEAVY = {"docker", "fastapi", "farm.client", "farm.store", "httpx", "ray", "redis", "sandboxes", "starlette", "uvicorn"}


def imported_by(code: str) -> set[str]:
    """Which heavy modules are there after ``code``, in a process of its own."""
    told = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return HEAVY & set(told.stdout.split())


def test_all_commands_are_named_without_what_they_need() -> None:
    assert imported_by("from farm.cli.main import command_line; command_line([])") == set()


def test_a_running_farm_is_found_and_asked_with_the_client_alone() -> None:
    assert imported_by("import farm.cli.connection, farm.client, farm.cluster") == {"farm.client", "httpx"}
