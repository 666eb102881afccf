"""A virtual environment with the training libraries of the adapters, among them torch for the CPU."""

import sys
from pathlib import Path

from tests.support.plugin_env import ROOT, make_env

INSIDE = ROOT / "tests/integration/learners/inside"
CONSTRAINTS = ROOT / "deploy/constraints-learners.txt"
EXTRAS = "trl,verifiers,tinker,verl"
PAGE = ROOT / "farm/docs/learners.md"
QUIET = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def make_learner_env(place: Path) -> Path:
    """Make the environment below ``place``, or reuse one that was made of the same files. Return its path."""
    return make_env(place, "learners", EXTRAS, CONSTRAINTS, python=lambda: sys.executable)
