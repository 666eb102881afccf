"""Executes a linter on texts in memory files (memfd_create(2)), so that no file remains if it is killed.

``farm.grading.diff.style`` runs this file. Standard input is, for each text, its length in 8 bytes, big-endian, and the
text. The arguments are the limits on CPU seconds and bytes of memory, and the command, to which the path of each text
is appended.
"""

import os
import resource
import sys

_FIRST = 100


def framed(text: bytes) -> bytes:
    return len(text).to_bytes(8) + text


def path_of(index: int) -> str:
    return f"/proc/self/fd/{_FIRST + index}"


def index_of(path: str) -> int:
    """Return the index of the text at a path. Raises ValueError if the path is not of a text."""
    return int(path.rpartition("/")[2]) - _FIRST


def main() -> None:
    cpu_s, memory_bytes, *command = sys.argv[1:]
    bounds = {resource.RLIMIT_CPU: int(cpu_s), resource.RLIMIT_AS: int(memory_bytes), resource.RLIMIT_CORE: 0}
    for bound, maximum in bounds.items():
        resource.setrlimit(bound, (maximum, maximum))
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    paths: list[str] = []
    while length := sys.stdin.buffer.read(8):
        with open(os.memfd_create("text"), "wb") as file:
            file.write(sys.stdin.buffer.read(int.from_bytes(length)))
            os.dup2(file.fileno(), _FIRST + len(paths))
        paths.append(path_of(len(paths)))
    os.execv(command[0], [*command, *paths])


if __name__ == "__main__":
    main()
