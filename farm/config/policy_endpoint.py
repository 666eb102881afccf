"""An endpoint that the configuration lists."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, SecretStr, field_validator

from farm.core.endpoint_url import EndpointUrl


class PolicyEndpoint(BaseModel):
    """An endpoint that runs may name, with all below its address; its key is in a variable or a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    key_env: str | None = None
    key_file: Path | None = None
    key: SecretStr | None = None

    @field_validator("url")
    @classmethod
    def _usable(cls, text: str) -> str:
        return str(EndpointUrl.parse(text))
