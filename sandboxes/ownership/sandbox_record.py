"""The record of a sandbox, with which another process can adopt it."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from sandboxes.errors import SpecError
from sandboxes.spec import SandboxLimits, SandboxSpec, check_spec


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """The state that a successor needs to adopt a sandbox. ``shut``: its egress was shut for good."""

    spec: SandboxSpec
    image_digest: str
    workdir: str
    shut: bool = False

    def dump(self) -> str:
        return json.dumps(self, default=_shallow_dict)

    @classmethod
    def parse(cls, text: str) -> "SandboxRecord":
        """Parse a record. Raises ValueError, also for the format of another version of the farm."""
        try:
            fields = json.loads(text)
            spec_fields = fields["spec"]
            spec = SandboxSpec(
                **{
                    **spec_fields,
                    "limits": SandboxLimits(**spec_fields["limits"]),
                    "egress": tuple(spec_fields["egress"]),
                }
            )
            check_spec(spec)
            return cls(spec, str(fields["image_digest"]), str(fields["workdir"]), bool(fields["shut"]))
        except (KeyError, TypeError, SpecError) as error:
            raise ValueError(f"sandbox record is invalid: {error!r}; it was written by another version") from None


def _shallow_dict(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass. ``asdict`` would also copy nested values, which json.dumps visits itself."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
