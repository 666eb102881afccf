"""Runs as JSON, for Redis."""

from pydantic import TypeAdapter

from farm.core.run import RunSpec

_RUN_SPEC = TypeAdapter(RunSpec)


def dump_run_spec(spec: RunSpec) -> bytes:
    return _RUN_SPEC.dump_json(spec)


def load_run_spec(data: bytes) -> RunSpec:
    """Read the JSON of ``dump_run_spec``. Raises pydantic.ValidationError."""
    return _RUN_SPEC.validate_json(data)
