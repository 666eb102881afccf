"""Commands import what they need when they run: naming them, and asking what runs, must cost nothing more."""

import subprocess
import sys

HEAVY = {"docker", "fastapi", "farm.client", "farm.store", "httpx", "ray", "redis", "sandboxes", "starlette", "uvicorn"}


def imported_by(code: str) -> set[str]:
    """Return the heavy modules that ``code`` imports in a new process."""
    told = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return HEAVY & set(told.stdout.split())


def test_listing_commands_imports_no_optional_packages() -> None:
    assert imported_by("from farm.cli.main import command_line; command_line([])") == set()


def test_connecting_to_farm_imports_only_client() -> None:
    assert imported_by("import farm.cli.connection, farm.client, farm.cluster") == {"farm.client", "httpx"}
