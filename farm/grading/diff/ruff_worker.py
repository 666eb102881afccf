"""Becomes a linter over texts that are in memory alone, memfd_create(2), so that no file is left if it is killed.

``farm.grading.diff.style`` runs this file. Standard input has the length of each text, in 8 bytes with the greatest
first, and then the text. Arguments: seconds of processor, bytes of memory, and the command, to which the path of each
text is added.
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
    """Of the text; ValueError where the path is no text's."""
    return int(path.rpartition("/")[2]) - _FIRST


def main() -> None:
    cpu_s, memory_bytes, *command = sys.argv[1:]
    bounds = {resource.RLIMIT_CPU: int(cpu_s), resource.RLIMIT_AS: int(memory_bytes), resource.RLIMIT_CORE: 0}
    for bound, most in bounds.items():
        resource.setrlimit(bound, (most, most))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    paths: list[str] = []
    while length := sys.stdin.buffer.read(8):
        with open(os.memfd_create("text"), "wb") as file:
            file.write(sys.stdin.buffer.read(int.from_bytes(length)))
            os.dup2(file.fileno(), _FIRST + len(paths))
        paths.append(path_of(len(paths)))
    os.execv(command[0], [*command, *paths])


if __name__ == "__main__":
    main()
