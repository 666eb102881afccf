"""The baseline of ``episodes``: what one would write first, straight on the Docker SDK.

A container in which the gold change is put and read back out, a second one that takes it and the tests and runs them,
both removed. No checks, no deadlines, no limits on what comes back.
"""

import io
import tarfile
import time
from collections.abc import Mapping, Sequence
from shlex import quote

import docker
from docker.models.containers import Container

from farm.bench.docker_baseline import archive, container
from farm.bench.results import BenchError
from farm.core.change import ChangeKind
from farm.grading.verifier_run import TEST_ENV
from farm.tasks.bundle import TaskBundle
from sandboxes import SandboxLimits

_REPORT = "/tmp/report.xml"


def solve_once(client: docker.DockerClient, bundle: TaskBundle) -> float:
    """Solve a task by its gold change; the seconds of its test command. Raises BenchError where the tests fail."""
    workspace, gold = bundle.task.workspace, bundle.gold
    if gold is None:
        raise BenchError(f"task {bundle.task.id} has no gold change; name another with --task")
    written = {file.path: file.content for file in gold.files if file.kind is ChangeKind.WRITE}
    deleted = [file.path for file in gold.files if file.kind is ChangeKind.DELETE]
    limits = SandboxLimits(memory_mib=bundle.task.memory_mib, cpus=bundle.task.cpus)
    with container(client, bundle.task.image, limits) as worked_in:
        worked_in.put_archive("/tmp", archive({"gold.tar": archive(written)}))
        _run(worked_in, f"tar -xf /tmp/gold.tar && rm -f /tmp/gold.tar {_words(deleted)}", workspace)
        _run(worked_in, f"tar -cf /tmp/change.tar {_words(written)}", workspace)
        change = _fetched(worked_in, "/tmp/change.tar")
    with container(client, bundle.task.image, limits) as graded_in:
        graded_in.put_archive(workspace, change)
        graded_in.put_archive(workspace, archive({path: file.content for path, file in bundle.tests.items()}))
        _run(graded_in, f"rm -f {_words(deleted)} /tmp/none", workspace)
        began = time.monotonic()
        code, output = graded_in.exec_run(["sh", "-c", _test_command(bundle)], workdir=workspace, environment=TEST_ENV)
        command_s = time.monotonic() - began
        if code not in (0, 1):
            raise BenchError(f"the tests of {bundle.task.id} did not run: {_text(output)}")
        if not b"".join(graded_in.get_archive(_REPORT)[0]):
            raise BenchError(f"the tests of {bundle.task.id} wrote no report")
    return command_s


def _run(made: Container, command: str, workdir: str) -> None:
    code, output = made.exec_run(["sh", "-c", command], workdir=workdir)
    if code != 0:
        raise BenchError(f"the Docker loop's {command[:80]!r} failed: {_text(output)}")


def _fetched(made: Container, path: str) -> bytes:
    """A file; by no ``exec_run``, of whose output the SDK loses what comes together with the head of the answer."""
    packed, _ = made.get_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(packed))) as got:
        file = got.extractfile(got.getmembers()[0])
        assert file is not None
        return file.read()


def _text(output: object) -> str:
    return output[-300:].decode(errors="replace") if isinstance(output, bytes) else str(output)


def _test_command(bundle: TaskBundle) -> str:
    verifier = bundle.task.verifier
    files = sorted({test.split("::", 1)[0] for test in (*verifier.fail_to_pass, *verifier.pass_to_pass)})
    return verifier.command.replace("{files}", _words(files)).replace("{report}", _REPORT)


def _words(names: Sequence[str] | Mapping[str, bytes]) -> str:
    return " ".join(map(quote, names))
