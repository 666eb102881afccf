"""Harbor's places in a grading sandbox: ``tests/`` at /tests, and the reward that ``test.sh`` leaves below /logs."""

from collections.abc import Mapping
from errno import EACCES, ENOENT, ENOTDIR, EPERM

from farm.grading.changes.concurrency import map_concurrently
from farm.grading.errors import ReportError, raise_if_host_fault
from farm.grading.reports.reward_file import JSON, MAX_REWARD_BYTES, TEXT, choose_reward
from farm.tasks.bundle import BundleFile
from sandboxes.errors import PathError
from sandboxes.interface import ExecResult, Sandbox

TESTS = "/tests"
LOGS = "/logs/verifier"
COMMAND = f"bash {TESTS}/test.sh"


async def clear_logs(sandbox: Sandbox) -> None:
    """Whatever is there was not written by the verifier."""
    await _clear(sandbox, LOGS)
    await sandbox.write_file(f"{LOGS}/.farm", b"", parents=True)


async def put_tests(sandbox: Sandbox, tests: Mapping[str, BundleFile]) -> None:
    await _clear(sandbox, TESTS)

    async def put(path: str) -> None:
        file = tests[path]
        await sandbox.write_file(f"{TESTS}/{path}", file.content, executable=file.executable, parents=True)

    await map_concurrently(tests, put)


async def _clear(sandbox: Sandbox, path: str) -> None:
    """A directory that stands where its owner may not write is emptied, and stays."""
    try:
        await sandbox.remove_path(path)
    except PathError as error:
        if error.errno not in (EACCES, EPERM) or await sandbox.walk(path):
            raise


async def read_reward(sandbox: Sandbox, result: ExecResult) -> float | ReportError:
    """Something that stands in a file's place kept the verifier from writing it: then no other file counts."""
    files = {}
    for name in (JSON, TEXT):
        try:
            files[name] = await sandbox.read_file(f"{LOGS}/{name}", limit=MAX_REWARD_BYTES + 1)
        except PathError as error:
            if error.errno not in (ENOENT, ENOTDIR):
                raise_if_host_fault(error)
                return ReportError(f"the verifier's {name} cannot be read: {error}")
    try:
        return choose_reward(files)
    except ReportError as error:
        return ReportError(f"{error} (exit code {result.exit_code})")
