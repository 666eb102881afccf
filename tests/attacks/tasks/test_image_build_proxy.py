"""Image builds on a machine that reaches the internet through an HTTP proxy of its operator alone."""

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from farm.build_config import read_build_settings
from farm.config import BuildOptions
from tests.support.attacks.building import Builder, dockerfile, everything_in, python, unused_name
from tests.support.sandboxes.origin import BODY, origin
from tests.support.sandboxes.upstream_proxy import LOGIN, URL_LOGIN, upstream_proxy

pytestmark = pytest.mark.docker


@pytest.fixture
def name(docker_client: docker.DockerClient) -> Iterator[str]:
    with unused_name(docker_client) as found:
        yield found


async def test_build_through_operators_proxy_learns_no_login(
    name: str, tmp_path: Path, docker_client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is one that no resolver knows, so nothing but the operator's proxy leads there."""
    fetch = python(
        "import os, urllib.request\n"
        "open('/fetched', 'wb').write(urllib.request.urlopen('http://packages.invalid/index').read())\n"
        "open('/lent', 'w').write(str(os.environ))"
    )
    async with origin() as far, upstream_proxy({"packages.invalid": far.port}) as proxy:
        for variable in ("http_proxy", "https_proxy", "no_proxy", "NO_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        builder = Builder(read_build_settings(BuildOptions(hosts=("packages.invalid",))), tmp_path)
        await builder.farm(name, dockerfile(fetch))
        assert ("GET", "http://packages.invalid/index") in proxy.asked
    taken = everything_in(docker_client, name)
    assert BODY in taken
    for secret in (LOGIN, URL_LOGIN, f":{proxy.port}"):
        assert secret.encode() not in taken
