import pytest

pytest.register_assert_rewrite(
    *(f"tests.sandboxes.{name}" for name in ("background", "conformance", "copying", "repeating"))
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Servers outside a sandbox spill into one directory, and each test's end empties it."""
    for item in items:
        if item.path.name.startswith("test_server_"):
            item.add_marker(pytest.mark.xdist_group("spills"))
