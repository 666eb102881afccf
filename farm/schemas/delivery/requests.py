"""Request bodies of checkpoints."""

from typing import Annotated

from pydantic import Field, StrictInt

from farm.schemas.request_body import RequestBody
from farm.schemas.requests import Name, RunId, Version


class CheckpointBody(RequestBody):
    """A checkpoint that a learner has saved. ``history`` is that of the restore with which this life of it began.

    ``step`` is greater than that of its last checkpoint. ``acks``: the number of its last ack that the checkpoint
    includes, from the answer of the ack; absent, all acks until now.
    """

    run_id: RunId
    learner: Name
    history: Version
    step: Annotated[StrictInt, Field(ge=0, lt=2**53)]
    acks: Annotated[StrictInt, Field(ge=0, lt=2**53)] | None = None


class RestoreBody(RequestBody):
    """A restore of a learner to its last checkpoint, of the step in the path. Step 0 is the start."""

    run_id: RunId
    learner: Name
