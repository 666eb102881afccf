"""Parser of the reward files of a Harbor ``test.sh``; it returns one finite number."""

from collections.abc import Mapping

from farm.core.nesting_limit import read_json
from farm.grading.errors import ReportError

MAX_REWARD_BYTES = 64 * 1024
MAX_REWARD = 1e6


JSON, TEXT = "reward.json", "reward.txt"


def choose_reward(files: Mapping[str, bytes]) -> float:
    """Return the reward from the existing reward files, given by name; the lower one if there are two.

    The lower one counts because the code under test may have added the other. As in Harbor, ``reward.txt`` counts if
    ``reward.json`` has other numbers than a reward.

    Raises ReportError if there is no file, or if one of two is invalid, because it may be the verifier's.
    """
    rewards = []
    if JSON in files and not (TEXT in files and _lacks_reward(files[JSON])):
        rewards.append(parse_reward(files[JSON], is_json=True))
    if TEXT in files:
        rewards.append(parse_reward(files[TEXT], is_json=False))
    if not rewards:
        raise ReportError("the verifier wrote no reward file")
    return min(rewards)


def _lacks_reward(content: bytes) -> bool:
    """Return True if a JSON file is an object without the key ``reward``."""
    try:
        value = read_json(content[: MAX_REWARD_BYTES + 1])
    except ValueError:
        return False
    return isinstance(value, dict) and "reward" not in value


def parse_reward(content: bytes, *, is_json: bool) -> float:
    """Return the number in ``reward.txt``, or in ``reward.json``: a number, or an object with the key ``reward``.

    Raises ReportError if the content is anything else, or if the number's magnitude exceeds MAX_REWARD.
    """
    if len(content) > MAX_REWARD_BYTES:
        raise ReportError(f"the reward file is too large: it has more than {MAX_REWARD_BYTES} bytes")
    try:
        text = content.decode()
        value = read_json(text) if is_json else float(text.strip())
    except ValueError:
        raise ReportError("the reward file cannot be read as a number") from None
    if isinstance(value, dict):
        value = value.get("reward")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ReportError("the reward file contains no number")
    try:
        reward = float(value)
    except OverflowError:
        raise ReportError("the reward file's number is too large") from None
    if not abs(reward) <= MAX_REWARD:  # also refuses NaN
        raise ReportError(f"the reward {reward:g} is out of range: it must be from {-MAX_REWARD:g} to {MAX_REWARD:g}")
    return reward
