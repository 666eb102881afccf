"""The error of a plug-in whose packages are not installed."""

import importlib
import sys

import pytest

from farm.plugins.requirement import required


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("harbor", "harbor", "harbor"),
        ("inspect_ai", "inspect_ai", "inspect"),
        ("mini_swe_agent", "minisweagent", "mini-swe-agent"),
        ("openenv", "openenv", "openenv"),
    ],
)
def test_plugin_without_package_names_pip_command(
    module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"farm.plugins.{module}", raising=False)
    with pytest.raises(ImportError) as raised:
        importlib.import_module(f"farm.plugins.{module}")
    assert str(raised.value) == (
        f"this module needs {package}, which is not installed; pip install 'rollout-farm[{extra}]'"
    )


def test_missing_module_of_the_farm_is_no_lacking_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), required("inspect"):
        importlib.import_module("farm.no_such_module")


def test_library_without_extra_is_installed_from_its_repository() -> None:
    remedy = "needs no_such_library, which is not installed; install it from github.com/a/b"
    with pytest.raises(ImportError, match=remedy), required("none", source="github.com/a/b"):
        importlib.import_module("no_such_library")
