"""Check the socket of a Docker daemon without a connection."""

import os
import stat
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable


def explain_socket(path: Path) -> None:
    """Raise RuntimeUnavailable with the remedy if the daemon's socket cannot be used."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise RuntimeUnavailable(
            f"Docker is not running: {path} does not exist; install docker.io and start the daemon "
            "(systemctl start docker, or dockerd &), or set docker_host"
        ) from None
    except PermissionError:
        mode = stat.S_IFSOCK
    if not stat.S_ISSOCK(mode):
        raise RuntimeUnavailable(f"{path} is not a socket; set docker_host to the daemon's socket")
    if not os.access(path, os.R_OK | os.W_OK):
        raise RuntimeUnavailable(f"permission denied on {path}; run as root or add this user to the group docker")
