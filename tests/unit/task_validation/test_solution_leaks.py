"""What a solution brings is found wherever it lies: in text, archives, git's objects and bytecode."""

import base64
import bz2
import difflib
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
from farm.task_validation.sandbox_leak_scanner import Scan
from farm.task_validation.solution_leaks import SolutionFingerprint, solution_fingerprint

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


def secrets() -> SolutionFingerprint:
    return solution_fingerprint(Change((FileChange("a.py", ChangeKind.WRITE, SOLVED),)), {"a.py": PRESENT})


def findings(root: Path, prune: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return scanned(secrets(), root, prune)


def sought(solved: bytes, faulty: bytes, root: Path) -> list[tuple[str, str]]:
    """Return the findings of lines alone, without names and bytecode."""
    wanted = solution_fingerprint(Change((FileChange("a.py", ChangeKind.WRITE, solved),)), {"a.py": faulty})
    assert wanted.passages
    return scanned(replace(wanted, modules=(), names=()), root)


def scanned(wanted: SolutionFingerprint, root: Path, prune: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    scan = Scan(
        {
            "passages": [base64.b64encode(passage).decode() for passage in wanted.passages],
            "names": wanted.names,
            "modules": [
                [
                    module.path,
                    base64.b64encode(module.solved).decode(),
                    base64.b64encode(module.present).decode(),
                ]
                for module in wanted.modules
            ],
            "prune": prune,
            "most": 20,
        }
    )
    return [(Path(path).relative_to(root).as_posix(), what) for path, what in scan.files(str(root))]


def test_fingerprint_of_a_solution() -> None:
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


def test_common_lines_get_more_context(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_bytes(b"try:\n        return True\n    except ValueError:\n        return False\n")
    faulty = ORDINARY.replace(b"ValueError", b"TypeError")
    assert sought(ORDINARY, faulty, tmp_path) == []
    (tmp_path / "copy.py").write_bytes(b"# an old copy\n" + ORDINARY)
    assert [path for path, _ in sought(ORDINARY, faulty, tmp_path)] == ["copy.py"]


def test_solution_in_standard_library_is_found(tmp_path: Path) -> None:
    solved = Path(textwrap.__file__).read_bytes()
    faulty = solved.replace(b"if self.fix_sentence_endings:", b"if not self.fix_sentence_endings:")
    assert faulty != solved
    (tmp_path / "textwrap.py").write_bytes(solved)
    assert {path for path, _ in sought(solved, faulty, tmp_path)} == {"textwrap.py"}
    (tmp_path / "textwrap.py").write_bytes(faulty)
    assert sought(solved, faulty, tmp_path) == []


def test_standard_library_names_are_left_out() -> None:
    added = b"def add_argument_group(): ...\ndef gather_neighbours_of(): ...\nclass _SubParsersAction: ...\n"
    wanted = solution_fingerprint(Change((FileChange("a.py", ChangeKind.WRITE, added),)), {"a.py": b""})
    assert wanted.names == ("gather_neighbours_of",)


def test_clean_tree_has_no_findings(tmp_path: Path) -> None:
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
def test_passages_are_found_in_archives(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "kept").write_bytes(pack(SOLVED))
    found = findings(tmp_path)
    assert {path for path, _ in found} == {"kept"}
    assert any("lines that were taken out" in what for _, what in found)
    assert any("def gather_neighbours" in what for _, what in found)


def test_bytecode_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_bytes(b"# moved\n\n\n" + SOLVED)
    py_compile.compile(str(tmp_path / "b.py"), cfile=str(tmp_path / "kept.pyc"))
    (tmp_path / "b.py").unlink()
    found = findings(tmp_path)
    assert ("kept.pyc", "bytecode of neighbours as it is when solved") in found


SHORT = b"""\
STEP = 2


class Walk:
    def __init__(self, cells):
        self.cells = cells[1:]


def last(cells):
    return cells[-1]
"""
SHORT_FAULTY = SHORT.replace(b"[1:]", b"[:1]").replace(b"[-1]", b"[-2]")


def compiled(place: Path, source: bytes, as_path: str) -> bytes:
    """Return the bytecode of ``source`` as a file at ``as_path``."""
    (place / "source.py").write_bytes(source)
    py_compile.compile(str(place / "source.py"), cfile=str(place / "code.pyc"), dfile=as_path, doraise=True)
    (place / "source.py").unlink()
    code = (place / "code.pyc").read_bytes()
    (place / "code.pyc").unlink()
    return code


def in_bytecode(root: Path, solved: bytes, faulty: bytes, path: str = "src/walks/steps.py") -> list[tuple[str, str]]:
    """Return the findings of bytecode alone, if the gold change is of the file at ``path``."""
    wanted = solution_fingerprint(Change((FileChange(path, ChangeKind.WRITE, solved),)), {path: faulty})
    return scanned(replace(wanted, passages=(), names=()), root)


@pytest.mark.parametrize("pack", [bytes, zipped, lambda content: gzip.compress(tarred(content))])
@pytest.mark.parametrize(
    "place",
    ["/workspace/src/walks/steps.py", "/usr/lib/python3/dist-packages/walks/steps.py", "walks/steps.py", "./steps.py"],
)
def test_short_functions_are_recognised_in_their_module(
    tmp_path: Path, place: str, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "kept").write_bytes(pack(compiled(tmp_path, SHORT, place)))
    assert {what for _, what in in_bytecode(tmp_path, SHORT, SHORT_FAULTY)} == {
        "bytecode of Walk.__init__ as it is when solved",
        "bytecode of last as it is when solved",
    }


def test_module_constants_are_recognised_in_bytecode(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(compiled(tmp_path, SHORT, "/workspace/src/walks/steps.py"))
    found = in_bytecode(tmp_path, SHORT, SHORT.replace(b"STEP = 2", b"STEP = 3"))
    assert found == [("kept", "bytecode of <module> as it is when solved")]


@pytest.mark.parametrize(
    ("source", "place"),
    [
        (SHORT_FAULTY, "/workspace/src/walks/steps.py"),
        (SHORT_FAULTY, "/usr/lib/python3/dist-packages/walks/steps.py"),
        (SHORT, "/usr/lib/python3/dist-packages/hikes/steps.py"),
        (SHORT, "/usr/lib/python3/dist-packages/walks/other.py"),
        (SHORT, "/usr/lib/python3/dist-packages/steps.py"),
        (SHORT.replace(b"[1:]", b"[2:]").replace(b"[-1]", b"[-3]") + b"\n\nMORE = 1\n", "/old/walks/steps.py"),
    ],
    ids=["as it is", "as it is, installed", "another package", "another module", "no package", "another version"],
)
def test_short_functions_elsewhere_are_ignored(tmp_path: Path, source: bytes, place: str) -> None:
    (tmp_path / "kept").write_bytes(compiled(tmp_path, source, place))
    assert in_bytecode(tmp_path, SHORT, SHORT_FAULTY) == []


def test_module_of_same_name_in_package_is_ignored(tmp_path: Path) -> None:
    for package in ("alone", "package"):
        (tmp_path / package).mkdir()
        (tmp_path / f"{package}.pyc").write_bytes(compiled(tmp_path, SHORT, str(tmp_path / package / "steps.py")))
    (tmp_path / "package" / "__init__.py").touch()
    assert {path for path, _ in in_bytecode(tmp_path, SHORT, SHORT_FAULTY, "steps.py")} == {"alone.pyc"}


VIM_SWAP = (
    "c-rmR%SyvQ6b9ha(v1tP=mU6+2o3aVH`=W$7cNxlMnuwP(hTNOl1Xi$=v%n-Rdne)xbsPzPHK_5=}IX69~|a#4l|R1EJAwC>$7t{sW(a6CffTb"
    "-M_psJywa5I99ZRQAjIksBqXA$xt<%`fx%3@K-YB)s8p2?W2}?)eo$F-recqUH||90090GH7wARZj1Br#=I>owEzGB00000u)Z9Z=zWW*R3`KP"
    "|NHy@Q;%PDJnNY1xYBW{<3dNfoYxo2xIX{@00000SQlerEfFe9A`WD#Dv^)_zZYjoTIq`*NUI!(DDT>~O|I~G;3!`tcgvM_M=!`fOr!{0Hn|%a"
    "xnj&UZrxVR%%V_woaYYtLAuKCn2Z-E`E*{b`z)d?6p5q6Vz*hLWm%`QA@@WoUBSZX`y9{CSJx?X+}}@RHqr}x0q~J%HU"
)
"""Of Vim 9.0, in which SOLVED was being edited: it holds the lines from the last to the first."""


def test_vim_swap_file_is_read(tmp_path: Path) -> None:
    (tmp_path / ".a.py.swp").write_bytes(zlib.decompress(base64.b85decode(VIM_SWAP)))
    assert {path for path, _ in sought(SOLVED, PRESENT, tmp_path)} == {".a.py.swp"}


@pytest.mark.parametrize("turn", [1, -1], ids=["the solution", "the fault"])
def test_both_sides_of_a_patch_are_read(tmp_path: Path, turn: int) -> None:
    before, after = [text.decode().splitlines(keepends=True) for text in (PRESENT, SOLVED)][::turn]
    (tmp_path / "a.py.rej").write_text("".join(difflib.unified_diff(before, after, "a.py", "a.py")))
    assert {path for path, _ in sought(SOLVED, PRESENT, tmp_path)} == {"a.py.rej"}


def test_git_pack_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(SOLVED)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@localhost"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["gc", "-q"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    (tmp_path / "a.py").unlink()
    assert {path.rpartition(".")[2] for path, _ in findings(tmp_path)} == {"pack"}


def test_pruned_directories_and_links_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "a.py").write_bytes(SOLVED)
    (tmp_path / "link").symlink_to(tmp_path / "away" / "a.py")
    assert findings(tmp_path, prune=(str(tmp_path / "away"),)) == []
