"""The contract, over the fake and over the real thing."""

from collections.abc import AsyncIterator

import pytest

from sandboxes import FakeRuntime, Runtime
from tests.sandboxes.conformance import RuntimeContract

FILES = {"/etc/motd": b"hello\n", "/bin/tool": b"#!/bin/sh\necho tool\n", "/srv/here/": b""}


class TestFake(RuntimeContract):
    @pytest.fixture
    async def runtime(self) -> AsyncIterator[Runtime]:
        runtime = FakeRuntime({"farm-test/fake:1": FILES})
        yield runtime
        await runtime.close()

    @pytest.fixture
    def image(self) -> str:
        return "farm-test/fake:1"


@pytest.mark.docker
class TestDocker(RuntimeContract):
    @pytest.fixture
    def runtime(self, docker_runtime: Runtime) -> Runtime:
        return docker_runtime

    @pytest.fixture
    def image(self, test_image: str) -> str:
        return test_image


@pytest.mark.docker
class TestOci(RuntimeContract):
    @pytest.fixture
    def runtime(self, oci_runtime: Runtime) -> Runtime:
        return oci_runtime

    @pytest.fixture
    def image(self, test_image: str) -> str:
        return test_image
