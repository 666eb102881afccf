import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests that start tool servers outside a sandbox in one worker.

    These servers spill into one directory, and each test empties it at its end.
    """
    for item in items:
        starts_some = isinstance(item, pytest.Function) and hasattr(item.module, "ordinary")
        if starts_some or item.path.parent.name == "toolserver":
            item.add_marker(pytest.mark.xdist_group("spills"))
