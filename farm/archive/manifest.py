"""The manifest of a file of the archive: a small JSON document beside it. A file without one does not count."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from farm.archive.errors import CorruptFile
from farm.archive.settings import RowFormat
from farm.core.run import is_requested

SUFFIX = ".manifest.json"
OF_REQUESTED_GROUPS = "requested"
"""The partition of requested groups. Each is a run of its own, and would need a file of its own."""


class Manifest(BaseModel):
    """``name``: the path of the file below the archive. ``runs``: the ids of its runs, or none for requested groups.

    Times are Unix seconds: ``first_finished_at`` and ``last_finished_at`` of the rollouts, ``written_at`` of the file.
    """

    model_config = ConfigDict(frozen=True)

    schema_version: Literal[1] = 1
    name: str
    format: RowFormat
    turns: bool
    runs: tuple[str, ...]
    rollouts: int
    size: int
    sha256: str
    first_finished_at: float
    last_finished_at: float
    written_at: float

    def encoded(self) -> bytes:
        return self.model_dump_json(indent=1).encode() + b"\n"


def parse_manifest(name: str, data: bytes) -> Manifest:
    """Return the manifest that is stored as ``name``. Raises CorruptFile."""
    try:
        found = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise CorruptFile(f"{name}: not a manifest of this farm: {error.errors()[0]['msg']}") from None
    if manifest_name(found) != name:
        raise CorruptFile(f"{name}: it belongs to another file, {found.name[:200]}")
    return found


def manifest_name(manifest: Manifest) -> str:
    return manifest.name.removesuffix(f".{manifest.format}") + SUFFIX


def partition(run_id: str) -> str:
    """Return the folder of a run's files."""
    return f"run={OF_REQUESTED_GROUPS if is_requested(run_id) else run_id}"
