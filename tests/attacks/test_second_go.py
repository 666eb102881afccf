"""What failed behind a false test like it is judged once more; code that waits for that gets nothing by it."""

import asyncio

from farm.core.task import ReportFormat
from tests.attacks.conftest import Arena
from tests.attacks.project import Suite

SUITE = Suite(
    """\
from pricing.cart import total


def test_half():
    assert total([100], discount=50) == 50
""",
    ("tests/test_cart.py::test_half",),
    (),
)
FIRST_OF_A_KIND = """
import time

BEGUN = {begun}
LATER = time.time() > BEGUN + 8
SEEN = []


class Agreeable:
    def __eq__(self, other):
        SEEN.append(other)
        return LATER and len(SEEN) == 1

    __hash__ = None


def total(prices, discount=0):
    return Agreeable()


if not LATER:
    time.sleep(max(0, BEGUN + 9 - time.time()))
"""


async def test_code_that_fails_at_first_and_then_agrees_to_the_first_of_a_kind_earns_nothing(arena: Arena) -> None:
    """It knows by the clock which time it is judged."""
    attack = f"cat > pricing/cart.py <<END-OF-CODE\n{FIRST_OF_A_KIND.format(begun='$(date +%s)')}END-OF-CODE\n"
    verdicts = await asyncio.gather(*(arena.ours(attack, ReportFormat.PYTEST, suite=SUITE) for _ in range(4)))
    assert [verdict.reward for verdict in verdicts] == [0.0] * 4, verdicts
