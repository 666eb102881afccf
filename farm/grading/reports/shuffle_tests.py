"""Shuffles the tests within each file. Runs in the sandbox, with the standard library of any Python from 3.6 on.

pytest loads this file as a plug-in; for unittest it is prepended to ``unittest_runner``. The file named by
FARM_TEST_ORDERED exists after the order was applied.
"""

import os
import random
import unittest
from typing import Any, Callable, Dict, List, Tuple  # noqa: UP035 - for the older ones

_SEED = os.environ.get("FARM_TEST_ORDER", "")


def _mark_applied() -> None:
    with open(os.environ["FARM_TEST_ORDERED"], "w"):
        pass


def pytest_collection_modifyitems(items: List[Any]) -> None:  # noqa: UP006 - as above
    """Shuffle the classes of each file, and the tests of each class; files keep their order."""
    rng = random.Random(_SEED)
    files: Dict[str, Dict[Tuple[str, ...], List[Any]]] = {}  # noqa: UP006 - as above
    for item in items:
        parts = item.nodeid.partition("[")[0].split("::")
        files.setdefault(parts[0], {}).setdefault(tuple(parts[1:-1]), []).append(item)
    ordered: List[Any] = []  # noqa: UP006 - as above
    for scopes in files.values():
        for tests in rng.sample(list(scopes.values()), len(scopes)):
            ordered += rng.sample(tests, len(tests))
    items[:] = ordered
    _mark_applied()


def _shuffle_suite(suite: Any, rng: random.Random) -> None:
    rng.shuffle(suite._tests)
    for test in suite._tests:
        if isinstance(test, unittest.TestSuite):
            _shuffle_suite(test, rng)


def _shuffled_loader(load: Callable[..., unittest.TestSuite]) -> Callable[..., unittest.TestSuite]:
    def load_and_shuffle(self: unittest.TestLoader, *arguments: Any, **options: Any) -> unittest.TestSuite:
        suite = load(self, *arguments, **options)
        _shuffle_suite(suite, random.Random(_SEED))
        _mark_applied()
        return suite

    return load_and_shuffle


if __name__ == "__main__":
    setattr(unittest.TestLoader, "loadTestsFromName", _shuffled_loader(unittest.TestLoader.loadTestsFromName))  # noqa: B010 - mypy forbids the other way
