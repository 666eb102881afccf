"""The reward files of a Harbor ``test.sh``, parsed to one number that rewards can be summed with."""

from collections.abc import Mapping

from farm.core.nesting_limit import read_json
from farm.grading.errors import ReportError

MAX_REWARD_BYTES = 64 * 1024
MAX_REWARD = 1e6


JSON, TEXT = "reward.json", "reward.txt"


def choose_reward(files: Mapping[str, bytes]) -> float:
    """Of the files that are there, by name. As Harbor has it ``reward.txt`` counts where ``reward.json`` names none.

    Code under test may write either, but its own word only beside the verifier's: of two rewards the lower counts.
    Raises ReportError, also where one of two cannot be read: it may be the one that the verifier wrote.
    """
    found = []
    if JSON in files and not (TEXT in files and _names_none(files[JSON])):
        found.append(parse_reward(files[JSON], is_json=True))
    if TEXT in files:
        found.append(parse_reward(files[TEXT], is_json=False))
    if not found:
        raise ReportError("the verifier wrote no reward file")
    return min(found)


def _names_none(content: bytes) -> bool:
    """Whether it is an object that holds other numbers than a reward."""
    try:
        value = read_json(content[: MAX_REWARD_BYTES + 1])
    except ValueError:
        return False
    return isinstance(value, dict) and "reward" not in value


def parse_reward(content: bytes, *, is_json: bool) -> float:
    """``reward.txt`` holds a number; ``reward.json`` a number, or an object whose key ``reward`` is one.

    Raises ReportError for anything else, and for a number farther from 0 than MAX_REWARD.
    """
    if len(content) > MAX_REWARD_BYTES:
        raise ReportError(f"the reward file holds more than {MAX_REWARD_BYTES} bytes")
    try:
        text = content.decode()
        value = read_json(text) if is_json else float(text.strip())
    except ValueError:
        raise ReportError("the reward file cannot be read as a number") from None
    if isinstance(value, dict):
        value = value.get("reward")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ReportError("the reward file holds no number")
    try:
        reward = float(value)
    except OverflowError:
        raise ReportError("the reward file's number is too large") from None
    if not abs(reward) <= MAX_REWARD:  # not a number neither
        raise ReportError(f"the reward file holds {reward:g}; a reward lies between {-MAX_REWARD:g} and {MAX_REWARD:g}")
    return reward
