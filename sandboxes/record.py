"""What must be known of a sandbox to take it over from a process that died."""

import dataclasses
import json
from dataclasses import dataclass

from sandboxes.errors import SpecError
from sandboxes.spec import Limits, SandboxSpec, check_spec


@dataclass(frozen=True, slots=True)
class Record:
    """``shut``: its egress was, for good."""

    spec: SandboxSpec
    image_digest: str
    workdir: str
    shut: bool = False

    def dump(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Record":
        """Raises ValueError, also for what another version of the farm has written."""
        try:
            found = json.loads(text)
            spec = found["spec"]
            made = SandboxSpec(**{**spec, "limits": Limits(**spec["limits"]), "egress": tuple(spec["egress"])})
            check_spec(made)
            return cls(made, str(found["image_digest"]), str(found["workdir"]), bool(found["shut"]))
        except (KeyError, TypeError, SpecError) as error:
            raise ValueError(f"a record of a sandbox that cannot be read: {error!r}") from None
