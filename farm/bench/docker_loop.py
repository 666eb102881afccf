"""The baseline of ``episodes``: what one would write first, straight on the Docker SDK.

A container in which the gold change is put and read back out, a second one that takes it and the tests and runs them,
both removed. No checks, no deadlines, no limits on what comes back.
"""

import io
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from shlex import quote

import docker
from docker.models.containers import Container

from farm.bench.figures import BenchError
from farm.core.change import ChangeKind
from farm.grading.verify import PYTEST_ENV
from farm.tasks.bundle import TaskBundle
from sandboxes.sandbox import MIB

_REPORT = "/tmp/report.xml"


def solve_once(client: docker.DockerClient, bundle: TaskBundle) -> float:
    """Solve a task by its gold change; the seconds of its test command. Raises BenchError where the tests fail."""
    workspace, gold = bundle.task.workspace, bundle.gold
    if gold is None:
        raise BenchError(f"task {bundle.task.id} has no gold change; name another with --task")
    written = {file.path: file.content for file in gold.files if file.kind is ChangeKind.WRITE}
    deleted = [file.path for file in gold.files if file.kind is ChangeKind.DELETE]
    with _container(client, bundle) as container:
        container.put_archive("/tmp", _archive({"gold.tar": _archive(written)}))
        _run(container, f"tar -xf /tmp/gold.tar && rm -f /tmp/gold.tar {_words(deleted)}", workspace)
        change = _run(container, f"tar -c {_words(written)}", workspace)
    with _container(client, bundle) as container:
        container.put_archive(workspace, change)
        container.put_archive(workspace, _archive({path: file.content for path, file in bundle.tests.items()}))
        _run(container, f"rm -f {_words(deleted)} /tmp/none", workspace)
        began = time.monotonic()
        code, output = container.exec_run(
            ["sh", "-c", _test_command(bundle)], workdir=workspace, environment=PYTEST_ENV
        )
        command_s = time.monotonic() - began
        if code not in (0, 1):
            raise BenchError(f"the tests of {bundle.task.id} did not run: {_text(output)}")
        if not b"".join(container.get_archive(_REPORT)[0]):
            raise BenchError(f"the tests of {bundle.task.id} wrote no report")
    return command_s


@contextmanager
def _container(client: docker.DockerClient, bundle: TaskBundle) -> Iterator[Container]:
    """With the limits that a sandbox of the task has."""
    container = client.containers.create(
        bundle.task.image,
        ["sleep", "infinity"],
        network_mode="none",
        mem_limit=bundle.task.memory_mib * MIB,
        nano_cpus=int(bundle.task.cpus * 1e9),
        labels={"farm.bench": "docker_sdk_loop"},
    )
    try:
        container.start()
        yield container
    finally:
        container.remove(force=True)


def _run(container: Container, command: str, workdir: str) -> bytes:
    code, output = container.exec_run(["sh", "-c", command], workdir=workdir, stderr=False)
    if code != 0 or not isinstance(output, bytes):
        raise BenchError(f"the Docker loop's {command[:80]!r} failed: {_text(output)}")
    return output


def _text(output: object) -> str:
    return output[-300:].decode(errors="replace") if isinstance(output, bytes) else str(output)


def _test_command(bundle: TaskBundle) -> str:
    verifier = bundle.task.verifier
    files = sorted({test.split("::", 1)[0] for test in (*verifier.fail_to_pass, *verifier.pass_to_pass)})
    return verifier.command.replace("{files}", _words(files)).replace("{report}", _REPORT)


def _words(names: Sequence[str] | Mapping[str, bytes]) -> str:
    return " ".join(map(quote, names))


def _archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
