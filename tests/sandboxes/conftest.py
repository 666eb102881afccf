import pytest

pytest.register_assert_rewrite(
    *(f"tests.sandboxes.{name}" for name in ("background", "conformance", "copying", "repeating"))
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Servers outside a sandbox spill into one directory, and each test's end empties it: also where a module of
    another name starts some."""
    for item in items:
        starts_some = isinstance(item, pytest.Function) and hasattr(item.module, "ordinary")
        if starts_some or item.path.name.startswith("test_server_"):
            item.add_marker(pytest.mark.xdist_group("spills"))
