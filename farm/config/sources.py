"""The places that the keys of a configuration come from: a file, the environment, flags."""

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from farm.core.nesting_limit import TooDeep
from farm.core.toml import read_toml

CONFIG_VARIABLE = "FARM_CONFIG"
"""The variable that names the configuration file; it stands for ``--config``."""
ENVIRONMENT = "the environment"
FLAGS = "flags"

_PREFIX = "FARM_"


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key, its source, and the remedy."""


def read_file(path: Path) -> dict[str, Any]:
    """Return the keys of a configuration file. Raises ConfigError."""
    try:
        found = read_toml(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; name a readable file with --config or {CONFIG_VARIABLE}"
        ) from None
    except TooDeep:
        raise ConfigError(f"{path} is nested too deeply; a key here holds one value") from None
    except ValueError as error:  # also a number of thousands of digits, which Python does not read
        raise ConfigError(f"{path} is not TOML: {str(error).split(';')[0]}") from None
    if "tokens" in found:
        raise ConfigError(f"{path}: tokens do not belong in it; use tokens_file or FARM_TOKENS")
    for secret in ("join_token", "policy_key", "token"):
        if secret in found:
            raise ConfigError(f"{path}: {secret} does not belong in it; use {variable_of(secret)}")
    if any(isinstance(item, dict) and "key" in item for item in _listed(found.get("policy_endpoints"))):
        raise ConfigError(f"{path}: a key does not belong in it; name its variable with key_env, or a key_file")
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def read_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys that variables set. Raises ConfigError."""
    found: dict[str, Any] = {
        name.removeprefix(_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(_PREFIX) and name != CONFIG_VARIABLE
    }
    if "tokens" in found:
        found["tokens"] = parse_tokens(found["tokens"], variable_of("tokens"))
    return found


def read_tokens(path: Path, origin: str) -> dict[str, str]:
    """Return the tokens of a file. ``origin`` is the name of the setting in the errors. Raises ConfigError."""
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{origin}: {path}: {why}; name a readable file of role=token lines") from None
    return parse_tokens(text, f"{origin}: {path}")


def parse_tokens(text: str, origin: str) -> dict[str, str]:
    """Return the tokens of ``text`` by their role. Raises ConfigError, which begins with ``origin``."""
    tokens: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.replace("\n", ",").split(","))):
        role, sign, token = item.partition("=")
        if not sign or not token:
            raise ConfigError(
                f"{origin}: write tokens as role=token,role=token with the roles learner, operator, viewer"
            )
        tokens[role.strip()] = token.strip()
    return tokens


def refuse_unknown(found: Collection[str], origin: str, known: Collection[str]) -> None:
    """Raise ConfigError, with the nearest name, if a key is not ``known``."""
    for key in found:
        if key in known:
            continue
        if origin == ENVIRONMENT:
            variables = [*map(variable_of, known), CONFIG_VARIABLE]
            near = difflib.get_close_matches(variable_of(key), variables, n=1, cutoff=0.0)[0]
            raise ConfigError(f"unknown variable {variable_of(key)}; the nearest one is {near}")
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
        raise ConfigError(f"{origin}: unknown key {key!r}; the nearest one is {near!r}")


def variable_of(key: str) -> str:
    """Return the environment variable of a key."""
    return f"{_PREFIX}{key.upper()}"


def setting_name(key: str, origin: str | None) -> str:
    """Return what a user calls a key that came from ``origin``; None: it has its default."""
    match origin:
        case None:
            return key
        case _ if origin == ENVIRONMENT:
            return variable_of(key)
        case _ if origin == FLAGS:
            return f"--{key.replace('_', '-')}"
    return f"{origin}: {key}"


def explain(error: ValidationError, origins: Mapping[str, str]) -> ConfigError:
    """Return the error for the first value that is wrong. ``origins``: the source of each key."""
    first = error.errors()[0]
    what = str(first["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    if first["type"] == "path_type":
        what = "should be a path"
    keys = [str(part) for part in first["loc"]]
    if not keys:  # a fault of several keys, whose message begins with one
        key, _, what = what.partition(": ")
        keys = [key]
    return ConfigError(f"{'.'.join([setting_name(keys[0], origins.get(keys[0])), *keys[1:]])}: {what}")
