"""What we write on all that we make at the daemon, and how we know it again.

Labels alone prove nothing. An image's author gives it what labels he likes, and a container has those of its image. So
all of ours stand on everything that we make, empty where they say nothing, for then none is inherited; and what bears
them is ours only by the name that we gave it, which no image gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxes.docker_engine.api import ListedContainer, ListedImage
from sandboxes.ownership.owner import NAME, SEALED, TRACE, Identity, Owner, group_of

LABEL_OWNER = "farm.owner"
LABEL_STATE_DIR = "farm.state_dir"
LABEL_SEAL = "farm.seal"
LABEL_TRACE = "farm.trace"
LABEL_SANDBOX = "farm.sandbox"
LABEL_SNAPSHOT = "farm.snapshot"
LABEL_PIN = "farm.pin"

SNAPSHOTS = "farm-snapshot"
"""The repository; an image without a name would be taken for litter."""


@dataclass(frozen=True, slots=True)
class OwnerLabels:
    """``trace``: what tells whether the owner may live where that cannot be asked of its lock.

    A container is a ``sandbox``, by its id, made of ``snapshot`` if of any; or it holds the image ``pin``. An image is
    a ``snapshot``.
    """

    owner: Identity
    trace: str
    sandbox: str = ""
    snapshot: str = ""
    pin: str = ""


def labels(owner: Owner, *, sandbox: str = "", snapshot: str = "", pin: str = "") -> dict[str, str]:
    """For whatever ``owner`` makes; as ``Mark`` has it."""
    return {
        LABEL_OWNER: owner.name,
        LABEL_STATE_DIR: str(owner.state_dir),
        LABEL_SEAL: owner.identity.seal,
        LABEL_TRACE: owner.trace,
        LABEL_SANDBOX: sandbox,
        LABEL_SNAPSHOT: snapshot,
        LABEL_PIN: pin,
    }


def of_container(found: ListedContainer) -> OwnerLabels | None:
    """None where it is not ours."""
    mark = _read(found.labels)
    if mark is None:
        return None
    name = container_name(mark.sandbox) if mark.sandbox else pin_name(mark.owner, mark.pin)
    return mark if name in found.names else None


def of_image(found: ListedImage) -> OwnerLabels | None:
    """None where it is no snapshot of ours."""
    mark = _read(found.labels)
    return mark if mark and f"{SNAPSHOTS}:{mark.snapshot}" in found.names else None


def container_name(sandbox_id: str) -> str:
    return f"farm-{sandbox_id}"


def pin_name(owner: Identity, image_id: str) -> str:
    return f"farm-pin-{group_of(owner)}-{image_id.removeprefix('sha256:')[:12]}"


def _read(found: Mapping[str, str]) -> OwnerLabels | None:
    try:
        owner = Identity(Path(found[LABEL_STATE_DIR]), found[LABEL_OWNER], found[LABEL_SEAL])
        mark = OwnerLabels(owner, found[LABEL_TRACE], found[LABEL_SANDBOX], found[LABEL_SNAPSHOT], found[LABEL_PIN])
    except KeyError:
        return None
    told = NAME.fullmatch(owner.name) and SEALED.fullmatch(owner.seal) and TRACE.fullmatch(mark.trace)
    return mark if told and owner.state_dir.is_absolute() else None
