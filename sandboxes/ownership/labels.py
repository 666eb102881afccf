"""Write labels on all containers and images of the farm, and recognize them.

Labels alone prove nothing: a container inherits the labels of its image, and an image's author can choose any. So every
object of the farm carries all of these labels, empty if unused, so that none is inherited; and an object is the farm's
only if its name matches its labels, because no image can choose a name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxes.docker_engine.answers import ListedContainer, ListedImage
from sandboxes.ownership.owner import OWNER_NAME, SEAL_PATTERN, TRACE_PATTERN, Identity, Owner, group_of

LABEL_OWNER = "farm.owner"
LABEL_STATE_DIR = "farm.state_dir"
LABEL_SEAL = "farm.seal"
LABEL_TRACE = "farm.trace"
LABEL_SANDBOX = "farm.sandbox"
LABEL_SNAPSHOT = "farm.snapshot"
LABEL_PIN = "farm.pin"

SNAPSHOTS = "farm-snapshot"
"""Repository of snapshots; the daemon treats an unnamed image as garbage."""


@dataclass(frozen=True, slots=True)
class OwnerLabels:
    """The labels of a container or image. ``trace``: shows if the owner may live when its lock cannot be read.

    A container is a ``sandbox`` (its id), started from ``snapshot`` if that is set; or it pins the image ``pin``. An
    image is a ``snapshot``.
    """

    owner: Identity
    trace: str
    sandbox: str = ""
    snapshot: str = ""
    pin: str = ""


def labels(owner: Owner, *, sandbox: str = "", snapshot: str = "", pin: str = "") -> dict[str, str]:
    """Return the labels of an object that ``owner`` creates. Arguments: as in ``OwnerLabels``."""
    return {
        LABEL_OWNER: owner.name,
        LABEL_STATE_DIR: str(owner.state_dir),
        LABEL_SEAL: owner.identity.seal,
        LABEL_TRACE: owner.trace,
        LABEL_SANDBOX: sandbox,
        LABEL_SNAPSHOT: snapshot,
        LABEL_PIN: pin,
    }


def labels_of_container(found: ListedContainer) -> OwnerLabels | None:
    """Return the labels of one of the farm's containers, or None for any other."""
    owner_labels = _read(found.labels)
    if owner_labels is None:
        return None
    name = (
        container_name(owner_labels.sandbox) if owner_labels.sandbox else pin_name(owner_labels.owner, owner_labels.pin)
    )
    return owner_labels if name in found.names else None


def labels_of_snapshot(found: ListedImage) -> OwnerLabels | None:
    """Return the labels of one of the farm's snapshots, or None for any other image."""
    owner_labels = _read(found.labels)
    return owner_labels if owner_labels and f"{SNAPSHOTS}:{owner_labels.snapshot}" in found.names else None


def container_name(sandbox_id: str) -> str:
    return f"farm-{sandbox_id}"


def pin_name(owner: Identity, image_id: str) -> str:
    return f"farm-pin-{group_of(owner)}-{image_id.removeprefix('sha256:')[:12]}"


def _read(found: Mapping[str, str]) -> OwnerLabels | None:
    try:
        owner = Identity(Path(found[LABEL_STATE_DIR]), found[LABEL_OWNER], found[LABEL_SEAL])
        owner_labels = OwnerLabels(
            owner, found[LABEL_TRACE], found[LABEL_SANDBOX], found[LABEL_SNAPSHOT], found[LABEL_PIN]
        )
    except KeyError:
        return None
    valid = (
        OWNER_NAME.fullmatch(owner.name)
        and SEAL_PATTERN.fullmatch(owner.seal)
        and TRACE_PATTERN.fullmatch(owner_labels.trace)
    )
    return owner_labels if valid and owner.state_dir.is_absolute() else None
