"""The farm's side of the starter process; ``sandboxes/starter/starter.c`` documents the packets."""

import array
import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable

log = logging.getLogger(__name__)

PACKET_BYTES = 64 * 1024
LAYERS_MAX = 120
READY_S = 10.0
SLOW_START_S, ANSWER_S = 15.0, 15.0
"""After ``SLOW_START_S`` without the end of a start, the starter is pinged. If it does not answer within ``ANSWER_S``
it is killed: it never blocks itself, so it was stopped or is lost."""
SEND_BUFFER_BYTES = 16 * 1024 * 1024
"""Send buffer, in the kernel's accounting of about 770 bytes a packet and half for overhead: enough for the ends of
40,000 sandboxes."""
SO_SNDBUFFORCE = 32
"""socket(7); missing in Python's socket module."""

# The starter's mount points, in a mount namespace that only it and its children see.
MOUNT_DIR = Path("/mnt")
DISK, ROOTFS, USERS, STATE, DEVICES = (MOUNT_DIR / name for name in ("disk", "rootfs", "users", "state", "dev"))

OnExitStatus = Callable[[int | None], None]


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The file system and the command of a sandbox's start.

    ``first_id``: uid outside of root inside; 0: no user namespace. ``options``: of the overlay. ``layers``: topmost
    first; each is a directory, or a file or block device with an EROFS image. ``top_layer``: replaces the common layer.
    """

    name: str
    first_id: int
    rlimits: Mapping[int, int]
    options: str
    top_layer: Path | None
    layers: Sequence[Path]
    command: Sequence[str | Path]

    def fields(self) -> Iterator[str | Path]:
        """Yield the fields of the packet, which ``sandboxes/starter/starter.c`` documents."""
        yield self.name
        yield str(self.first_id)
        yield " ".join(f"{number} {value}" for number, value in self.rlimits.items())
        yield self.options
        yield self.top_layer or ""
        yield str(len(self.layers))
        yield from self.layers
        yield from self.command


class Starter:
    """One starter process. Calls raise RuntimeUnavailable if it has ended."""

    def __init__(self, process: asyncio.subprocess.Process, sock: socket.socket) -> None:
        self._process = process
        self._socket = sock
        self._starts: dict[str, asyncio.Future[int]] = {}
        self._status_requests: dict[int, OnExitStatus] = {}
        self._gone = False
        self._pong: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._receive)

    # All arguments by keyword, because each is a part of the starter's command line.
    @classmethod
    async def launch(
        cls,
        starter: Path,
        *,
        program: int,
        library: Path | None,
        disk: int,
        layer: int,
        needed: Sequence[Path],
        hierarchies: Sequence[Path],
    ) -> "Starter":
        """Start ``starter`` and wait until it is ready. Raises RuntimeUnavailable.

        ``program``: the OCI runtime; with ``library``, a library, it becomes the starter itself. ``disk``, ``layer``:
        detached mounts. The caller closes all descriptors. ``needed``: paths without symlinks of programs and layers.
        """
        host_socket, starter_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        host_socket.setblocking(False)
        with contextlib.suppress(PermissionError):  # then the buffer is smaller
            host_socket.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER_BYTES)
        descriptors = (starter_socket.fileno(), disk, layer, program)
        try:
            process = await asyncio.create_subprocess_exec(
                starter,
                *map(str, descriptors),
                *needed,
                "--",
                *hierarchies,
                executable=starter if library is None else f"/proc/self/fd/{program}",
                # No other variables: an OCI runtime would obey NOTIFY_SOCKET and others of this process.
                env={"PATH": os.defpath} | (_preload_env(library.name) if library else {}),
                cwd=starter.parent,  # the library is here too: LD_PRELOAD cannot quote a path
                pass_fds=descriptors,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            host_socket.close()
            raise RuntimeUnavailable(f"starter {starter} cannot be executed: {error.strerror}") from None
        finally:
            starter_socket.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                if await asyncio.get_running_loop().sock_recv(host_socket, PACKET_BYTES):
                    return cls(process, host_socket)
        host_socket.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        _, stderr = await process.communicate()
        raise RuntimeUnavailable(f"the starter failed: {stderr.decode(errors='replace').strip()}")

    async def start(self, request: StartRequest, listener: socket.socket) -> int:
        """Mount the overlay of ``request`` and run its command. Return the exit status, as a shell would.

        The command inherits ``listener``. A cancelled start goes on: the caller must then call ``settle``.
        """
        self._send([b"S", *map(os.fsencode, request.fields())], [listener.fileno()])
        done: asyncio.Future[int] = self._loop.create_future()
        self._starts[request.name] = done
        while not (await asyncio.wait({done}, timeout=SLOW_START_S))[0]:
            await self._ping()
        return done.result()

    async def settle(self, name: str, timeout_s: float) -> None:
        """Wait until a start has ended, whether it succeeded or not."""
        done = self._starts.get(name)
        if done is not None and (await asyncio.wait({done}, timeout=timeout_s))[0]:
            done.exception()  # mark as retrieved: its caller was cancelled

    async def _ping(self) -> None:
        """Ping the starter. Kill it if it does not answer in time."""
        if self._pong is None or self._pong.done():
            self._pong = self._loop.create_future()
            self._send([b"P"], ())
        answered, _ = await asyncio.wait({self._pong}, timeout=ANSWER_S)
        if not answered and not self._gone:  # another task may have killed it
            log.error("the starter of sandboxes does not answer; it is killed and another is started")
            self._kill()
            self._fail()

    def request_exit_status(self, pid: int, on_status: OnExitStatus) -> None:
        """Request the exit status of an ended init process. ``on_status`` gets it, or None if it is unknown."""
        self._status_requests[pid] = on_status
        try:
            self._send([b"E", str(pid).encode()], ())
        except RuntimeUnavailable:
            self._report_status(pid, None)

    def forget(self, pid: int) -> None:
        self._status_requests.pop(pid, None)

    def drop_ended(self) -> None:
        """Make the starter drop the statuses of ended processes that were never requested."""
        with contextlib.suppress(RuntimeUnavailable):
            self._send([b"B"], ())

    @property
    def gone(self) -> bool:
        return self._gone or self._process.returncode is not None

    async def close(self) -> None:
        """End the starter. Starts that are running are killed; started sandboxes live on."""
        self._fail()
        ended = asyncio.ensure_future(self._process.communicate())
        if not (await asyncio.wait({ended}, timeout=ANSWER_S))[0]:
            self._kill()
            if not (await asyncio.wait({ended}, timeout=ANSWER_S))[0]:
                log.error("the starter of sandboxes, process %d, does not end; it is left running", self._process.pid)
                ended.cancel()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def _send(self, fields: Sequence[bytes], descriptors: Sequence[int]) -> None:
        if self._gone:
            raise RuntimeUnavailable("the starter of sandboxes has ended; retry the boot")
        packet = b"\0".join(fields) + b"\0"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._socket.sendmsg([packet], rights)
        except OSError as error:
            self._fail()
            raise RuntimeUnavailable(f"the starter of sandboxes has failed: {error.strerror}; retry the boot") from None

    def _receive(self) -> None:
        while True:
            try:
                packet = self._socket.recv(PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._fail()
                return
            self._handle_packet(packet.rstrip(b"\0").split(b"\0"))

    def _handle_packet(self, fields: Sequence[bytes]) -> None:
        match fields:
            case [b"S", name, status]:
                done = self._starts.pop(name.decode(), None)
                if done is not None and not done.done():
                    done.set_result(int(status))
            case [b"E", pid, status]:
                self._report_status(int(pid), int(status) if int(status) >= 0 else None)
            case [b"P"] if self._pong is not None and not self._pong.done():
                self._pong.set_result(None)
            case _:
                pass

    def _report_status(self, pid: int, status: int | None) -> None:
        on_status = self._status_requests.pop(pid, None)
        if on_status is not None:
            on_status(status)

    def _fail(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for future in self._starts.values():
            if not future.done():
                future.set_exception(RuntimeUnavailable("the starter of sandboxes has ended; retry the boot"))
                future.exception()  # mark as retrieved: its caller may have been cancelled
        if self._pong is not None and not self._pong.done():
            self._pong.set_result(None)  # no answer will come
        for pid in list(self._status_requests):
            self._report_status(pid, None)


def _preload_env(library: str) -> dict[str, str]:
    """Return the variables that load a library before ``main``. Symbols are bound at once, not again in each fork."""
    return {"LD_PRELOAD": f"./{library}", "LD_BIND_NOW": "1"}
