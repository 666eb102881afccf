"""A child process that writes more than is read can be ended."""

import asyncio
from asyncio.subprocess import PIPE, Process

import pytest

from sandboxes.linux.kill_child import kill_group


async def paused(command: str) -> Process:
    """Return a process that writes to a full pipe without a reader."""
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", command), stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    while not vars(process.stdout)["_paused"]:  # noqa: ASYNC110 - the reader has no public name for it
        await asyncio.sleep(0)
    return process


@pytest.mark.parametrize("command", ["yes", "yes & wait", "head -c 400000 /dev/zero"])
async def test_process_with_unread_output_is_killed(command: str) -> None:
    process = await paused(command)
    await kill_group(process)
    assert process.returncode is not None
    assert process.stdout is not None
    assert process.stdout.at_eof()
