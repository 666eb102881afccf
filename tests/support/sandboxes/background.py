"""The contract of background jobs; a suite as ``conformance`` is, on the same fixtures."""

import pytest

from sandboxes import JobError, Runtime, SandboxSpec
from tests.support.sandboxes.conformance import WAIT_S, text, until_there


class JobContract:
    async def test_job_inherits_shell_state_and_returns_output(self, runtime: Runtime, image: str) -> None:
        async with runtime.scope(SandboxSpec(image, workdir="/srv")) as sandbox:
            await sandbox.shell("cd /tmp; X=1; export Y=2", timeout_s=WAIT_S)
            job = await sandbox.start_job('pwd; echo "$X $Y"; echo err >&2; exit 3')
            said = await sandbox.job_output(job, wait_s=WAIT_S)
            assert (said.output.head, said.exit_code) == (b"/tmp\n1 2\nerr\n", 3)
            after = await sandbox.job_output(job)
            assert (after.output.head, after.exit_code) == (b"", 3)
            elsewhere = await sandbox.start_job('pwd; echo "[$X]"', session="other")
            assert (await sandbox.job_output(elsewhere, wait_s=WAIT_S)).output.head == b"/srv\n[]\n"

    async def test_job_outlives_shell_until_end_job(self, runtime: Runtime, image: str) -> None:
        async with runtime.scope(SandboxSpec(image)) as sandbox:
            job = await sandbox.start_job("echo > /tmp/started; sleep 1000")
            await until_there(sandbox, "/tmp/started")
            assert (await sandbox.shell("sleep 1000", timeout_s=0.1)).timed_out
            await sandbox.restart_shell()
            assert (await sandbox.job_output(job, wait_s=0.01)).exit_code is None
            await sandbox.end_job(job)
            assert (await sandbox.job_output(job, wait_s=WAIT_S)).exit_code == 137
            await sandbox.end_job(job)

    async def test_call_for_missing_job_is_refused(self, runtime: Runtime, image: str) -> None:
        async with runtime.scope(SandboxSpec(image)) as sandbox:
            for call in (sandbox.job_output(9), sandbox.job_input(9, b"x"), sandbox.end_job(9)):
                with pytest.raises(JobError, match="no background job 9"):
                    await call
            job = await sandbox.start_job("true")
            await sandbox.job_output(job, wait_s=WAIT_S)
            with pytest.raises(JobError, match="has ended"):
                await sandbox.job_input(job, b"x")

    async def test_kill_all_ends_jobs(self, runtime: Runtime, image: str) -> None:
        async with runtime.scope(SandboxSpec(image)) as sandbox:
            job = await sandbox.start_job("echo > /tmp/started; sleep 1000")
            await until_there(sandbox, "/tmp/started")
            await sandbox.kill_all()
            assert (await sandbox.job_output(job, wait_s=WAIT_S)).exit_code == 137
            assert text(await sandbox.shell("echo on", timeout_s=WAIT_S)) == "on\n"
