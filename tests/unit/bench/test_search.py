"""The questions that the search is measured with, and how its answers are judged."""

import ast
import math

import pytest

from farm.bench.search.cases import docstring_suite, release_suite, without_docstrings
from farm.bench.search.metrics import judged

SHOP = '''\
"""What is sold where."""


def sell(goods):
    """Hand the goods over to whoever pays for them.

    Raises Poor.
    """
    return goods


class Shop:
    def close(self):
        "short"

    async def open(self): """Let people in as soon as it is morning."""
'''


def test_docstring_is_question_and_is_removed_from_text() -> None:
    suite = docstring_suite("shop", {"shop/sale.py": SHOP, "tests/test_sale.py": SHOP, "notes.txt": "x"}, 10)
    assert {(case.question, *case.answers) for case in suite.cases} == {
        ("Hand the goods over to whoever pays for them.", ("shop/sale.py", "sell")),
        ("Let people in as soon as it is morning.", ("shop/sale.py", "Shop.open")),
    }
    assert set(suite.files) == {"shop/sale.py", "tests/test_sale.py"}
    assert not any(word in suite.files["shop/sale.py"] for word in ("sold", "Hand", "Raises", "short", "morning"))


def test_removed_docstrings_keep_line_numbers() -> None:
    stripped = without_docstrings(SHOP, ast.parse(SHOP))
    assert [node.name for node in ast.walk(ast.parse(stripped)) if isinstance(node, ast.FunctionDef)] == [
        "sell",
        "close",
    ]
    assert stripped.split("\n")[8] == "    return goods"
    assert stripped.count("\n") == SHOP.count("\n")


CHANGES = """\
Version 1.1.0
-------------

-   ``sell`` hands the goods over only once they are paid,
    whatever is asked. :issue:`12`
-   Typos.

Version 1.0.0
-------------

-   The shop has been opened to all of the public.
"""


def test_changelog_entry_has_changed_files_as_answer() -> None:
    old = {"shop/sale.py": SHOP, "shop/same.py": "x = 1", "tests/test_sale.py": "x = 1"}
    new = {
        "shop/sale.py": SHOP.replace("return goods", "return pay(goods)"),
        "shop/same.py": "# said\nx = 1",
        "tests/test_sale.py": "x = 2",
        "shop/new.py": "x = 1",
        "CHANGES.rst": CHANGES,
    }
    (case,) = release_suite("shop", old, new, "1.1.0", 10).cases
    assert case.question == "sell hands the goods over only once they are paid, whatever is asked. 12"
    assert case.answers == {("shop/sale.py", "")}


def test_ndcg_and_mrr_use_first_ten_results() -> None:
    ranked = [(f"{number}.py", "") for number in range(12)]
    best = judged(ranked, frozenset(ranked[:2]))
    assert (best.ndcg, best.mrr) == (1.0, 1.0)
    one = judged(ranked, frozenset({("2.py", ""), ("11.py", "")}))
    assert one.mrr == pytest.approx(1 / 3)
    assert one.ndcg == pytest.approx((1 / math.log2(4)) / (1 + 1 / math.log2(3)))
    none = judged(ranked, frozenset({("10.py", "")}))
    assert (none.ndcg, none.mrr) == (0.0, 0.0)
