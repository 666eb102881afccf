"""The indexing process, ``python -m sandboxes.search.workers.worker``; ``pool`` starts it.

It reads requests with files and answers each with a packed segment until its input ends. Hostile text that crashes a
parser crashes only this process, which holds no data of anything else.
"""

import gc
import mmap
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from sandboxes.search.embeddings.load import load_embedder
from sandboxes.search.index.segment import SourceFile, build
from sandboxes.search.index.segment_format import LENGTH, decode, pack
from sandboxes.search.workers.drop_privileges import confine

MEMORY_BYTES = 4 << 30
NICENESS = 5
"""Indexing has lower priority than the episodes on the machine."""

_WARMUP = [SourceFile(f"a.{suffix}", b"", b"def f():\n    pass\n") for suffix in ("py", "c", "js", "txt")]

FILE_S, FILE_PER_MIB_S = 1.0, 2.0
"""Maximum CPU seconds of one file: a base, and seconds for each MiB. A time-out then identifies the file."""

LARGE = 1 << 20
"""Bytes of an answer above which garbage is collected; a collection takes longer than a small answer."""


def main() -> None:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Syntax trees are freed as a whole; a search for cycles in them takes twice as long as parsing.
    gc.disable()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    progress = mmap.mmap(int(sys.argv[1]), mmap.PAGESIZE)
    embedder = load_embedder(_read(requests))
    pack(build(_WARMUP, embedder))  # loads all lazily imported modules
    confine()
    while (request := _read(requests)) is not None:
        signal.setitimer(signal.ITIMER_VIRTUAL, request["seconds"])  # CPU time; the signal ends this process
        files = [SourceFile(path, digest, content) for path, digest, content in request["files"]]
        used = embedder if request["embedded"] else None
        answer = pack(build(with_progress(files, progress), used, unparsed=frozenset(request["unparsed"])))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        answers.write(len(answer).to_bytes(LENGTH, "little"))
        answers.write(answer)
        answers.flush()
        if len(answer) > LARGE:
            gc.collect()


def with_progress(files: Sequence[SourceFile], progress: mmap.mmap) -> Iterator[SourceFile]:
    """Iterate over the files with a CPU timer for each, and write the index of the current file to ``progress``.

    After the last file ``progress`` holds the number of files.
    """
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
