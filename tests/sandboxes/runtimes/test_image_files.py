"""Files of an image behave in a sandbox as on any other file system."""

import pytest

from sandboxes import OciRuntime, SandboxSpec
from sandboxes.runtimes.docker.runtime import DockerRuntime
from tests.support.sandboxes.conformance import WAIT_S, text
from tests.support.services import needs_root

pytestmark = [pytest.mark.docker, needs_root]

LINK = "ln /etc/passwd /etc/link && echo more >> /etc/link && tail -n 1 /etc/passwd && ls -i /etc/passwd /etc/link"


@pytest.mark.parametrize("private_layers", [False, True])
async def test_hard_link_to_image_file_is_same_file(
    either_runtime: DockerRuntime | OciRuntime, test_image: str, private_layers: bool
) -> None:
    async with either_runtime.scope(SandboxSpec(test_image, private_layers=private_layers)) as sandbox:
        before = text(await sandbox.exec(["ls", "-i", "/etc/passwd"], timeout_s=WAIT_S))
        result = await sandbox.exec(["sh", "-c", LINK], timeout_s=WAIT_S)
        assert result.exit_code == 0, result.stderr.head
        added, *listed = text(result).splitlines()
        assert added == "more"
        assert len({line.split()[0] for line in (before, *listed)}) == 1, "the file's inode number changed"
