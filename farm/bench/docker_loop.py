"""The baseline of ``episodes``: a straightforward loop over the Docker SDK.

One container applies the gold change and packs it. A second container takes the change and the tests, and runs the
tests. Both are removed. There are no checks, deadlines or limits on the output.
"""

import io
import tarfile
import time
from collections.abc import Mapping, Sequence
from shlex import quote

import docker
from docker.models.containers import Container

from farm.bench.docker_containers import archive, container
from farm.bench.results import BenchError
from farm.core.change import ChangeKind
from farm.grading.verifier_run import TEST_ENV
from farm.tasks.bundle import TaskBundle
from sandboxes import SandboxLimits

_REPORT = "/tmp/report.xml"


def solve_once(client: docker.DockerClient, bundle: TaskBundle) -> float:
    """Solve a task by its gold change; return the seconds of its test command. Raises BenchError if the tests fail."""
    workspace, gold = bundle.task.workspace, bundle.gold
    if gold is None:
        raise BenchError(f"task {bundle.task.id} has no gold change; choose another with --task")
    written = {file.path: file.content for file in gold.files if file.kind is ChangeKind.WRITE}
    deleted = [file.path for file in gold.files if file.kind is ChangeKind.DELETE]
    limits = SandboxLimits(memory_mib=bundle.task.memory_mib, cpus=bundle.task.cpus)
    with container(client, bundle.task.image, limits) as work_container:
        work_container.put_archive("/tmp", archive({"gold.tar": archive(written)}))
        _run(work_container, f"tar -xf /tmp/gold.tar && rm -f /tmp/gold.tar {_words(deleted)}", workspace)
        _run(work_container, f"tar -cf /tmp/change.tar {_words(written)}", workspace)
        change = _read_file(work_container, "/tmp/change.tar")
    with container(client, bundle.task.image, limits) as grading_container:
        grading_container.put_archive(workspace, change)
        grading_container.put_archive(workspace, archive({path: file.content for path, file in bundle.tests.items()}))
        _run(grading_container, f"rm -f {_words(deleted)} /tmp/none", workspace)
        began = time.monotonic()
        code, output = grading_container.exec_run(
            ["sh", "-c", _test_command(bundle)], workdir=workspace, environment=TEST_ENV
        )
        command_s = time.monotonic() - began
        if code not in (0, 1):
            raise BenchError(f"the tests of {bundle.task.id} did not run: {_text(output)}")
        if not b"".join(grading_container.get_archive(_REPORT)[0]):
            raise BenchError(f"the tests of {bundle.task.id} wrote no report")
    return command_s


def _run(target: Container, command: str, workdir: str) -> None:
    code, output = target.exec_run(["sh", "-c", command], workdir=workdir)
    if code != 0:
        raise BenchError(f"the Docker loop's {command[:80]!r} failed: {_text(output)}")


def _read_file(target: Container, path: str) -> bytes:
    """Read a file from a container.

    Not by ``exec_run``: the SDK loses output that arrives together with the head of the response.
    """
    packed, _ = target.get_archive(path)
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
