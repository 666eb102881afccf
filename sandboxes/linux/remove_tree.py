"""Remove directory trees of any depth: a sandbox can nest them deeper than a process has descriptors or stack."""

import errno
import subprocess
from pathlib import Path


def remove_tree(path: Path) -> None:
    """Remove ``path`` with ``rm -rf``, within one file system. A missing path is no error. Blocks. Raises OSError."""
    removed = subprocess.run(
        ["rm", "-rf", "--one-file-system", "--", path], capture_output=True, text=True, errors="replace", check=False
    )
    if removed.returncode != 0:
        raise OSError(errno.EIO, f"{path} cannot be removed: {removed.stderr.strip()[-200:]}")
