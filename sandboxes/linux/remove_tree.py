"""Directories of any depth, removed: a sandbox may make them deeper than a process has descriptors or frames."""

import errno
import subprocess
from pathlib import Path


def remove_tree(path: Path) -> None:
    """None there is no error. Raises OSError. Blocks as long as it takes."""
    removed = subprocess.run(
        ["rm", "-rf", "--one-file-system", "--", path], capture_output=True, text=True, errors="replace", check=False
    )
    if removed.returncode != 0:
        raise OSError(errno.EIO, f"{path} cannot be removed: {removed.stderr.strip()[-200:]}")
