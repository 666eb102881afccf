"""The errors of the model server.

ModelServerError
├── RequestError        the caller has to change the request.
│   └── ContextTooLong  the prompt and its reply do not fit into the context.
└── EngineFrozen        the call waits for requests that a pause keeps.

Each message is one line that names the cause, and the remedy if the cause does not show it.
"""


class ModelServerError(Exception):
    """The root of the errors of this room."""


class RequestError(ModelServerError):
    """Raised if a request cannot be served as it is. ``field`` is the field at fault, None for the whole body."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextTooLong(RequestError):
    """Raised if a prompt and its reply do not fit into the context. The message is in vLLM's words."""


class EngineFrozen(ModelServerError):
    """Raised if a call waits for requests that a pause keeps."""
