"""The id of a node: it names the machine and is the same each time a farm starts from the same state directory."""

import re
import secrets
import socket
from pathlib import Path

from farm.cluster.errors import ClusterError

_FILE = "node-id"
_MOST_HOST_CHARS = 40
_FORM = re.compile(r"(?P<host>[a-z0-9-]+)-[0-9a-f]{6}")


def kept_node_id(state_dir: Path, host: str | None = None) -> str:
    """Return the node id of a state directory, whose lock the caller holds. Raises ClusterError.

    The id is the host's name with six random digits, because one host may have several state directories. A new id is
    made if there is none yet, or if the host has another name, because the directory may be a copy.
    """
    host = _plain(socket.gethostname() if host is None else host)
    path = state_dir / _FILE
    try:
        found = _FORM.fullmatch(path.read_text(errors="replace").strip()) if path.exists() else None
        if found and found["host"] == host:
            return found[0]
        made = f"{host}-{secrets.token_hex(3)}"
        fresh = path.with_suffix(".new")
        fresh.write_text(made + "\n")
        fresh.replace(path)
    except OSError as error:
        raise ClusterError(f"{path}: {error.strerror}; make it writable, or choose another state_dir") from None
    return made


def _plain(host: str) -> str:
    """Return the first part of a host's name in lower case, with ``-`` in place of other characters."""
    first = host.lower().partition(".")[0]
    return re.sub(r"[^a-z0-9]+", "-", first).strip("-")[:_MOST_HOST_CHARS].strip("-") or "node"
