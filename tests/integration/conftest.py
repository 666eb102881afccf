"""The daemon, the toolbox and a runtime, as the tests of sandboxes make them."""

from tests.sandboxes.conftest import docker_client, docker_runtime, state_dir, toolbox

__all__ = ["docker_client", "docker_runtime", "state_dir", "toolbox"]
