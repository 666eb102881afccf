"""Deleted files that processes hold: by descriptors, mappings, threads, and sockets."""

import array
import ctypes
import mmap
import os
import socket
import tempfile
import threading
from pathlib import Path

import pytest

from sandboxes.images.confinement.unnamed_files import holds_hidden_files, unnamed_bytes

MIB = 1 << 20
CLONE_FILES = 0x400


def deleted_file(place: Path) -> int:
    """Return the descriptor of a deleted file of 1 MiB."""
    descriptor, name = tempfile.mkstemp(dir=place)
    os.write(descriptor, b"x" * MIB)
    os.fsync(descriptor)
    os.unlink(name)
    return descriptor


def test_deleted_file_counts_once(tmp_path: Path) -> None:
    before = unnamed_bytes([os.getpid()])
    descriptor = deleted_file(tmp_path)
    copies = [os.dup(descriptor) for _ in range(3)]
    assert unnamed_bytes([os.getpid(), os.getpid()]) - before == MIB
    for each in (descriptor, *copies):
        os.close(each)
    assert unnamed_bytes([os.getpid()]) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads map_files")
def test_mapped_file_counts(tmp_path: Path) -> None:
    before = unnamed_bytes([os.getpid()])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    descriptor = deleted_file(tmp_path)
    address = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    os.close(descriptor)
    assert unnamed_bytes([os.getpid()]) - before == MIB
    assert libc.munmap(address, mmap.PAGESIZE) == 0
    assert unnamed_bytes([os.getpid()]) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="the thread's call needs root in some sandboxes")
def test_descriptor_of_a_thread_counts(tmp_path: Path) -> None:
    before = unnamed_bytes([os.getpid()])
    descriptor = deleted_file(tmp_path)
    is_separate, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        assert ctypes.CDLL(None).unshare(CLONE_FILES) == 0
        is_separate.set()
        may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_separate.wait()
    os.close(descriptor)
    assert unnamed_bytes([os.getpid()]) - before == MIB
    may_end.set()
    thread.join()


def test_descriptor_in_flight_is_seen(tmp_path: Path) -> None:
    ends = socket.socketpair()
    assert not holds_hidden_files([os.getpid()])
    descriptor = deleted_file(tmp_path)
    ends[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
    os.close(descriptor)
    assert holds_hidden_files([os.getpid()])
    for end in ends:
        end.close()
    assert not holds_hidden_files([os.getpid()])
