"""The process that outlives a farm: what it learns, what it ends, what it passes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from farm.cluster.ray_process import what_died
from farm.cluster.supervisor import describe_exit

PROGRAM = """
import os, signal, subprocess, sys, time
from farm.cluster.supervisor import fork_supervisor
if ended := fork_supervisor():
    print(ended.code, ended.orderly)
    sys.exit()
exec(sys.argv[1])
"""
ORPHAN = "print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid, flush=True); "
READY = "print(os.getpid(), flush=True); "
UNTIL_TERMINATED = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); " + READY + "time.sleep(1000)"


def watched(child: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", PROGRAM, child], stdout=subprocess.PIPE, text=True)


def lines(process: "subprocess.Popen[str]") -> list[str]:
    return process.communicate()[0].splitlines()


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("sys.exit(3)", "3 True"),
        ("pass", "0 True"),
        ("os._exit(1)", "1 False"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "-9 False"),
    ],
)
def test_supervisor_distinguishes_orderly_exit_from_crash(end: str, told: str) -> None:
    assert lines(watched(end)) == [told]


def test_children_of_dead_process_are_killed() -> None:
    orphan, told = lines(watched(ORPHAN + "os._exit(1)"))
    assert told == "1 False"
    assert not psutil.pid_exists(int(orphan))


def test_signal_is_forwarded_to_child() -> None:
    process = watched(UNTIL_TERMINATED)
    assert process.stdout is not None
    assert int(process.stdout.readline()) != process.pid
    process.terminate()
    assert lines(process) == ["5 True"]


def test_farm_ends_when_supervisor_is_killed() -> None:
    process = watched(UNTIL_TERMINATED)
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.communicate()
    child.wait(60)
    assert not child.is_running()


def test_exit_codes_are_described(tmp_path: Path) -> None:
    assert [describe_exit(code) for code in (1, -signal.SIGKILL, -99)] == [
        "ended with exit code 1",
        "was killed by SIGKILL",
        "was killed by signal 99",
    ]
    log = tmp_path / "ray.log"
    assert what_died(log) == ""
    log.write_text("ERR scripts.py:1307 -- Some Ray subprocesses exited unexpectedly:\nERR -- raylet [exit code=-9]\n")
    assert what_died(log) == "Ray's raylet was killed by SIGKILL"
    assert what_died(log, since=os.stat(log).st_mtime + 1) == ""
