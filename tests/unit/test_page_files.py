"""The files of the page: libraries are those that were published, and nothing names another host."""

import re
from pathlib import Path

import pytest

from farm.gateway.page import ROOT, page_files, release
from tests.support.page.vendored import VENDOR, described, digest

OWN = sorted(
    path for path in ROOT.rglob("*") if path.suffix in (".js", ".css", ".html", ".svg") and VENDOR not in path.parents
)
LONGEST_MODULE = 400


def test_libraries_are_those_of_their_digests() -> None:
    files = {name: entry for package in described().values() for name, entry in package["files"].items()}
    assert {path.name for path in VENDOR.iterdir()} == {*files, "versions.json"}
    assert {name: digest((VENDOR / name).read_bytes()) for name in files} == {
        name: entry["sha256"] for name, entry in files.items()
    }


def test_each_library_has_its_licence() -> None:
    for package in described():
        assert (VENDOR / f"LICENSE-{package}").stat().st_size > 500


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_own_file_is_short_and_names_no_other_host(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= LONGEST_MODULE
    assert [line for line in lines if len(line) > 120] == []
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(https?:)?//[\w.-]+\.\w+/", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


def test_each_import_of_a_module_leads_to_a_file() -> None:
    files = page_files()
    for path in (path for path in ROOT.rglob("*.js")):
        for named in re.findall(r"""(?:from|import\()\s*["'](\.[^"']+)["']""", path.read_text()):
            assert (path.parent / named).resolve().relative_to(ROOT).as_posix() in files, f"{path.name}: {named}"


def test_start_loads_only_files_that_exist() -> None:
    start = page_files()["index.html"].content.decode()
    assert set(re.findall(r'(?:href|src)="([^"]+)"', start)) <= set(page_files())


def test_folder_is_named_after_the_content() -> None:
    assert re.fullmatch("@[0-9a-f]{16}", release())
