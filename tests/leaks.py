"""What a test run left behind on this machine: looked for before and after, and named.

``python -m tests.leaks snapshot FILE`` writes what is there; ``python -m tests.leaks compare FILE`` fails with a line
for each container, mount, cgroup, process, socket or directory that is there now and was not. Where Docker does not
answer both fail: nobody could tell what is left.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
from docker.errors import DockerException

OURS = ("farm", "ray")
PLACES = (Path("/tmp"), Path("/run"), Path("/var/run"), Path("/dev/shm"), Path("/var/tmp"))


def containers() -> Iterator[str]:
    client = docker.from_env()
    try:
        for container in client.containers.list(all=True, filters={"label": "farm.sandbox"}):
            yield f"container {container.name}"
        for label in ("farm.test", "farm.snapshot"):
            for image in client.images.list(filters={"label": label}):
                yield f"image {image.tags or image.id}"
    finally:
        client.close()


def mounts() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        where = line.split()[4]
        if "farm" in where:
            yield f"mount {where}"


def cgroups() -> Iterator[str]:
    for directory in Path("/sys/fs/cgroup").rglob("*farm*"):
        if directory.is_dir():
            yield f"cgroup {directory}"


def processes(mark: str) -> Iterator[str]:
    """Processes that carry the run's mark in their environment, but this one and those it descends from."""
    spared = set(_ancestors(os.getpid()))
    wanted = f"FARMTEST_MARK={mark}".encode()
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) in spared:
            continue
        try:
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command:
                    yield f"process {directory.name}: {command[:120].strip()}"
        except OSError:
            continue


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])


def directories() -> Iterator[str]:
    """Directories, files and sockets of ours in the places where programs leave them."""
    for place in PLACES:
        if place.is_dir():
            for entry in place.iterdir():
                if entry.name.lstrip(".").startswith(OURS):
                    yield f"path {entry}"
    scratch = os.environ.get("TMPDIR")
    if scratch:
        for path in Path(scratch).iterdir():
            if path.is_socket() or path.name.startswith(OURS):
                yield f"path {path}"


def snapshot(mark: str) -> list[str]:
    return sorted({*containers(), *mounts(), *cgroups(), *processes(mark), *directories()})


def main() -> int:
    verb, file = sys.argv[1], Path(sys.argv[2])
    try:
        now = snapshot(os.environ.get("FARMTEST_MARK", "none"))
    except DockerException as error:
        print(f"error: the leak check cannot look: Docker does not answer ({error}); start the daemon", file=sys.stderr)
        return 1
    if verb == "snapshot":
        file.write_text(json.dumps(now))
        return 0
    left = sorted(set(now) - set(json.loads(file.read_text())))
    for line in left:
        print(f"left behind: {line}")
    print(f"leak check: {len(left)} left behind")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
