"""An archive in S3, against the S3 server of moto, which speaks S3's HTTP protocol."""

import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from farm.archive import ArchiveReader, ArchiveSettings, ArchiveUnavailable, open_place
from farm.store import Store
from tests.support.archives import ack, archived, fill, retention, stored
from tests.support.redis_server import running_store

pytestmark = pytest.mark.redis


@pytest.fixture
def url() -> str:
    """A place in a bucket that is not made yet: the servers of one process share their buckets."""
    return f"s3://{secrets.token_hex(8)}/farm"


def make_bucket(url: str) -> None:
    fsspec.filesystem("s3").mkdir(url.split("/")[2])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedMotoServer]:
    served = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    served.start()
    host, port = served.get_host_and_port()
    variables = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for name, value in {**variables, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    yield served
    served.stop()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with running_store(tmp_path / "state") as opened:
        yield opened


async def test_rollouts_move_to_a_bucket(store: Store, server: ThreadedMotoServer, url: str) -> None:
    make_bucket(url)
    made = await fill(store, groups=3)
    await ack(store, groups=2)
    keeper = retention(store, ArchiveSettings(url))
    await keeper.once()
    assert keeper.status is not None
    assert keeper.status.outage == ""
    left = await stored(store)
    assert len(left) == 2
    assert set(archived(url)) == made - left
    assert set(archived(url, ["run-a"])) == made - left
    assert archived(url, ["run-b"]) == {}


async def test_absent_bucket_keeps_rollouts_in_redis(store: Store, server: ThreadedMotoServer, url: str) -> None:
    made = await fill(store)
    await ack(store, groups=2)
    keeper = retention(store, ArchiveSettings(url))
    await keeper.once()
    assert keeper.status is not None
    assert keeper.status.outage.startswith(f"the archive {url}: ")
    assert await stored(store) == made
    with pytest.raises(ArchiveUnavailable, match="there is no such bucket; create it"):
        open_place(url).names()
    make_bucket(url)
    await keeper.once()
    assert await stored(store) == set()
    assert open_place(url).names("run=other") == []


async def test_silent_server_keeps_rollouts_in_redis(store: Store, server: ThreadedMotoServer, url: str) -> None:
    make_bucket(url)
    made = await fill(store)
    await ack(store, groups=2)
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    server.stop()
    keeper = retention(store, ArchiveSettings(url))
    await keeper.once()
    assert keeper.status is not None
    assert endpoint in keeper.status.outage
    assert await stored(store) == made


async def test_damaged_object_is_named(store: Store, server: ThreadedMotoServer, url: str) -> None:
    make_bucket(url)
    for run_id in ("run-a", "run-b"):
        await fill(store, run_id)
        await ack(store, run_id, groups=2)
    await retention(store, ArchiveSettings(url)).once()
    [name] = [name for name in open_place(url).names("run=run-a") if name.endswith(".zst")]
    fsspec.filesystem("s3").pipe_file(f"{url}/{name}", b"damaged")
    corrupt: list[str] = []
    reader = ArchiveReader(open_place(url), lambda error: corrupt.append(str(error)))
    assert {row["run_id"] for row in reader.rows()} == {"run-b"}
    assert [why.startswith(name) for why in corrupt] == [True]
