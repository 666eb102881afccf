"""State directories that share what every farm would fetch, build or pack again."""

import os
from pathlib import Path

SHARED = ("toolbox", "packed", "sources")
"""The parts of a state directory that hold the same for all farms of a machine."""


def share(state_dir: Path) -> Path:
    """Make a state directory whose ``SHARED`` parts are those of the whole test run. Return it.

    Without ``FARMTEST_STATE_DIR`` it shares nothing.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    kept = os.environ.get("FARMTEST_STATE_DIR")
    for name in SHARED if kept else ():
        common = Path(str(kept)) / name
        common.mkdir(mode=0o700, parents=True, exist_ok=True)
        (state_dir / name).symlink_to(common.absolute())
    return state_dir
