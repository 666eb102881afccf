"""Runs and orders as JSON, for Redis and for whatever carries an order to a node."""

from pydantic import TypeAdapter

from farm.core.run import RunSpec

_RUN_SPEC = TypeAdapter(RunSpec)


def dump_run_spec(spec: RunSpec) -> bytes:
    return _RUN_SPEC.dump_json(spec)


def load_run_spec(data: bytes) -> RunSpec:
    """The inverse of dump_run_spec. Raises pydantic.ValidationError on anything else."""
    return _RUN_SPEC.validate_json(data)
