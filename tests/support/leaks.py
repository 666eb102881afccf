"""Find what a test run left behind on this machine.

``python -m tests.support.leaks snapshot FILE`` writes what exists. ``python -m tests.support.leaks compare FILE`` fails
with a line for each container, mount, disk, cgroup, process, socket or directory that is new. Both fail if Docker does
not answer, because containers could not be listed.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import docker
from docker.errors import DockerException

OURS = ("farm", "ray")
SETTLE_S = 60.0
"""The kernel lets go of a loop device, and a daemon of a container, a moment after it was asked to."""
PLACES = (Path("/tmp"), Path("/run"), Path("/var/run"), Path("/dev/shm"), Path("/var/tmp"))


def containers() -> Iterator[str]:
    client = docker.from_env()
    try:
        for container in client.containers.list(all=True, filters={"label": "farm.owner"}, ignore_removed=True):
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


def disks() -> Iterator[str]:
    """Of the oci runtime: they are mounted where no mount table shows it, and stand on files by loop devices."""
    for device in Path("/sys/block").glob("loop*"):
        with contextlib.suppress(OSError):  # let go just now
            file = (device / "loop/backing_file").read_text().rstrip("\n").removesuffix(" (deleted)")
            if Path(file).name == "disk.img" and "owners" in Path(file).parts:
                yield f"loop device {device.name} on {file}"
    for device in Path("/sys/fs/btrfs").glob("*/devices/loop*"):
        yield f"btrfs on {device.name}"


def cgroups() -> Iterator[str]:
    """In every hierarchy."""
    for place, names, _ in os.walk("/sys/fs/cgroup"):
        for name in names:
            if "farm" in name:
                yield f"cgroup {place}/{name}"


def processes(mark: str) -> Iterator[str]:
    """Those that carry the run's mark in their environment, but this one and those it descends from; starters, tool
    servers and indexing processes, whoever started them, for these have no environment."""
    spared = set(_ancestors(os.getpid()))
    wanted = f"FARMTEST_MARK={mark}".encode()
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) in spared:
            continue
        try:
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            program = command.partition(" ")[0]
            marked = wanted in (directory / "environ").read_bytes().split(b"\0")
            ours = program.endswith(("/starter", "/toolserver")) or " -m sandboxes.search.workers.worker" in command
            if command and (marked or ours):
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
            if path.is_socket() or path.name.lstrip(".").startswith(OURS):
                yield f"path {path}"


def snapshot(mark: str) -> list[str]:
    return sorted({*containers(), *mounts(), *disks(), *cgroups(), *processes(mark), *directories()})


def main() -> int:
    verb, file = sys.argv[1], Path(sys.argv[2])
    mark = os.environ.get("FARMTEST_MARK", "none")
    try:
        now = snapshot(mark)
    except DockerException as error:
        print(f"error: the leak check cannot look: Docker does not answer ({error}); start the daemon", file=sys.stderr)
        return 1
    if verb == "snapshot":
        file.write_text(json.dumps(now))
        return 0
    before = set(json.loads(file.read_text()))
    deadline = time.monotonic() + SETTLE_S
    while (left := sorted(set(now) - before)) and time.monotonic() < deadline:
        time.sleep(0.2)
        now = snapshot(mark)
    for line in left:
        print(f"left behind: {line}")
    print(f"leak check: {len(left)} left behind")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
