import pytest

pytest.register_assert_rewrite("tests.sandboxes.conformance", "tests.sandboxes.copying", "tests.sandboxes.repeating")
