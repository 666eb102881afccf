"""A virtual environment with tools that read the OpenAPI document: a tester and a generator of clients."""

import hashlib
import shutil
import sys
from pathlib import Path

from tests.support.plugin_env import ROOT, run_uv

CONSTRAINTS = ROOT / "deploy/constraints-api.txt"


def make_api_tools(place: Path) -> Path:
    """Make the environment below ``place``, or reuse one with the same versions. Return its directory of programs."""
    environment = place / f"api-tools-{hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()[:12]}"
    programs = environment / "bin"
    if not (environment / "made").exists():
        shutil.rmtree(environment, ignore_errors=True)
        run_uv("venv", "--python", sys.executable, environment)
        run_uv("pip", "install", "--python", programs / "python", "--requirements", CONSTRAINTS)
        (environment / "made").touch()
    return programs
