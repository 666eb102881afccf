"""The result of one check of ``farm doctor``."""

from dataclasses import dataclass
from enum import StrEnum


class CheckMark(StrEnum):
    OK = "ok"
    WARN = "warn"
    LACKS = "lacks"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. ``remedy`` is empty if there is nothing to do."""

    name: str
    mark: CheckMark
    found: str
    remedy: str = ""
