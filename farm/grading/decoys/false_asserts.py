"""False claims in the words that a test makes its own with.

Whoever turns a way of asserting off, so that ``pytest.raises`` swallows what it should miss or ``assertIn`` finds
everything, makes them hold too.
"""

import ast
import random
from collections.abc import Collection, Iterator, Mapping

_MODULES = ("pytest", "numpy.testing")
RECEIVERS = frozenset({"self", "pytest", "np.testing", "numpy.testing", "npt"})
"""What a test calls its assertions on, as it is written."""

_DIFFERENT = "{call}({n}, {m})"
_OF_LISTS = "{call}([{n}], [{m}])"
_NOTHING_RAISED = "with {call}(ValueError):\n    int('{n}')"
_NOTHING_RAISED_LIKE = "with {call}(ValueError, '{n}'):\n    int('{n}')"
_NOTHING_WARNED = "with {call}(UserWarning):\n    int('{n}')"

_CLAIMS: Mapping[str, str] = {
    "raises": _NOTHING_RAISED,
    "warns": _NOTHING_WARNED,
    "deprecated_call": "with {call}():\n    int('{n}')",
    "approx": "assert {n}.5 == {call}({m})",
    "assertEqual": _DIFFERENT,
    "assertNotEqual": "{call}({n}, {n})",
    "assertTrue": "{call}({n} == {m})",
    "assertFalse": "{call}({n} != {m})",
    "assertIs": "{call}(None, {n})",
    "assertIsNot": "{call}(None, None)",
    "assertIsNone": "{call}({n})",
    "assertIsNotNone": "{call}(None)",
    "assertIn": "{call}({n}, [{m}])",
    "assertNotIn": "{call}({n}, [{n}, {m}])",
    "assertIsInstance": "{call}({n}, str)",
    "assertNotIsInstance": "{call}({n}, int)",
    "assertRaises": _NOTHING_RAISED,
    "assertRaisesRegex": _NOTHING_RAISED_LIKE,
    "assertWarns": _NOTHING_WARNED,
    "assertAlmostEqual": _DIFFERENT,
    "assertNotAlmostEqual": "{call}({n}, {n})",
    "assertGreater": _DIFFERENT,
    "assertGreaterEqual": _DIFFERENT,
    "assertLess": "{call}({m}, {n})",
    "assertLessEqual": "{call}({m}, {n})",
    "assertCountEqual": _OF_LISTS,
    "assertListEqual": _OF_LISTS,
    "assertSequenceEqual": _OF_LISTS,
    "assertTupleEqual": "{call}(({n},), ({m},))",
    "assertSetEqual": "{call}({{{n}}}, {{{m}}})",
    "assertDictEqual": "{call}({{{n}: {n}}}, {{{n}: {m}}})",
    "assertMultiLineEqual": "{call}('{n}', '{m}')",
    "assertRegex": "{call}('{n}', '{m}')",
    "assertNotRegex": "{call}('{n}', '{n}')",
    "assert_equal": _OF_LISTS,
    "assert_array_equal": _OF_LISTS,
    "assert_almost_equal": _OF_LISTS,
    "assert_array_almost_equal": _OF_LISTS,
    "assert_allclose": _OF_LISTS,
    "assert_array_less": "{call}([{m}], [{n}])",
}
"""By the last name of what is called; ``n`` is less than ``m``."""


def imported_words(body: Collection[ast.stmt]) -> frozenset[str]:
    """Names of a module that are pytest's or numpy's own."""
    imports = (node for node in body if isinstance(node, ast.ImportFrom) and node.module in _MODULES)
    return frozenset(alias.name for node in imports for alias in node.names if alias.asname is None)


def ways_of(test: ast.AST, imported: Collection[str]) -> Iterator[str]:
    """Ways of asserting that a test uses and that a claim can be made with, as it calls them."""
    for node in ast.walk(test):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=name) as called) if name in _CLAIMS:
                if ast.unparse(value) in RECEIVERS:
                    yield ast.unparse(called)
            case ast.Call(func=ast.Name(id=name)) if name in _CLAIMS and name in imported:
                yield name


def false_claim(way: str | None, rng: random.Random) -> str:
    """Lines that fail, made in that way of asserting; None: by ``assert`` itself."""
    n = rng.randint(20, 400)
    form = "assert {n} == {m}" if way is None else _CLAIMS[way.rpartition(".")[2]]
    return form.format(call=way, n=n, m=n + rng.randint(20, 400))
