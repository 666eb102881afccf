"""What a solution brings is found wherever it lies: in text, archives, git's objects and bytecode."""

import base64
import bz2
import gzip
import io
import lzma
import py_compile
import subprocess
import tarfile
import textwrap
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from farm.core.change import Change, ChangeKind, FileChange
from farm.workshop.residue import Secrets, secrets_of
from farm.workshop.residue_inside import Scan

SOLVED = b'''\
def neighbours(cells, width):
    """Cells beside each other."""
    for index, cell in enumerate(cells):
        if index % width:
            yield cells[index - 1], cell


def gather_neighbours(cells):
    return list(neighbours(cells, len(cells)))
'''
PRESENT = SOLVED.replace(b"index - 1", b"index + 1").partition(b"\n\ndef gather")[0]


def secrets() -> Secrets:
    return secrets_of(Change((FileChange("a.py", ChangeKind.WRITE, SOLVED),)), {"a.py": PRESENT})


def findings(root: Path, prune: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return scanned(secrets(), root, prune)


def sought(solved: bytes, faulty: bytes, root: Path) -> list[tuple[str, str]]:
    """Lines alone: what the changed functions compile to is another matter."""
    wanted = secrets_of(Change((FileChange("a.py", ChangeKind.WRITE, solved),)), {"a.py": faulty})
    assert wanted.passages
    return scanned(replace(wanted, modules=()), root)


def scanned(wanted: Secrets, root: Path, prune: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    scan = Scan(
        {
            "passages": [base64.b64encode(passage).decode() for passage in wanted.passages],
            "names": wanted.names,
            "modules": [[base64.b64encode(text).decode() for text in pair] for pair in wanted.modules],
            "prune": prune,
            "most": 20,
        }
    )
    return [(Path(path).relative_to(root).as_posix(), what) for path, what in scan.files(str(root))]


def test_what_is_secret() -> None:
    found = secrets()
    assert any(b"cells[index - 1]" in passage for passage in found.passages)
    assert all(passage not in PRESENT for passage in found.passages)
    assert found.names == ("gather_neighbours",)


ORDINARY = b"""\
def is_whole(number):
    limit = 1 << 53
    if abs(number) > limit:
        return False
    try:
        int(number)
        return True
    except ValueError:
        return False
    finally:
        note_that_it_was_asked(number)
"""
"""Three lines of it stand in many a file."""


def test_what_any_python_file_holds_is_told_apart_by_more_of_what_stands_around_it(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_bytes(b"try:\n        return True\n    except ValueError:\n        return False\n")
    faulty = ORDINARY.replace(b"ValueError", b"TypeError")
    assert sought(ORDINARY, faulty, tmp_path) == []
    (tmp_path / "copy.py").write_bytes(b"# an old copy\n" + ORDINARY)
    assert [path for path, _ in sought(ORDINARY, faulty, tmp_path)] == ["copy.py"]


def test_a_solution_that_stands_in_the_standard_library_is_found_there(tmp_path: Path) -> None:
    solved = Path(textwrap.__file__).read_bytes()
    faulty = solved.replace(b"if self.fix_sentence_endings:", b"if not self.fix_sentence_endings:")
    assert faulty != solved
    (tmp_path / "textwrap.py").write_bytes(solved)
    assert {path for path, _ in sought(solved, faulty, tmp_path)} == {"textwrap.py"}
    (tmp_path / "textwrap.py").write_bytes(faulty)
    assert sought(solved, faulty, tmp_path) == []


def test_names_of_the_standard_library_are_no_secret() -> None:
    added = b"def add_argument_group(): ...\ndef gather_neighbours_of(): ...\nclass _SubParsersAction: ...\n"
    wanted = secrets_of(Change((FileChange("a.py", ChangeKind.WRITE, added),)), {"a.py": b""})
    assert wanted.names == ("gather_neighbours_of",)


def test_a_pristine_tree_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(PRESENT)
    py_compile.compile(str(tmp_path / "a.py"), cfile=str(tmp_path / "a.pyc"))
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 and no archive")
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b and nothing")
    (tmp_path / "broken.pyc").write_bytes(b"xx\r\n" + b"\0" * 20 + b"neighbours")
    assert findings(tmp_path) == []


def zipped(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("b/a.py", content)
    return packed.getvalue()


def tarred(content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo("b/a.py")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        zipped,
        tarred,
        gzip.compress,
        bz2.compress,
        lzma.compress,
        zlib.compress,
        lambda content: gzip.compress(tarred(content)),
        lambda content: zipped(zipped(content)),
    ],
)
def test_text_is_found_in_whatever_it_is_packed(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "kept").write_bytes(pack(SOLVED))
    found = findings(tmp_path)
    assert {path for path, _ in found} == {"kept"}
    assert any("lines that were taken out" in what for _, what in found)
    assert any("def gather_neighbours" in what for _, what in found)


def test_bytecode_is_known_again(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_bytes(b"# moved\n\n\n" + SOLVED)
    py_compile.compile(str(tmp_path / "b.py"), cfile=str(tmp_path / "kept.pyc"))
    (tmp_path / "b.py").unlink()
    found = findings(tmp_path)
    assert ("kept.pyc", "bytecode of neighbours as it is when solved") in found


def test_a_git_pack_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(SOLVED)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@localhost"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["gc", "-q"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    (tmp_path / "a.py").unlink()
    assert {path.rpartition(".")[2] for path, _ in findings(tmp_path)} == {"pack"}


def test_pruned_directories_and_links_are_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "a.py").write_bytes(SOLVED)
    (tmp_path / "link").symlink_to(tmp_path / "away" / "a.py")
    assert findings(tmp_path, prune=(str(tmp_path / "away"),)) == []
