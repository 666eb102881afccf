"""Unified diffs: read as git reads them, applied as git applies them, and never out of their directory."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.tasks.unified_diff import FilePatch, UnifiedDiffError, apply_patch, parse_patch
from tests.support.services import require_program

GIT_ENV = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": os.environ["PATH"]}


def git(home: Path, *arguments: str) -> bytes:
    command = [require_program("git"), "-c", "user.name=a", "-c", "user.email=b", *arguments]
    return subprocess.run(command, cwd=home, env=GIT_ENV, check=True, capture_output=True).stdout


def written_by_git(home: Path, old: dict[str, bytes], new: dict[str, bytes], *options: str) -> bytes:
    """Return the patch that git writes between two trees."""
    git(home, "init", "--quiet")
    for files in (old, new):
        for path in home.iterdir():
            if path.name != ".git":
                subprocess.run(["rm", "-rf", path], check=True)
        for name, content in files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_bytes(content)
        git(home, "add", "--all", "--force")
        git(home, "commit", "--quiet", "--allow-empty", "--message", "state")
    return git(home, "diff", "--no-color", *options, "HEAD~1", "HEAD")


def applied(patches: tuple[FilePatch, ...], old: dict[str, bytes]) -> dict[str, bytes]:
    tree = dict(old)
    for patch in patches:
        content = apply_patch(patch, old.get(patch.old) if patch.old is not None else None)
        if patch.old is not None:
            tree.pop(patch.old, None)
        if patch.new is not None:
            tree[patch.new] = content
    return tree


LINES = st.lists(st.sampled_from([b"one\n", b"two\n", b"--- three\n", b"+++ four\n", b"\n", b"@@ five\r\n", b"six"]))


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_git_patches_apply_as_in_git(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    names = ["a.py", "b c/d é.txt", 'q"uote', "deep/er/e"]
    trees = [
        {name: b"".join(data.draw(LINES)) for name in data.draw(st.lists(st.sampled_from(names), unique=True))}
        for _ in range(2)
    ]
    options = data.draw(st.sampled_from([(), ("-U0",), ("-U7",), ("-M",), ("--binary",)]))
    patch = written_by_git(tmp_path_factory.mktemp("repo"), trees[0], trees[1], *options)
    assert applied(parse_patch(patch), trees[0]) == trees[1]


def test_binary_literal_replaces_whole_file(tmp_path: Path) -> None:
    old, new = {"x": b"\0\1\2"}, {"x": b"\0\1\2" * 500 + b"end", "y": bytes(range(256))}
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    whole = parse_patch(written_by_git(tmp_path / "one", {}, new, "--binary"))
    assert applied(whole, {}) == new
    for patch in parse_patch(written_by_git(tmp_path / "two", old, new)):
        with pytest.raises(UnifiedDiffError, match="lacks the binary content"):
            apply_patch(patch, b"")


def test_moved_lines_are_found(tmp_path: Path) -> None:
    old = [b"line %d\n" % number for number in range(40)]
    new = [*old[:20], b"new\n", *old[21:]]
    (patch,) = parse_patch(written_by_git(tmp_path, {"f": b"".join(old)}, {"f": b"".join(new)}))
    moved = [b"above\n"] * 7
    assert apply_patch(patch, b"".join(moved + old)) == b"".join(moved + new)
    with pytest.raises(UnifiedDiffError, match=r"f: the lines from 18 on do not match the file"):
        apply_patch(patch, b"".join(old[:20]))


def test_plain_diff_applies() -> None:
    text = b"--- a/x.py\t2020-01-01\n+++ b/x.py\t2020-01-02\n@@ -1 +1,2 @@\n-a\n+b\n+--- c\n--- /dev/null\n+++ b/y\n"
    patches = parse_patch(text + b"@@ -0,0 +1 @@\n+y\n\\ No newline at end of file\n")
    assert applied(patches, {"x.py": b"a\n"}) == {"x.py": b"b\n--- c\n", "y": b"y"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../x", "not a path inside"),
        ("/etc/passwd", "not a path inside"),
        ("x/../../y", "not a path inside"),
        ("x/.git/hooks/post-commit", "not a path inside"),
        (".GIT/config", "not a path inside"),
        ('"x\\000y"', "not a path inside"),
        ('"\\377"', "not a name in UTF-8"),
        ("x" * 300, "too long"),
        ("x/" * 3000 + "y", "too long"),
    ],
)
def test_paths_outside_the_directory_are_refused(name: str, said: str) -> None:
    prefixed = name if name.startswith('"') else f"b/{name}"
    with pytest.raises(UnifiedDiffError, match=said):
        parse_patch(f"--- /dev/null\n+++ {prefixed}\n@@ -0,0 +1 @@\n+x\n".encode())


NO, FILE, LINK, SUBMODULE = "", "100644", "120000", "160000"


def tree_of(home: Path, mode: str, content: str) -> str:
    """Return a tree with the single entry ``x`` of the mode and content; without a mode the tree is empty."""
    git(home, "init", "--quiet")
    git(home, "read-tree", "--empty")
    (home / "content").write_text(content)
    named = content if mode == SUBMODULE else git(home, "hash-object", "-w", "content").decode().strip()
    if mode:
        git(home, "update-index", "--add", "--cacheinfo", f"{mode},{named},x")
    return git(home, "write-tree").decode().strip()


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ((NO, ""), (LINK, "/etc"), "a symlink"),
        ((LINK, "/etc"), (LINK, "/home"), "a symlink"),
        ((LINK, "/etc"), (NO, ""), "a symlink"),
        ((FILE, "a\n"), (LINK, "/etc"), "a symlink"),
        ((LINK, "a"), (FILE, "a"), "a symlink"),
        ((NO, ""), (SUBMODULE, "1" * 40), "a submodule"),
        ((SUBMODULE, "1" * 40), (SUBMODULE, "2" * 40), "a submodule"),
        ((SUBMODULE, "1" * 40), (NO, ""), "a submodule"),
    ],
)
def test_symlinks_and_submodules_are_refused(
    old: tuple[str, str], new: tuple[str, str], what: str, tmp_path: Path
) -> None:
    patch = git(tmp_path, "diff", tree_of(tmp_path, *old), tree_of(tmp_path, *new))
    with pytest.raises(UnifiedDiffError, match=f"^x is {what}"):
        parse_patch(patch)


def test_renames_and_copies_apply(tmp_path: Path) -> None:
    old = {"a": b"1\n2\n3\n4\n", "c": b"5\n6\n7\n8\n"}
    new = {"b/a": b"1\n2\n3\n", "c": b"5\n6\n7\n8\n9\n", "d": b"5\n6\n7\n8\n"}
    patches = parse_patch(written_by_git(tmp_path, old, new, "-M", "-C"))
    assert {(patch.old, patch.new) for patch in patches} == {("a", "b/a"), ("c", "c"), ("c", "d")}
    made = {patch.new: apply_patch(patch, old[patch.old or ""]) for patch in patches}
    assert made == new


@pytest.mark.parametrize("how", ["rename", "copy"])
@pytest.mark.parametrize(
    ("source", "target", "lines", "said"),
    [
        ("a", "b", "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n", "a is renamed to b, but the hunks are of a and a"),
        ("a", "b", "--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+y\n", "the hunks are of None and b"),
        ("../a", "b", "--- a/a\n+++ b/b\n@@ -1 +1 @@\n-x\n+y\n", "not a path inside"),
        ("a", "/etc/b", "", "not a path inside"),
        ("a", "", "", "not a path inside"),
    ],
)
def test_contradictory_rename_is_refused(how: str, source: str, target: str, lines: str, said: str) -> None:
    with pytest.raises(UnifiedDiffError, match=said):
        parse_patch(f"diff --git a/a b/b\n{how} from {source}\n{how} to {target}\n{lines}".encode())


def test_file_written_twice_is_refused() -> None:
    section = b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
    with pytest.raises(UnifiedDiffError, match="x is written twice"):
        parse_patch(section + section)


def test_incomplete_hunk_is_refused() -> None:
    with pytest.raises(UnifiedDiffError, match="is incomplete"):
        parse_patch(b"--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n")


def test_search_for_repeated_lines_is_bounded() -> None:
    body = b"a\n" * 60_000
    hunk = b" a\n" * 20_000 + b"-b\n"
    (patch,) = parse_patch(b"--- a/x\n+++ b/x\n@@ -1,20001 +1,20000 @@\n" + hunk)
    with pytest.raises(UnifiedDiffError, match="do not match the file"):
        apply_patch(patch, body)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                b"diff --git a/x b/x",
                b"--- a/x",
                b"+++ b/x",
                b"--- /dev/null",
                b"@@ -1 +1 @@",
                b"@@ -0,0 +1,2 @@",
                b"-a",
                b"+b",
                b" c",
                b"\\ No newline at end of file",
                b"GIT binary patch",
                b"literal 5",
                b"zcmV",
                b"delta 3",
                b"rename from x",
                b"rename to y",
                b"new file mode 100755",
                b"Binary files a/x and b/x differ",
                b"",
            ]
        )
        | st.binary(max_size=40)
    ),
    st.binary(max_size=60),
)
def test_arbitrary_bytes_raise_only_unified_diff_error(lines: list[bytes], old: bytes) -> None:
    with suppress(UnifiedDiffError):
        for patch in parse_patch(b"\n".join(lines)):
            for name in (patch.old, patch.new):
                assert name is None or not ({"", ".", ".."} & set(name.split("/")))
            apply_patch(patch, old)
