"""File operations of the tool server, on file systems that mean it harm."""

import asyncio
import contextlib
import errno
import os
import stat
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path

import pytest

import sandboxes
from sandboxes.errors import PathError
from sandboxes.interface import MIB, WALK_DIRECTORIES_MAX, WALK_FILES_MAX, FileKind
from sandboxes.toolserver.client import ToolServer
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.sandboxes.serving import Served, eventually, ordinary

WAIT_S = 60.0
SERVER = Path(sandboxes.__file__).parent / "toolserver" / "src"
QUICKER = """
int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __wrap_unlink(const char *path) { __real_unlink(path); return __real_unlink(path); }
"""


@pytest.fixture
async def served(toolbox: Toolbox, tmp_path: Path) -> AsyncIterator[Served]:
    async with ordinary(toolbox, tmp_path) as served:
        yield served


@pytest.fixture
def server(served: Served) -> ToolServer:
    return served.server


@pytest.fixture
def home(served: Served) -> Path:
    return served.home


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory that no disk slows down."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


async def refusal(call: Awaitable[object]) -> int:
    with pytest.raises(PathError) as refused:
        async with asyncio.timeout(WAIT_S):
            await call
    return refused.value.errno


# Reading


async def test_reads_whole_files_and_parts(server: ToolServer, home: Path) -> None:
    content = os.urandom(9 * MIB + 17)
    (home / "f").write_bytes(content)
    assert await server.read_file("f") == content
    assert await server.read_file(str(home / "f"), offset=5, limit=7) == content[5:12]
    assert await server.read_file("f", offset=4 * MIB - 1, limit=4 * MIB + 2) == content[4 * MIB - 1 : 8 * MIB + 1]
    assert await server.read_file("f", offset=len(content)) == b""
    assert await server.read_file("f", limit=0) == b""


async def test_reads_files_without_size(server: ToolServer) -> None:
    assert b"MemTotal" in await server.read_file("/proc/meminfo")


async def test_reads_through_symlinks(server: ToolServer, home: Path) -> None:
    (home / "f").write_text("x")
    (home / "l").symlink_to("f")
    assert await server.read_file("l") == b"x"


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("none", errno.ENOENT),
        ("dir", errno.EISDIR),
        ("fifo", errno.EINVAL),
        ("socket", errno.ENXIO),
        ("loop", errno.ELOOP),
        ("/dev/zero", errno.EINVAL),
        ("/dev/tty", errno.ENXIO),
        ("file/below", errno.ENOTDIR),
        ("x" * 256, errno.ENAMETOOLONG),
        ("x/" * 5000, errno.ENAMETOOLONG),
        ("", errno.ENOENT),
        ("zero\0byte", errno.EINVAL),
        ("half \ud800 pair", errno.EINVAL),
    ],
)
async def test_unreadable_file_is_refused_at_once(
    server: ToolServer, served: Served, home: Path, path: str, number: int
) -> None:
    (home / "dir").mkdir()
    (home / "file").touch()
    (home / "loop").symlink_to("loop")
    (home / "socket").symlink_to(served.socket)
    os.mkfifo(home / "fifo")
    assert await refusal(server.read_file(path)) == number


async def test_reads_part_of_huge_sparse_file(server: ToolServer, home: Path) -> None:
    with (home / "sparse").open("wb") as file:
        file.truncate(10**12)
    assert await server.read_file("sparse", offset=10**11, limit=MIB) == bytes(MIB)


# Writing


async def test_writes_new_files_and_replaces_old_ones(server: ToolServer, home: Path) -> None:
    await server.write_file("f", b"first")
    assert ((home / "f").read_bytes(), stat.S_IMODE((home / "f").stat().st_mode)) == (b"first", 0o644)
    before = (home / "f").stat().st_ino
    await server.write_file("f", b"")
    assert (home / "f").read_bytes() == b""
    assert (home / "f").stat().st_ino != before
    assert os.listdir(home) == ["f"]


async def test_write_reports_if_file_existed(server: ToolServer, home: Path) -> None:
    (home / "dangling").symlink_to("made")
    assert not await server.write_file("f", b"")
    assert await server.write_file("f", b"")
    assert not await server.write_file("dangling", b"")
    assert await server.write_file("dangling", b"")


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("file", errno.EEXIST),
        ("link", errno.EEXIST),
        ("dangling", errno.EEXIST),
        ("dir", errno.EISDIR),
        ("fifo", errno.EINVAL),
    ],
)
async def test_exclusive_write_refuses_existing_file(server: ToolServer, home: Path, path: str, number: int) -> None:
    (home / "file").write_text("old")
    (home / "link").symlink_to("file")
    (home / "dangling").symlink_to("none")
    (home / "dir").mkdir()
    os.mkfifo(home / "fifo")
    before = sorted(os.listdir(home))
    assert await refusal(server.write_file(path, b"x", new=True)) == number
    assert (sorted(os.listdir(home)), (home / "file").read_text()) == (before, "old")
    assert not await server.write_file("a/new", b"x", parents=True, new=True)
    assert (home / "a/new").read_bytes() == b"x"


async def until_exchanging(server: ToolServer, home: Path) -> None:
    """The server exchanges what is made from now on with what it writes over it."""
    await server.write_file("first", b"")
    second = int((home / "first").stat().st_ctime)
    await eventually(lambda: time.time() >= second + 1)
    (home / "first").unlink()


@pytest.fixture
async def exchanging(server: ToolServer, home: Path) -> ToolServer:
    await until_exchanging(server, home)
    return server


async def test_recently_made_file_is_replaced(exchanging: ToolServer, home: Path) -> None:
    path = home / "f"
    path.write_text("old" * 1000)
    path.chmod(0o2750)
    if os.geteuid() == 0:
        os.chown(path, 12345, 54321)
        path.chmod(0o2750)
    os.link(path, home / "other")
    (home / "link").symlink_to("f")
    before = path.stat()
    with path.open("rb") as reader:
        begun = reader.read(10)
        assert await exchanging.write_file("link", b"new")
        assert begun + reader.read() == b"old" * 1000
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert (path.read_text(), (home / "other").read_text(), after.st_nlink) == ("new", "old" * 1000, 1)
    assert sorted(os.listdir(home)) == ["f", "link", "other"]


@pytest.fixture
def forestalled(toolbox: Toolbox) -> Iterator[Toolbox]:
    """Its server never removes a file itself: somebody is quicker each time."""
    with tempfile.TemporaryDirectory(prefix="farm-toolbox-") as made:  # make cannot write where a path has spaces
        quicker, binaries = Path(made, "quicker.c"), Path(made, "bin")
        binaries.mkdir()
        (binaries / "bash").symlink_to(toolbox.path / "bin" / "bash")
        quicker.write_text(QUICKER)
        sources = [*(path.name for path in SERVER.glob("*.c") if path.name != "rg.c"), str(quicker)]
        server = f"{binaries}/toolserver"
        words = [f"DESTDIR={binaries}", f"SOURCES={' '.join(sources)}", "LDFLAGS=-static -Wl,--wrap=unlink", server]
        subprocess.run(["make", "-s", "-C", SERVER, *words], check=True)
        yield Toolbox(Path(made))


async def test_write_survives_removal_of_old_file(forestalled: Toolbox, tmp_path: Path) -> None:
    async with ordinary(forestalled, tmp_path) as served:
        await until_exchanging(served.server, served.home)
        (served.home / "f").write_bytes(b"old")
        assert await served.server.write_file("f", b"new")
        assert (served.home / "f").read_bytes() == b"new"
        assert os.listdir(served.home) == ["f"]


async def test_write_handles_file_swapped_for_directory(exchanging: ToolServer, home: Path) -> None:
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):  # whatever the server made of it meanwhile
                os.rename(home / "f", home / "aside")
                os.mkdir(home / "f")
                os.rmdir(home / "f")
                os.rename(home / "aside", home / "f")

    (home / "f").touch()
    swapping = asyncio.create_task(asyncio.to_thread(swap))
    try:
        for _ in range(500):
            try:
                await exchanging.write_file("f", b"new")
            except PathError as error:
                assert error.errno in (errno.EISDIR, errno.ENOENT)  # noqa: PT017 - both outcomes are right
    finally:
        ended.set()
        await swapping
    await exchanging.remove_path("f")
    await exchanging.write_file("f", b"last")
    assert (home / "f").read_bytes() == b"last"


async def test_reader_keeps_old_content_during_write(server: ToolServer, home: Path) -> None:
    (home / "file").write_bytes(b"old" * 1000)
    with (home / "file").open("rb") as reader:
        begun = reader.read(10)
        await server.write_file("file", b"new")
        assert begun + reader.read() == b"old" * 1000
    assert (home / "file").read_bytes() == b"new"
    assert os.listdir(home) == ["file"]


async def test_writes_largest_file_and_refuses_larger(server: ToolServer, home: Path) -> None:
    content = os.urandom(MIB) * 64
    await server.write_file("f", content)
    assert (home / "f").read_bytes() == content
    assert await refusal(server.write_file("f", content + b"x")) == errno.EFBIG
    assert await server.read_file("f") == content


async def test_write_keeps_mode_and_owner(server: ToolServer, home: Path) -> None:
    path = home / "f"
    path.write_text("x")
    path.chmod(0o2750)
    if os.geteuid() == 0:
        os.chown(path, 12345, 54321)
        path.chmod(0o2750)
    before = path.stat()
    await server.write_file("f", b"y")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


@pytest.mark.parametrize(
    ("before", "executable", "after"),
    [(None, True, 0o755), (None, False, 0o644), (0o640, True, 0o750), (0o755, False, 0o644), (0o400, None, 0o400)],
)
async def test_write_sets_executable_bit(
    server: ToolServer, home: Path, before: int | None, executable: bool | None, after: int
) -> None:
    if before is not None:
        (home / "f").touch()
        (home / "f").chmod(before)
    await server.write_file("f", b"x", executable=executable)
    assert stat.S_IMODE((home / "f").stat().st_mode) == after


async def test_write_follows_symlinks(server: ToolServer, home: Path) -> None:
    (home / "d").mkdir()
    (home / "d" / "real").write_text("old")
    (home / "d" / "inner").symlink_to("real")
    (home / "outer").symlink_to("d/inner")
    (home / "dangling").symlink_to(home / "d" / "made")
    await server.write_file("outer", b"new")
    await server.write_file("dangling", b"made")
    assert (home / "outer").is_symlink()
    assert (home / "d" / "inner").is_symlink()
    assert ((home / "d" / "real").read_text(), (home / "d" / "made").read_text()) == ("new", "made")


async def test_write_keeps_attributes_and_acl(server: ToolServer, home: Path) -> None:
    file = home / "file"
    for path in ("a", "a/b"):  # both are replaced: by a rename, and by an exchange
        await server.write_file("file", path.encode())
        os.setxattr(file, f"user.{len(path)}", path.encode())
    assert {name: os.getxattr(file, name) for name in os.listxattr(file)} == {"user.1": b"a", "user.3": b"a/b"}
    entries = ((0x01, 6, 2**32 - 1), (0x02, 4, 1234), (0x04, 4, 2**32 - 1), (0x10, 4, 2**32 - 1), (0x20, 0, 2**32 - 1))
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(file, "system.posix_acl_access", access)
    await server.write_file("file", b"new")
    assert os.getxattr(file, "system.posix_acl_access") == access
    await server.write_file("file", b"new", executable=True)
    assert file.stat().st_mode & 0o777 == 0o750


async def test_failed_write_leaves_no_directories(server: ToolServer, home: Path) -> None:
    (home / "there").mkdir()
    long = "x" * 255
    for path in ("there/new/deeper/", f"new/{long}/{long}x", f"there/{long}x"):
        assert await refusal(server.write_file(path, b"", parents=True)) in (errno.EISDIR, errno.ENAMETOOLONG)
    assert [str(directory) for directory, _, _ in os.walk(home)] == [str(home), str(home / "there")]


async def test_write_makes_parents_on_request(server: ToolServer, home: Path) -> None:
    assert await refusal(server.write_file("a/b/c", b"x")) == errno.ENOENT
    await server.write_file("a//b/./c", b"x", parents=True)
    await server.write_file(f"{home}/a/b/d", b"y", parents=True)
    assert ((home / "a/b/c").read_bytes(), (home / "a/b/d").read_bytes()) == (b"x", b"y")


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("dir", errno.EISDIR),
        ("dir/", errno.EISDIR),
        ("fifo", errno.EINVAL),
        ("/dev/null", errno.EINVAL),
        ("loop", errno.ELOOP),
        ("file/below", errno.ENOTDIR),
        ("x" * 256, errno.ENAMETOOLONG),
        ("", errno.ENOENT),
        ("/proc/none", errno.ENOENT),
    ],
)
async def test_refused_write_leaves_nothing(server: ToolServer, home: Path, path: str, number: int) -> None:
    (home / "dir").mkdir()
    (home / "file").touch()
    (home / "loop").symlink_to("loop")
    os.mkfifo(home / "fifo")
    before = sorted(os.listdir(home))
    assert await refusal(server.write_file(path, b"x", parents=path == "file/below")) == number
    assert sorted(os.listdir(home)) == before


async def test_failed_read_of_kernel_file_is_no_disk_fault(server: ToolServer, home: Path) -> None:
    """EIO stands for a disk of the machine, and a program in a sandbox must not cause it."""
    (home / "report.xml").symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error"):
        (home / "report.xml").read_bytes()
    assert await refusal(server.read_file("report.xml")) == errno.EINVAL


async def test_symlink_replaces_files_and_links(server: ToolServer, home: Path) -> None:
    (home / "file").write_text("x")
    await server.write_link("file", "target")
    await server.write_link("file", "other target")
    await server.write_link("new/deep/link", "/etc/passwd")
    assert (os.readlink(home / "file"), os.readlink(home / "new/deep/link")) == ("other target", "/etc/passwd")


async def test_symlink_is_refused_behind_symlinked_directory(server: ToolServer, home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (home / "way").symlink_to(outside)
    (home / "dir").mkdir()
    (home / "file").touch()
    assert await refusal(server.write_link("way/l", "t")) in (errno.ELOOP, errno.ENOTDIR)
    assert await refusal(server.write_link("way/more/l", "t")) in (errno.ELOOP, errno.ENOTDIR)
    assert await refusal(server.write_link("dir/../l", "t")) == errno.EINVAL
    assert await refusal(server.write_link("dir", "t")) == errno.EISDIR
    assert await refusal(server.write_link("file/l", "t")) == errno.ENOTDIR
    assert await refusal(server.write_link("", "t")) == errno.EINVAL
    assert os.listdir(outside) == []


# Removing


async def test_remove_handles_files_links_trees_and_missing(server: ToolServer, home: Path) -> None:
    (home / "kept").mkdir()
    (home / "kept" / "precious").touch()
    (home / "tree" / "a" / "b").mkdir(parents=True)
    (home / "tree" / "a" / "link").symlink_to(home / "kept")
    (home / "tree" / "absolute").symlink_to("/")
    os.mkfifo(home / "tree" / "a" / "b" / "fifo")
    (home / "link").symlink_to("kept")
    (home / "file").touch()
    for path in ("tree", "link", "file", "none", "none/below", "kept/precious/below"):
        await server.remove_path(path)
    assert sorted(os.listdir(home)) == ["kept"]
    assert (home / "kept" / "precious").exists()


@pytest.mark.slow
async def test_remove_handles_deep_tree(server: ToolServer, memory: Path) -> None:
    directory = os.open(memory, os.O_RDONLY)
    for _ in range(100_000):
        os.mkdir("d", dir_fd=directory)
        below = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(os.open("f", os.O_CREAT, dir_fd=directory))
    os.close(directory)
    removal = asyncio.create_task(server.remove_path(str(memory / "d")))
    while not removal.done():
        await server.ping()  # meanwhile others are answered
    await removal
    assert os.listdir(memory) == []


async def test_remove_handles_many_strange_names(server: ToolServer, home: Path) -> None:
    wide = home / "wide"
    wide.mkdir()
    for n in range(5000):
        (wide / f"{n}\n\x1b[0m\\").touch()
    for n in range(200):
        (wide / f"dir {n}" / "x").mkdir(parents=True)
    os.close(os.open(os.fsencode(wide) + b"/\xff\xfe", os.O_CREAT))
    await server.remove_path("wide")
    assert os.listdir(home) == []


# Looking


async def test_stat_does_not_follow_symlinks(server: ToolServer, home: Path) -> None:
    (home / "f").write_text("four")
    (home / "f").chmod(0o4755)
    os.utime(home / "f", ns=(1, 1_234_567_890_123_456_789))
    (home / "l").symlink_to("f")
    os.mkfifo(home / "p")
    entry = await server.stat("f")
    assert (entry.path, entry.kind, entry.mode, entry.size, entry.mtime_ns) == (
        "f",
        FileKind.FILE,
        0o4755,
        4,
        1_234_567_890_123_456_789,
    )
    kinds = [(await server.stat(path)).kind for path in (".", "l", "p")]
    assert kinds == [FileKind.DIRECTORY, FileKind.SYMLINK, FileKind.OTHER]
    assert await refusal(server.stat("none")) == errno.ENOENT


async def test_stat_reports_times_before_1970(server: ToolServer, home: Path) -> None:
    (home / "f").touch()
    os.utime(home / "f", ns=(0, -1_500_000_000))
    assert (await server.stat("f")).mtime_ns == -1_500_000_000


async def test_walk_lists_sorted_entries_without_directories(server: ToolServer, home: Path, tmp_path: Path) -> None:
    for path in ("a/b/c", "a.txt", "z", ".git/config", "a/.git/x", "new\nline"):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(path)
    os.close(os.open(os.fsencode(home) + b"/\xff", os.O_CREAT))
    (home / "empty").mkdir()
    (home / "way").symlink_to(tmp_path)
    os.mkfifo(home / "a" / "fifo")
    entries = await server.walk(".", prune=[".git"])
    assert [(entry.path, entry.kind) for entry in entries] == sorted(
        [
            ("a/b/c", FileKind.FILE),
            ("a.txt", FileKind.FILE),
            ("z", FileKind.FILE),
            ("new\nline", FileKind.FILE),
            (os.fsdecode(b"\xff"), FileKind.FILE),
            ("way", FileKind.SYMLINK),
            ("a/fifo", FileKind.OTHER),
        ]
    )
    assert {entry.path: entry.size for entry in entries}["a/b/c"] == 5
    assert ".git/config" in [entry.path for entry in await server.walk(str(home))]


async def test_walk_refuses_non_directory(server: ToolServer, home: Path) -> None:
    (home / "file").touch()
    (home / "link").symlink_to("/")
    assert await refusal(server.walk("none")) == errno.ENOENT
    assert await refusal(server.walk("file")) == errno.ENOTDIR
    assert await refusal(server.walk("link")) in (errno.ELOOP, errno.ENOTDIR)


async def test_walk_refuses_deep_tree(server: ToolServer, home: Path) -> None:
    (home / "/".join("d" * 190)).mkdir(parents=True)
    (home / "/".join("d" * 190) / "f").touch()
    assert len((await server.walk("."))[0].path) == 381
    (home / "/".join("d" * 300)).mkdir(parents=True)
    assert await refusal(server.walk(".")) == errno.ENAMETOOLONG


async def test_walk_refuses_too_many_files(server: ToolServer, memory: Path) -> None:
    for n in range(WALK_FILES_MAX + 1):
        os.mknod(memory / str(n))
    assert await refusal(server.walk(str(memory))) == errno.E2BIG
    (memory / "0").unlink()
    assert len(await server.walk(str(memory))) == WALK_FILES_MAX


async def test_walk_refuses_too_many_directories(server: ToolServer, memory: Path) -> None:
    for n in range(WALK_DIRECTORIES_MAX):
        (memory / str(n)).mkdir()
    assert await server.walk(str(memory)) == []
    (memory / "0" / "one more").mkdir()
    assert await refusal(server.walk(str(memory))) == errno.E2BIG
    assert await server.walk(str(memory), prune=["one more"]) == []


async def test_walk_lists_many_files(server: ToolServer, home: Path) -> None:
    for directory in range(20):
        (home / str(directory)).mkdir()
        for n in range(1000):
            os.close(os.open(home / str(directory) / str(n), os.O_CREAT))
    assert len(await server.walk(".")) == 20_000


async def test_file_calls_run_concurrently(server: ToolServer) -> None:
    await asyncio.gather(*(server.write_file(f"d/{n}", bytes([n]) * 1000, parents=True) for n in range(200)))
    contents = await asyncio.gather(*(server.read_file(f"d/{n}") for n in range(200)))
    assert contents == [bytes([n]) * 1000 for n in range(200)]


async def test_kill_all_is_refused_outside_pid_namespace(served: Served) -> None:
    with pytest.raises(Exception, match="Operation not permitted"):
        await served.server.kill_all()
