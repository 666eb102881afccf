"""Reads the configuration from a file, then ``FARM_*``, then flags."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from farm.config.settings import Config
from farm.config.sources import (
    CONFIG_VARIABLE,
    ENVIRONMENT,
    FLAGS,
    explain,
    read_environ,
    read_file,
    read_tokens,
    refuse_unknown,
    setting_name,
)


def load_config(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Read the configuration. ``path`` None takes the file that ``FARM_CONFIG`` names. Raises ConfigError.

    No file is read that was not named, because the working directory may hold a task of another author.
    """
    environ = os.environ if environ is None else environ
    path = path or named_file(environ)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, found in (
        (str(path), {} if path is None else read_file(path)),
        (ENVIRONMENT, read_environ(environ)),
        (FLAGS, {key: value for key, value in (flags or {}).items() if value is not None}),
    ):
        refuse_unknown(found, origin, Config.model_fields)
        values |= found
        origins |= dict.fromkeys(found, origin)
    try:
        if tokens_file := values.get("tokens_file"):
            origin = setting_name("tokens_file", origins["tokens_file"])
            values["tokens"] = read_tokens(Path(tokens_file), origin) | values.get("tokens", {})
            origins.setdefault("tokens", origins["tokens_file"])
        return _with_keys(Config(**values), environ)
    except ValidationError as error:
        raise explain(error, origins) from None


def named_file(environ: Mapping[str, str]) -> Path | None:
    """Return the configuration file that ``FARM_CONFIG`` names, if any."""
    name = environ.get(CONFIG_VARIABLE)
    return Path(name) if name else None


def _with_keys(config: Config, environ: Mapping[str, str]) -> Config:
    """Take the keys of endpoints from the variables that they name; a key that is not set stays None."""
    found = tuple(
        endpoint.model_copy(update={"key": SecretStr(environ[endpoint.key_env])})
        if endpoint.key_env and environ.get(endpoint.key_env)
        else endpoint
        for endpoint in config.policy_endpoints
    )
    return config.model_copy(update={"policy_endpoints": found})
