"""The tests that grading puts in: the task's own files, files of the image with the task's patch, and expected tests
that the image holds already."""

import errno
from collections.abc import Mapping

from farm.core.test_frameworks import owned_files
from farm.grading.changes.concurrency import map_concurrently
from farm.grading.errors import VerifierError
from farm.tasks.bundle import BundleFile, TaskBundle
from farm.tasks.unified_diff import FilePatch, UnifiedDiffError, apply_patch, parse_patch
from sandboxes.errors import PathError
from sandboxes.interface import MIB, FileKind, Sandbox

MAX_BYTES = 64 * MIB


async def tests_of(bundle: TaskBundle, sandbox: Sandbox) -> Mapping[str, BundleFile]:
    """Return the tests by path in the workspace. ``sandbox`` has booted from the image and is untouched.

    Files of expected tests that neither the task nor its patch brings are among them, as the image has them, so that
    they are protected like the others and get decoy tests. Files that the patch removes stay. Raises VerifierError if
    the patch does not fit the image.
    """
    if are_brought(bundle):
        return bundle.tests
    try:
        patches = [patch for patch in parse_patch(bundle.test_patch) if patch.new is not None]
        wanted = {patch.old for patch in patches if patch.old is not None} | owned_files(bundle.task.verifier)
        old = await _read(sandbox, bundle.task.workspace, sorted(wanted))
        patched = {patch.new: _patched_file(patch, old) for patch in patches if patch.new is not None}
    except UnifiedDiffError as error:
        raise VerifierError(f"the test patch does not fit the image: {error}") from None
    kept = {path: file for path, file in old.items() if path in owned_files(bundle.task.verifier)}
    return {**kept, **bundle.tests, **patched}


def are_brought(bundle: TaskBundle) -> bool:
    """Return True if the task alone has all of its tests."""
    return not bundle.test_patch and owned_files(bundle.task.verifier) <= bundle.tests.keys()


def _patched_file(patch: FilePatch, old: Mapping[str, BundleFile]) -> BundleFile:
    before = None if patch.old is None else old.get(patch.old)
    content = apply_patch(patch, None if before is None else before.content)
    executable = before is not None and before.executable if patch.executable is None else patch.executable
    return BundleFile(content, executable)


async def _read(sandbox: Sandbox, workspace: str, paths: list[str]) -> dict[str, BundleFile]:
    """Return the files of ``paths`` that exist and are regular files."""
    room = MAX_BYTES

    async def read(path: str) -> tuple[str, BundleFile] | None:
        nonlocal room
        full = f"{workspace}/{path}"
        try:
            entry = await sandbox.stat(full)
            if entry.kind is not FileKind.FILE:
                return None
            room -= entry.size
            if room < 0:
                raise UnifiedDiffError(f"the tests hold more than {MAX_BYTES >> 20} MiB")
            return path, BundleFile(await sandbox.read_file(full), bool(entry.mode & 0o100))
        except PathError as fault:
            if fault.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise

    return dict(found for found in await map_concurrently(paths, read) if found is not None)
