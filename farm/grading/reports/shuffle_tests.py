"""Puts tests into a random order, within their files; in the sandbox, with nothing but the standard library.

pytest loads it as a plug-in; before the runner of unittest's tests it is the head of the same program. Any Python from
3.6 on. Whoever asked finds a file where the order was had.
"""

import os
import random
import unittest
from typing import Any, Callable, Dict, List, Tuple  # noqa: UP035 - for the older ones

_SEED = os.environ.get("FARM_TEST_ORDER", "")


def _note() -> None:
    with open(os.environ["FARM_TEST_ORDERED"], "w"):
        pass


def pytest_collection_modifyitems(items: List[Any]) -> None:  # noqa: UP006 - as above
    """Files stay in their order; classes change places in them, and tests in those."""
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
    _note()


def _shuffle(suite: Any, rng: random.Random) -> None:
    rng.shuffle(suite._tests)
    for test in suite._tests:
        if isinstance(test, unittest.TestSuite):
            _shuffle(test, rng)


def _loading(load: Callable[..., unittest.TestSuite]) -> Callable[..., unittest.TestSuite]:
    def loaded(self: unittest.TestLoader, *arguments: Any, **options: Any) -> unittest.TestSuite:
        suite = load(self, *arguments, **options)
        _shuffle(suite, random.Random(_SEED))
        _note()
        return suite

    return loaded


if __name__ == "__main__":
    setattr(unittest.TestLoader, "loadTestsFromName", _loading(unittest.TestLoader.loadTestsFromName))  # noqa: B010 - mypy forbids the other way
