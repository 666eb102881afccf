"""What must be known of a sandbox to take it over from a process that died."""

import json
from dataclasses import dataclass, fields
from typing import Any

from sandboxes.errors import SpecError
from sandboxes.spec import SandboxLimits, SandboxSpec, check_spec


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """``shut``: its egress was, for good."""

    spec: SandboxSpec
    image_digest: str
    workdir: str
    shut: bool = False

    def dump(self) -> str:
        return json.dumps(self, default=_named)

    @classmethod
    def parse(cls, text: str) -> "SandboxRecord":
        """Raises ValueError, also for what another version of the farm has written."""
        try:
            found = json.loads(text)
            spec = found["spec"]
            made = SandboxSpec(**{**spec, "limits": SandboxLimits(**spec["limits"]), "egress": tuple(spec["egress"])})
            check_spec(made)
            return cls(made, str(found["image_digest"]), str(found["workdir"]), bool(found["shut"]))
        except (KeyError, TypeError, SpecError) as error:
            raise ValueError(f"a record of a sandbox that cannot be read: {error!r}") from None


def _named(whole: Any) -> dict[str, Any]:
    """Of a dataclass, and not of those in it, which come in their turn: ``asdict`` would copy all that they hold."""
    return {field.name: getattr(whole, field.name) for field in fields(whole)}
