"""Harbor's directories in a grading sandbox: the tests in /tests, and the reward files below /logs/verifier."""

from collections.abc import Mapping
from errno import EACCES, ENOENT, ENOTDIR, EPERM

from farm.grading.changes.concurrency import map_concurrently
from farm.grading.errors import ReportError, raise_if_host_fault
from farm.grading.reports.reward_file import JSON, MAX_REWARD_BYTES, TEXT, choose_reward
from farm.tasks.bundle import BundleFile
from sandboxes.errors import PathError
from sandboxes.interface import ExecResult, Sandbox

TESTS_DIR = "/tests"
LOGS_DIR = "/logs/verifier"
COMMAND = f"bash {TESTS_DIR}/test.sh"


async def clear_logs(sandbox: Sandbox) -> None:
    """Empty the log directory before the verifier runs, or create it."""
    await _remove_or_empty(sandbox, LOGS_DIR)
    await sandbox.write_file(f"{LOGS_DIR}/.farm", b"", parents=True)


async def put_tests(sandbox: Sandbox, tests: Mapping[str, BundleFile]) -> None:
    await _remove_or_empty(sandbox, TESTS_DIR)

    async def write(path: str) -> None:
        file = tests[path]
        await sandbox.write_file(f"{TESTS_DIR}/{path}", file.content, executable=file.executable, parents=True)

    await map_concurrently(tests, write)


async def _remove_or_empty(sandbox: Sandbox, path: str) -> None:
    """Remove a path. A directory that cannot be removed because its parent is not writable is only emptied.

    Raises PathError if something remains.
    """
    try:
        await sandbox.remove_path(path)
    except PathError as error:
        if error.errno not in (EACCES, EPERM) or await sandbox.walk(path):
            raise


async def read_reward(sandbox: Sandbox, result: ExecResult) -> float | ReportError:
    """Return the reward from the verifier's reward files, or the reason why there is none.

    If a reward file exists but cannot be read, the other one does not count: the agent may have blocked the first.

    Raises a host fault as such (``raise_if_host_fault``).
    """
    files = {}
    for name in (JSON, TEXT):
        try:
            files[name] = await sandbox.read_file(f"{LOGS_DIR}/{name}", limit=MAX_REWARD_BYTES + 1)
        except PathError as error:
            if error.errno not in (ENOENT, ENOTDIR):
                raise_if_host_fault(error)
                return ReportError(f"the verifier's {name} cannot be read: {error}")
    try:
        return choose_reward(files)
    except ReportError as error:
        return ReportError(f"{error} (exit code {result.exit_code})")
