"""The door: a socket that listens inside a sandbox's network, and is served by this process outside of it.

Nothing of it is in reach from inside: no process, no file. Closed here, it is closed for good.
"""

import ctypes
import os
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from sandboxes.errors import RuntimeUnavailable

PROXY_HOST, PROXY_PORT = "127.0.0.1", 3128
BACKLOG = 64

_CLONE_NEWNET = 0x40000000
_IP_FREEBIND = 15
"""Socket option of linux/in.h: bind to an address that no device has yet."""
_LISTENING = b" 0100007F:0C38 00000000:0000 0A "
"""PROXY_HOST and PROXY_PORT as proc(5) writes them, in the state LISTEN."""


def proxy_environment() -> dict[str, str]:
    """What tells the programs inside; some heed only one of the spellings."""
    url = f"http://{PROXY_HOST}:{PROXY_PORT}"
    told = {"http_proxy": url, "https_proxy": url, "no_proxy": "localhost,127.0.0.1,::1"}
    return told | {name.upper(): value for name, value in told.items()}


async def listen_inside(pid: int, alive: Callable[[], Awaitable[None]]) -> socket.socket:
    """Listen at PROXY_PORT in the network of process ``pid``.

    ``alive`` raises unless the process that is meant lives; it is asked once that network is held, since numbers of
    processes are given again. Raises RuntimeUnavailable.
    """
    try:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            await alive()
            # A thread of its own, for it does not come back from there; all of it takes a fraction of a millisecond.
            with ThreadPoolExecutor(max_workers=1) as thread:
                return thread.submit(listen_in, namespace, PROXY_PORT).result()[0]
        finally:
            os.close(namespace)
    except PermissionError as error:
        raise RuntimeUnavailable(
            f"a sandbox's way to its allowed hosts cannot be opened ({error.strerror}); run the farm as root, "
            "or take the task's network away"
        ) from None
    except OSError as error:
        raise RuntimeUnavailable(f"a sandbox's way to its allowed hosts cannot be opened: {error}") from None


def check_seen(table: bytes) -> None:
    """``table`` is the sandbox's own ``/proc/net/tcp``. Raises RuntimeUnavailable where the door is not in it.

    So it is where another kernel inside has a network of its own, which no socket of this one is part of.
    """
    if _LISTENING not in table:
        raise RuntimeUnavailable(
            "no proxy can listen in a sandbox whose kernel is not this machine's; "
            "run tasks that name hosts with the runtime oci or docker"
        )


def listen_in(namespace: int, *ports: int) -> list[socket.socket]:
    """Listen at PROXY_HOST in a network namespace. The calling thread stays in that network for good.

    The loopback device may still be down. Raises OSError, and RuntimeUnavailable if the network is this machine's.
    """
    if os.path.samestat(os.fstat(namespace), os.stat("/proc/self/ns/net")):
        raise RuntimeUnavailable("a sandbox shares this machine's network, and is given no proxy there")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))  # PermissionError where that is what it is
    listeners: list[socket.socket] = []
    try:
        for port in ports:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            listeners.append(listener)
            listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
            listener.bind((PROXY_HOST, port))
            listener.listen(BACKLOG)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners
