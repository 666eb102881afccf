"""The contract of forks and snapshots; a suite as ``conformance`` is, of which a subclass gives the same fixtures."""

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandboxes import FileKind, Runtime, Sandbox, SandboxGone, SandboxSpec, SnapshotError, SpecError
from tests.support.sandboxes.conformance import WAIT_S, living, refusal, text, until_there


class CopyContract:
    @pytest.fixture
    async def source(self, runtime: Runtime, image: str) -> AsyncIterator[Sandbox]:
        async with runtime.scope(SandboxSpec(image, env={"COLOUR": "green"})) as source:
            yield source

    async def test_fork_starts_with_current_files(self, source: Sandbox) -> None:
        await source.write_file("/tmp/made", b"1", executable=True)
        await source.write_file("/etc/motd", b"changed\n")
        await source.remove_path("/bin/tool")
        await source.write_link("/tmp/link", "made")
        fork = await source.fork()
        assert (fork.spec, fork.image_digest, fork.workdir) == (source.spec, source.image_digest, source.workdir)
        assert fork.id != source.id
        assert await fork.read_file("/tmp/link") == b"1"
        assert (await fork.stat("/tmp/made")).mode == (await source.stat("/tmp/made")).mode
        assert (await fork.stat("/tmp/link")).kind is FileKind.SYMLINK
        assert await fork.read_file("/etc/motd") == b"changed\n"
        assert await refusal(fork.stat("/bin/tool")) == errno.ENOENT
        assert text(await fork.shell("echo $COLOUR", timeout_s=WAIT_S)) == "green\n"
        await fork.remove()

    async def test_fork_and_source_share_nothing(self, source: Sandbox) -> None:
        await source.write_file("/tmp/both", b"old")
        fork = await source.fork()
        await fork.write_file("/tmp/both", b"fork's")
        await fork.write_file("/tmp/fork", b"")
        await source.write_file("/tmp/source", b"")
        assert await source.read_file("/tmp/both") == b"old"
        assert await refusal(source.stat("/tmp/fork")) == errno.ENOENT
        assert await refusal(fork.stat("/tmp/source")) == errno.ENOENT
        await source.remove()
        assert await fork.read_file("/tmp/both") == b"fork's"
        await fork.remove()

    async def test_fork_has_no_processes_or_shells(self, source: Sandbox) -> None:
        """The processes and the shell of the source run on."""
        await source.shell("cd /tmp; x=1; (sleep 5; echo late > /tmp/late) &", timeout_s=WAIT_S)
        fork = await source.fork()
        assert text(await fork.shell('echo "[$x]"; pwd', timeout_s=WAIT_S)) == f"[]\n{fork.workdir}\n"
        assert text(await source.shell('echo "[$x]"; pwd', timeout_s=WAIT_S)) == "[1]\n/tmp\n"
        await until_there(source, "/tmp/late")
        assert await refusal(fork.stat("/tmp/late")) == errno.ENOENT
        await fork.remove()

    async def test_snapshot_does_not_disturb_running_call(self, source: Sandbox) -> None:
        call = asyncio.create_task(
            source.exec(["sh", "-c", "echo > /tmp/started; sleep 0.5; echo on"], timeout_s=WAIT_S)
        )
        await until_there(source, "/tmp/started")
        async with await source.snapshot():
            assert text(await call) == "on\n"

    async def test_fork_of_fork_keeps_all_files(self, source: Sandbox) -> None:
        generations = [source]
        for number in range(3):
            await generations[-1].write_file(f"/tmp/{number}", str(number).encode())
            generations.append(await generations[-1].fork())
        for box in generations[:-1]:
            await box.remove()
        last = generations[-1]
        assert [await last.read_file(f"/tmp/{number}") for number in range(3)] == [b"0", b"1", b"2"]
        await last.remove()

    async def test_snapshot_outlives_source_and_starts_many_sandboxes(self, runtime: Runtime, image: str) -> None:
        async with runtime.scope(SandboxSpec(image)) as source:
            await source.write_file("/tmp/kept", b"1")
            snapshot = await source.snapshot()
            await source.write_file("/tmp/kept", b"2")
        spec = replace(snapshot.spec, env={"SHAPE": "round"}, workdir="/tmp")
        boxes = [await runtime.create(spec, base=snapshot) for _ in range(2)]
        await snapshot.remove()
        await snapshot.remove()
        for box in boxes:
            assert await box.read_file("kept") == b"1"
            assert text(await box.shell("echo $SHAPE; pwd", timeout_s=WAIT_S)) == "round\n/tmp\n"
        assert await living(runtime) == {box.id for box in boxes}
        with pytest.raises(SpecError, match="was removed"):
            await runtime.create(spec, base=snapshot)
        for box in boxes:
            await box.remove()

    async def test_snapshot_has_no_variables_of_source(self, runtime: Runtime, source: Sandbox) -> None:
        async with (
            await source.snapshot() as snapshot,
            runtime.scope(SandboxSpec(source.spec.image), base=snapshot) as box,
        ):
            assert text(await box.shell('echo "[$COLOUR]"', timeout_s=WAIT_S)) == "[]\n"

    async def test_snapshot_with_other_image_or_runtime_is_refused(self, runtime: Runtime, source: Sandbox) -> None:
        async with await source.snapshot() as snapshot:
            with pytest.raises(SpecError, match="use the same image"):
                await runtime.create(SandboxSpec("farm-test/no-such:1"), base=snapshot)
            snapshot.id = source.id
            with pytest.raises(SpecError, match="belongs to another runtime"):
                await runtime.create(snapshot.spec, base=snapshot)

    async def test_removed_sandbox_cannot_be_copied(self, runtime: Runtime, source: Sandbox) -> None:
        await source.remove()
        with pytest.raises(SandboxGone, match="was removed"):
            await source.snapshot()
        with pytest.raises(SandboxGone, match="was removed"):
            await source.fork()
        assert await living(runtime) == set()

    @pytest.mark.parametrize("steps", [0, 1, 3, 10, 40])
    async def test_sandbox_removed_during_fork_is_copied_or_gone(
        self, runtime: Runtime, source: Sandbox, steps: int
    ) -> None:
        await source.write_file("/tmp/kept", b"1")
        forking = asyncio.create_task(source.fork())
        for _ in range(steps):
            await asyncio.sleep(0)
        await source.remove()
        try:
            fork = await forking
        except SandboxGone:
            pass
        else:
            assert await fork.read_file("/tmp/kept") == b"1"
            await fork.remove()
        assert await living(runtime) == set()

    @pytest.mark.parametrize("steps", [1, 2, 5, 10, 20, 60])
    async def test_cancelled_fork_leaves_only_running_source(
        self, runtime: Runtime, source: Sandbox, steps: int
    ) -> None:
        forking = asyncio.create_task(source.fork())
        for _ in range(steps):
            await asyncio.sleep(0)
        forking.cancel()
        try:
            fork = await forking
        except asyncio.CancelledError:
            pass
        else:  # it was ready before the news came
            await fork.remove()
        assert await living(runtime) == {source.id}
        assert text(await source.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"

    async def test_fork_without_workdir_is_snapshot_error(self, runtime: Runtime, image: str) -> None:
        async with runtime.scope(SandboxSpec(image, workdir="/srv/here")) as source:
            await source.remove_path("/srv/here")
            with pytest.raises(SnapshotError, match="/srv/here"):
                await source.fork()
            assert await living(runtime) == {source.id}

    async def test_concurrent_forks_are_complete(self, source: Sandbox) -> None:
        await source.write_file("/tmp/kept", b"x" * 2**20)
        forks = await asyncio.gather(*(source.fork() for _ in range(4)))
        assert len({fork.id for fork in forks}) == 4
        assert [len(await fork.read_file("/tmp/kept")) for fork in forks] == [2**20] * 4
        await asyncio.gather(*(fork.remove() for fork in forks))
        assert text(await source.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
