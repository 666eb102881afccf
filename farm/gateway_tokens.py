"""The gateway's own tokens: files in the state directory that ``farm up`` makes, and that programs here read.

| file             | role       | for                                                     |
|------------------|------------|---------------------------------------------------------|
| `operator-token` | `operator` | commands, `FarmClient` and the examples on this machine |
| `viewer-token`   | `viewer`   | a program that only reads, such as Prometheus           |
"""

import contextlib
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from farm.config import LOOPBACK, Config, ConfigError, load_config

OwnRole = Literal["operator", "viewer"]
OWN_ROLES: tuple[OwnRole, ...] = ("operator", "viewer")

_TOKEN = re.compile(r"[0-9a-f]{64}")
_LONGEST = 1024


def own_tokens(state_dir: Path) -> dict[OwnRole, SecretStr]:
    """Return the tokens of the state directory; make those that are missing or that others could have read.

    Raises ConfigError.
    """
    return {role: SecretStr(_kept(state_dir, role) or _make(state_dir, role)) for role in OWN_ROLES}


def local_token(config: Config) -> SecretStr | None:
    """Return the token that a program here sends to the farm of ``config.state_dir``.

    A configured token comes first; then ``operator-token`` of the state directory. Raises ConfigError if that file
    belongs to another user.
    """
    if config.token is not None:
        return config.token
    for role in ("operator", "learner", "viewer"):
        if role in config.tokens:
            return config.tokens[role]
    try:
        found = _read(token_file(config.state_dir, "operator"))
    except PermissionError:
        raise ConfigError(
            f"operator-token of {config.state_dir} belongs to another user; ask as that user, or set FARM_TOKEN"
        ) from None
    return None if found is None else SecretStr(found)


def token_for(url: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the token that ``FarmClient`` sends to ``url``: ``FARM_TOKEN``, or the token of the farm that is up here.

    The token of a state directory goes only to the loopback address at which that farm serves.
    """
    with contextlib.suppress(ConfigError):
        config = load_config(environ=environ)
        token = config.token or (local_token(config) if _serves(config.state_dir, url) else None)
        return token.get_secret_value() if token else None
    return None


def token_file(state_dir: Path, role: OwnRole) -> Path:
    return state_dir / f"{role}-token"


def _serves(state_dir: Path, url: str) -> bool:
    """Decide whether ``url`` is the loopback address of the farm that is up with ``state_dir``."""
    try:
        info = json.loads((state_dir / "run" / "farm.json").read_bytes())
        asked, served = urlsplit(url), urlsplit(info["url"])
        here = asked.hostname in LOOPBACK and served.hostname in LOOPBACK
        os.kill(info["pid"], 0)
        return here and asked.scheme == "http" and asked.port == served.port
    except PermissionError:  # the farm's process belongs to another user, and so does its token
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _kept(state_dir: Path, role: OwnRole) -> str | None:
    """Return the token of a file that only this user can read or replace."""
    try:
        return _read(token_file(state_dir, role), private=True)
    except PermissionError:
        return None


def _read(path: Path, *, private: bool = False) -> str | None:
    """Return the token in a file; None if there is none. Follow no symlink. Raises PermissionError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        raise
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        ours = status.st_uid == os.geteuid() and status.st_nlink == 1 and not status.st_mode & 0o077
        if not stat.S_ISREG(status.st_mode) or (private and not ours):
            return None
        text = file.read(_LONGEST).decode("ascii", "replace").strip()
    return text if _TOKEN.fullmatch(text) else None


def _make(state_dir: Path, role: OwnRole) -> str:
    """Write a new random token: the whole file appears at once, and replaces a symlink instead of following it."""
    token = secrets.token_hex(32)
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        descriptor, fresh = tempfile.mkstemp(prefix=f".{role}-token-", dir=state_dir)  # mode 0600, O_EXCL
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(token + "\n")
                file.flush()
                os.fsync(descriptor)
            os.replace(fresh, token_file(state_dir, role))
        except BaseException:
            os.unlink(fresh)
            raise
    except OSError as error:
        raise ConfigError(
            f"{token_file(state_dir, role)} cannot be written: {error.strerror}; free its place"
        ) from None
    return token
