"""The types of values in a ``task.toml``: paths, ids, sizes, hosts and variables, each checked when it is read."""

import posixpath
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, FailFast, Field

from farm.core.path_patterns import GitignorePatterns, TarPatterns, check_patterns
from sandboxes.egress import AllowList
from sandboxes.errors import SpecError

DAY_S = 86_400
MAX_COMMAND_CHARS = 16 * 1024
MAX_NAME_CHARS = 1024
MAX_LINE = 1_000_000_000
_NOT_OF_THE_IMAGE = frozenset({".farm", "dev", "proc", "sys"})
"""Directories that the farm or the kernel puts into each sandbox."""
_SIZES = {"": 1, "M": 1, "MB": 1, "MI": 1, "MIB": 1, "G": 1024, "GB": 1024, "GI": 1024, "GIB": 1024}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([A-Za-z]*)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PART = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_REFERENCE = re.compile(
    rf"(?P<name>(?:(?=[^/]*[.:]|localhost/){_HOST}/)?{_PART}(?:/{_PART})*)"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}))?"
)


def _relative_path(value: str) -> str:
    """Return a normalised relative POSIX path that stays in its directory. Raises ValueError."""
    if not value or value.startswith("/") or "\0" in value or posixpath.normpath(value) != value:
        raise ValueError(f"{value!r} is not a plain relative path")
    if value.split("/")[0] in ("..", "."):
        raise ValueError(f"{value!r} leaves the directory it starts in")
    return value


def absolute_path(value: str) -> str:
    """Return a normalised absolute POSIX path of printable characters. Raises ValueError."""
    is_plain = value.startswith("/") and not value.startswith("//") and posixpath.normpath(value) == value
    if not is_plain or not value.isprintable() or len(value) > MAX_NAME_CHARS:
        raise ValueError(f"{value[:100]!a} is not a plain absolute path")
    if value == "/":
        raise ValueError("the root of the image cannot be a workspace")
    return value


def workspace_path(value: str) -> str:
    """Return an absolute path that may be a workspace. Raises ValueError."""
    if absolute_path(value).split("/")[1] in _NOT_OF_THE_IMAGE:
        raise ValueError(f"{value[:100]!a} is not a directory of the image")
    return value


def size_mib(value: Any) -> Any:
    """Return a size in MiB: ``2048`` is MiB, ``"2G"`` and ``"512M"`` are as Harbor writes them. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    factor = _SIZES.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{value!r} is not a size such as 2G or 512M")
    return int(float(match[1]) * factor)


def as_user(value: Any) -> Any:
    """Return a user number as text, any other value as it is."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def image_reference(value: str) -> str:
    """Return an image name that follows Docker's grammar `distribution/reference`. Raises ValueError."""
    match = _REFERENCE.fullmatch(value) if len(value) <= MAX_NAME_CHARS else None
    if match is None or len(match["name"]) > 255:
        raise ValueError(f"{value[:100]!r} is not an image name, such as org/name:tag")
    return value


def none_is_no_host(value: Any) -> Any:
    """Return an empty list for ``none``. Raises ValueError for any other text."""
    if value == "none":
        return ()
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is neither 'none' nor a list of hosts")
    return value


def one_or_more(value: Any) -> Any:
    """Return a single text as a tuple."""
    return (value,) if isinstance(value, str) else value


def _hosts(value: tuple[str, ...]) -> tuple[str, ...]:
    try:
        AllowList.parse(value).refuse_local()
    except SpecError as error:
        raise ValueError(str(error)) from None
    return value


def _protected(value: tuple[str, ...]) -> tuple[str, ...]:
    check_patterns(value)
    GitignorePatterns(value)
    return value


def _excluded(value: tuple[str, ...]) -> tuple[str, ...]:
    check_patterns(value)
    TarPatterns(value)
    return value


def _line_range(value: tuple[int, int]) -> tuple[int, int]:
    if not 1 <= value[0] <= value[1] <= MAX_LINE:
        raise ValueError(f"not a range of lines, counted from 1 to at most {MAX_LINE} with both ends included")
    return value


def as_tables(value: Any) -> Any:
    """Return artifacts as tables with a ``source``; a path is one."""
    if not isinstance(value, list):
        return value
    return [{"source": item} if isinstance(item, str) else item for item in value]


def lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _variables(value: Mapping[str, str]) -> Mapping[str, str]:
    for name, content in value.items():
        if not _VARIABLE.fullmatch(name) or "\0" in content:
            raise ValueError(f"{name!r} is not the name of a variable, or its value has a zero byte")
        if "$" in content:
            raise ValueError(f"{name} refers to a variable of the host, which no sandbox has; write its value")
    return value


RelativePath = Annotated[str, AfterValidator(_relative_path)]
AbsolutePath = Annotated[str, AfterValidator(absolute_path)]
WorkspacePath = Annotated[str, AfterValidator(workspace_path)]


class StopAtFirst(FailFast):
    """``FailFast`` that may be part of a union."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


Texts = Annotated[tuple[str, ...], StopAtFirst()]
"""A list that is refused at its first wrong item: a description of every item of a long list fills the memory."""

Protected = Annotated[Texts, AfterValidator(_protected)]
"""Lines of a ``.gitignore`` file."""
Excluded = Annotated[Texts, AfterValidator(_excluded)]
"""Patterns as ``tar --exclude`` reads them."""
Command = Annotated[str, Field(max_length=MAX_COMMAND_CHARS)]
Seconds = Annotated[float, Field(gt=0, le=DAY_S, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Hosts = Annotated[Texts, AfterValidator(_hosts)]
Reward = Annotated[float, Field(allow_inf_nan=False)]
Env = Annotated[Mapping[str, str], AfterValidator(_variables)]
ImageName = Annotated[str, Field(max_length=1024), AfterValidator(image_reference)]
NetworkMode = Literal["public", "no-network", "allowlist"]
LineRange = Annotated[tuple[int, int], AfterValidator(_line_range)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]*$")]
UserName = Annotated[
    str,
    BeforeValidator(as_user),
    Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$"),
]
"""A user as in a Dockerfile: a user, or a user, a colon and a group, each a name or a number."""
