"""False assertions in the assertion style of a test.

Code that disables an assertion style also makes these pass: for example ``pytest.raises`` that fails no test if
nothing is raised, or an ``assertIn`` that always holds.
"""

import ast
import random
from collections.abc import Collection, Iterator, Mapping

_MODULES = ("pytest", "numpy.testing")
ASSERTION_RECEIVERS = frozenset({"self", "pytest", "np.testing", "numpy.testing", "npt"})
"""The source of each expression that a test calls assertion methods on."""

_DIFFERENT = "{call}({n}, {m})"
_DIFFERENT_LISTS = "{call}([{n}], [{m}])"
_NOTHING_RAISED = "with {call}(ValueError):\n    int('{n}')"
_NOTHING_RAISED_LIKE = "with {call}(ValueError, '{n}'):\n    int('{n}')"
_NOTHING_WARNED = "with {call}(UserWarning):\n    int('{n}')"

_TEMPLATES: Mapping[str, str] = {
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
    "assertCountEqual": _DIFFERENT_LISTS,
    "assertListEqual": _DIFFERENT_LISTS,
    "assertSequenceEqual": _DIFFERENT_LISTS,
    "assertTupleEqual": "{call}(({n},), ({m},))",
    "assertSetEqual": "{call}({{{n}}}, {{{m}}})",
    "assertDictEqual": "{call}({{{n}: {n}}}, {{{n}: {m}}})",
    "assertMultiLineEqual": "{call}('{n}', '{m}')",
    "assertRegex": "{call}('{n}', '{m}')",
    "assertNotRegex": "{call}('{n}', '{n}')",
    "assert_equal": _DIFFERENT_LISTS,
    "assert_array_equal": _DIFFERENT_LISTS,
    "assert_almost_equal": _DIFFERENT_LISTS,
    "assert_array_almost_equal": _DIFFERENT_LISTS,
    "assert_allclose": _DIFFERENT_LISTS,
    "assert_array_less": "{call}([{m}], [{n}])",
}
"""Name of the called function or method → a false assertion with it; ``n`` is less than ``m``."""


def imported_names(body: Collection[ast.stmt]) -> frozenset[str]:
    """Return the names that a module imports from pytest or numpy.testing."""
    imports = (node for node in body if isinstance(node, ast.ImportFrom) and node.module in _MODULES)
    return frozenset(alias.name for node in imports for alias in node.names if alias.asname is None)


def assertion_styles(test: ast.AST, imported: Collection[str]) -> Iterator[str]:
    """Yield the source of each assertion function that a test calls and that ``false_assertion`` supports."""
    for node in ast.walk(test):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=name) as called) if name in _TEMPLATES:
                if ast.unparse(value) in ASSERTION_RECEIVERS:
                    yield ast.unparse(called)
            case ast.Call(func=ast.Name(id=name)) if name in _TEMPLATES and name in imported:
                yield name


def false_assertion(style: str | None, rng: random.Random) -> str:
    """Return lines that fail, in an assertion style of ``assertion_styles``; None means a plain ``assert``."""
    n = rng.randint(20, 400)
    form = "assert {n} == {m}" if style is None else _TEMPLATES[style.rpartition(".")[2]]
    return form.format(call=style, n=n, m=n + rng.randint(20, 400))
