"""The process that reads hostile text, ``python -m sandboxes.search.workers.worker``; ``pool`` starts it.

Files come in, a packed segment goes out, again and again until its input ends. A parser that is brought down by what
it reads brings down this process alone, which holds nothing that anybody else has use for.
"""

import gc
import mmap
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from sandboxes.search.embeddings.select import load_embedder
from sandboxes.search.index.segment import SourceFile, build
from sandboxes.search.index.segment_format import LENGTH, decode, pack
from sandboxes.search.workers.drop_privileges import confine

MEMORY_BYTES = 4 << 30
NICENESS = 5
"""A large repository is indexed beside hundreds of episodes, which go first."""

_TRIAL = [SourceFile(f"a.{suffix}", b"", b"def f():\n    pass\n") for suffix in ("py", "c", "js", "txt")]

FILE_S, FILE_PER_MIB_S = 1.0, 2.0
"""So much processor time may one file take; what it ends is known then by whose fault."""

LARGE = 1 << 20
"""Bytes of an answer after which memory is tidied, which takes longer than making a small one."""


def main() -> None:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Trees of syntax are thrown away whole; looking for cycles in them takes twice as long as making them.
    gc.disable()
    given, taken = sys.stdin.buffer, sys.stdout.buffer
    progress = mmap.mmap(int(sys.argv[1]), mmap.PAGESIZE)
    embedder = load_embedder(_read(given))
    pack(build(_TRIAL, embedder))  # so all that is loaded late is there
    confine()
    while (request := _read(given)) is not None:
        signal.setitimer(signal.ITIMER_VIRTUAL, request["seconds"])  # of processor time, which ends this process
        files = [SourceFile(path, digest, content) for path, digest, content in request["files"]]
        used = embedder if request["embedded"] else None
        answer = pack(build(noted(files, progress), used, unparsed=frozenset(request["unparsed"])))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        taken.write(len(answer).to_bytes(LENGTH, "little"))
        taken.write(answer)
        taken.flush()
        if len(answer) > LARGE:
            gc.collect()


def noted(files: Sequence[SourceFile], progress: mmap.mmap) -> Iterator[SourceFile]:
    """The files, each with its own time; the number of the one that is read stands in ``progress``, and at the end one
    that none has."""
    for number, file in enumerate(files):
        progress[:LENGTH] = number.to_bytes(LENGTH, "little")
        signal.setitimer(signal.ITIMER_PROF, FILE_S + FILE_PER_MIB_S * len(file.content) / (1 << 20))
        yield file
    signal.setitimer(signal.ITIMER_PROF, 0)
    progress[:LENGTH] = len(files).to_bytes(LENGTH, "little")


def _read(stream: BinaryIO) -> Any:
    head = stream.read(LENGTH)
    if len(head) < LENGTH:
        return None
    return decode(stream.read(int.from_bytes(head, "little")))


if __name__ == "__main__":
    main()
