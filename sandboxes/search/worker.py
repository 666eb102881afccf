"""The process that reads hostile text: ``python -m sandboxes.search.worker``, started and spoken to by ``workers``.

Files come in, a packed segment goes out, again and again until its input ends. A parser that is brought down by what
it reads brings down this process alone, which holds nothing that anybody else has use for.
"""

import gc
import os
import resource
import signal
import sys
from typing import Any, BinaryIO

from sandboxes.search.embedders import load_embedder
from sandboxes.search.packing import LENGTH, decode, pack
from sandboxes.search.segment import SourceFile, build

MEMORY_BYTES = 4 << 30
NICENESS = 5
"""A large repository is indexed beside hundreds of episodes, which go first."""

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
    embedder = load_embedder(_read(given))
    while (request := _read(given)) is not None:
        signal.alarm(request["seconds"])  # which ends this process
        files = [SourceFile(path, digest, content) for path, digest, content in request["files"]]
        answer = pack(build(files, embedder, plain=request["plain"]))
        signal.alarm(0)
        taken.write(len(answer).to_bytes(LENGTH, "little"))
        taken.write(answer)
        taken.flush()
        if len(answer) > LARGE:
            gc.collect()


def _read(stream: BinaryIO) -> Any:
    head = stream.read(LENGTH)
    if len(head) < LENGTH:
        return None
    return decode(stream.read(int.from_bytes(head, "little")))


if __name__ == "__main__":
    main()
