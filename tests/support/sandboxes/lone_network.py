"""A network in which this test alone lives, with addresses of the internet and names for them."""

import asyncio
import ctypes
import os
import subprocess
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.services import require_program

FAR = ("11.0.0.2", "11.0.0.3")
"""Addresses that look far away: no interface has them, and what connects to them does so from HERE."""
HERE = "11.0.0.1"

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000


def in_lone_network(scenario: Callable[[], Coroutine[Any, Any, None]], names: Mapping[str, str], scratch: Path) -> None:
    """Run ``scenario`` where ``names`` stand for their addresses (several with spaces between). Only root can.

    It runs in a thread of its own, which alone is in that network and ends there.
    """
    hosts = scratch / "hosts"
    hosts.write_text("".join(f"{address} {name}\n" for name, given in names.items() for address in given.split()))
    ip = require_program("ip")

    def run() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        commands = ["mount --make-rprivate /", f"mount --bind {hosts} /etc/hosts", f"{ip} link set lo up"]
        commands.append(f"{ip} address add {HERE}/32 dev lo")
        for address in FAR:
            commands.append(f"{ip} route replace local {address} dev lo table local src {HERE}")
        for command in commands:
            subprocess.run(command.split(), check=True)
        asyncio.run(scenario())

    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(run).result()
