"""Tests of patch rendering, compared with git."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.core.change import Change, ChangeKind, FileChange
from farm.grading import render_patch
from farm.grading.diff import patch
from tests.support.farm.grading_values import change, delete, link, write
from tests.support.services import require_program


def render(new: Change, *old: FileChange) -> str:
    before = {file.path: file for file in old}
    return render_patch(new, before.get)


def git_apply(directory: Path, text: str) -> None:
    subprocess.run(
        [require_program("git"), "apply", "--whitespace=nowarn", "-"],
        cwd=directory,
        input=text.encode(),
        check=True,
        env={"GIT_CEILING_DIRECTORIES": str(directory.parent)},
    )


def test_edit_equals_git_diff() -> None:
    lines = [f"{number}\n" for number in range(12)]
    after = [*lines[:5], "five\n", *lines[6:]]
    assert render(change(write("a.py", "".join(after).encode())), write("a.py", "".join(lines).encode())) == (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -3,7 +3,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"
    )


def test_kinds_and_modes_are_rendered() -> None:
    text = render(
        change(
            write("new.sh", b"x\n", executable=True),
            link("l", b"to"),
            delete("gone"),
            write("m", b"m", executable=True),
        ),
        write("gone", b"g"),
        write("m", b"m"),
        write("l", b"was a file\n"),
    )
    assert text == (
        "diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-g\n"
        "\\ No newline at end of file\n"
        "diff --git a/l b/l\ndeleted file mode 100644\n--- a/l\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-was a file\n"
        "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1,1 @@\n+to\n"
        "\\ No newline at end of file\n"
        "diff --git a/m b/m\nold mode 100644\nnew mode 100755\n"
        "diff --git a/new.sh b/new.sh\nnew file mode 100755\n--- /dev/null\n+++ b/new.sh\n@@ -0,0 +1,1 @@\n+x\n"
    )


@pytest.mark.parametrize("content", [b"\0", b"\xff\xfe", bytes(patch.MAX_SHOWN_BYTES + 1)])
def test_binary_content_is_listed_as_binary(content: bytes) -> None:
    assert render(change(write("a", content))).endswith("Binary files /dev/null and b/a differ\n")


def test_special_names_are_quoted() -> None:
    text = render(change(write('q"\n\x1b[31m\udcff\\', b"x\n")))
    assert '"b/q\\"\\n\\033[31m\\377\\\\"' in text
    text.encode()


def test_patch_size_is_limited() -> None:
    files = [write(f"f{number}", b"x\n" * 500_000) for number in range(5)]
    text = render(change(*files))
    assert len(text) <= patch.MAX_PATCH_CHARS + 1000
    assert text.endswith("Binary files differ (1000000 bytes, not shown)\n")


def test_costly_comparison_is_stopped() -> None:
    old = "".join(f"{number * 7919 % 4001}\n" for number in range(4000))
    new = "".join(f"{number * 104729 % 4001}\n" for number in range(4000))
    text = render(change(write("a", new.encode())), write("a", old.encode()))
    removed = [line[1:] for line in text.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert len(removed) > 3900


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "d d\n", "é\r\n"]), max_size=12)
TEXTS = st.tuples(LINES, st.sampled_from(["", "end", "end\n"])).map(lambda parts: "".join([*parts[0], parts[1]]))
NAMES = st.sampled_from(["a.py", "dir/b c.txt", "ü", "tab\tname", 'quo"te'])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=st.dictionaries(NAMES, TEXTS), new=st.dictionaries(NAMES, TEXTS))
def test_git_apply_gives_the_new_tree(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, str], new: dict[str, str]
) -> None:
    directory = tmp_path_factory.mktemp("tree")
    for name, text in old.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(text.encode())
    files = [write(name, text.encode()) for name, text in new.items() if old.get(name) != text]
    files += [delete(name) for name in old if name not in new]
    text = render(change(*files), *(write(name, content.encode()) for name, content in old.items()))
    if text:
        git_apply(directory, text)
    found = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert found == {name: content.encode() for name, content in new.items()}


@given(
    files=st.lists(
        st.builds(
            FileChange,
            path=st.binary(min_size=1, max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
            kind=st.sampled_from(ChangeKind),
            content=st.binary(max_size=40),
        ),
        unique_by=lambda file: file.path,
    ),
    old=st.binary(max_size=40),
)
def test_any_change_renders_as_unicode(files: list[FileChange], old: bytes) -> None:
    render_patch(change(*files), lambda path: write(path, old)).encode()


def test_lines_are_counted_and_selected_text_kept() -> None:
    files = (write("a.py", b"1\n2\n"), write("b.txt", b"1\n2\n3"), write("c.bin", b"\0\n\n"), delete("d.py"))
    old = {"a.py": write("a.py", b"1\n"), "d.py": write("d.py", b"x\ny\n")}
    found = patch.render(change(*files), old.get, lambda path: path.endswith(".py")).files
    assert [(file.path, file.added, file.removed) for file in found] == [
        ("a.py", 1, 0),
        ("b.txt", 3, 0),
        ("c.bin", 2, 0),
        ("d.py", 0, 2),
    ]
    assert [(file.old, file.new, file.edits is None) for file in found] == [
        ("1\n", "1\n2\n", False),
        ("", "", True),
        ("", "", True),
        ("x\ny\n", "", False),
    ]


def test_kept_text_is_limited() -> None:
    half = b"x = 1\n" * (patch.MAX_KEPT_CHARS // 12)
    files = [write(f"{name}.py", half) for name in "abc"]
    old = {file.path: write(file.path, half[:-3] + b"2\n") for file in files}
    found = patch.render(change(*files), old.get, lambda path: True).files
    assert [file.edits is None for file in found] == [False, True, True]
    assert [file.added for file in found] == [1, 1, 1]
