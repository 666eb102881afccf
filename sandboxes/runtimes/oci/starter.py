"""The owner's side of ``sandboxes/starter/starter.c``, which says what is sent."""

import array
import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable

log = logging.getLogger(__name__)

PACKET_BYTES = 64 * 1024
LAYERS_MAX = 120
READY_S = 10.0
LONG_S, ANSWER_S = 15.0, 15.0
"""A start that takes so long is a reason to ask whether anybody listens, and no answer to that one to give up: a
starter waits for nothing itself, so one that says nothing was stopped, or the machine has lost it."""
UNHEARD_BYTES = 16 * 1024 * 1024
"""What may wait until the starter hears it, by half of the kernel's count, which is some 770 bytes for a packet: the
ends of 40,000 sandboxes."""
SO_SNDBUFFORCE = 32
"""socket(7), which the library of that name lacks."""

# Where the starter puts things, in a mount namespace that only it and its children see.
PLACE = Path("/mnt")
DISK, ROOTFS, USERS, STATE, DEVICES = (PLACE / name for name in ("disk", "rootfs", "users", "state", "dev"))

StarterMessage = Callable[[int | None], None]


class Starter:
    """One starter process. Calls raise RuntimeUnavailable when it is gone."""

    def __init__(self, process: asyncio.subprocess.Process, host: socket.socket) -> None:
        self._process = process
        self._host = host
        self._starts: dict[str, asyncio.Future[int]] = {}
        self._asked: dict[int, StarterMessage] = {}
        self._gone = False
        self._listens: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(host, self._receive)

    @classmethod
    async def launch(
        cls,
        starter: Path,
        *,
        program: int,
        inside: Path | None,
        disk: int,
        layer: int,
        needed: Sequence[Path],
        hierarchies: Sequence[Path],
    ) -> "Starter":
        """``program``: the OCI runtime, which the library ``inside``, beside ``starter``, makes one where it is given.
        ``disk``, ``layer``: detached mounts. All descriptors stay the caller's to close. ``needed``: paths
        with no symlink in them, where programs and layers are."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with contextlib.suppress(PermissionError):  # then all that wait are the fewer
            ours.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, UNHEARD_BYTES)
        given = (theirs.fileno(), disk, layer, program)
        try:
            process = await asyncio.create_subprocess_exec(
                starter,
                *map(str, given),
                *needed,
                "--",
                *hierarchies,
                executable=starter if inside is None else f"/proc/self/fd/{program}",
                # Nothing else of ours, or the OCI runtime would heed what this process was told: NOTIFY_SOCKET, say.
                env={"PATH": os.defpath} | (_brought_in(inside.name) if inside else {}),
                cwd=starter.parent,  # where the library is too: a list of libraries has no way to quote a path
                pass_fds=given,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            ours.close()
            raise RuntimeUnavailable(f"{starter} cannot be run: {error.strerror}") from None
        finally:
            theirs.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                if await asyncio.get_running_loop().sock_recv(ours, PACKET_BYTES):
                    return cls(process, ours)
        ours.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        _, said = await process.communicate()
        raise RuntimeUnavailable(f"the starter did not start: {said.decode(errors='replace').strip()}")

    async def start(
        self,
        name: str,
        *,
        first_id: int,
        rlimits: Mapping[int, int],
        options: str,
        above: Path | None,
        layers: Sequence[Path],
        command: Sequence[str | Path],
        listener: socket.socket,
    ) -> int:
        """Mount an overlay with ``options`` on ``layers``, topmost first, and run ``command`` on it; its status, as a
        shell's. Users inside are those from ``first_id`` outside; 0: the same. ``above``: what takes the place of the
        layer that every sandbox has. A layer is a directory, or a file or block device that holds an EROFS image.

        Whoever is cancelled while this goes on must ``settle`` it: it goes on all the same.
        """
        limited = " ".join(f"{number} {value}" for number, value in rlimits.items())
        fields = (name, str(first_id), limited, options, above or "", str(len(layers)), *layers, *command)
        self._send([b"S", *map(os.fsencode, fields)], [listener.fileno()])
        done: asyncio.Future[int] = self._loop.create_future()
        self._starts[name] = done
        while not (await asyncio.wait({done}, timeout=LONG_S))[0]:
            await self._rouse()
        return done.result()

    async def settle(self, name: str, timeout_s: float) -> None:
        """What a start was going to bring is there when this returns, or will never be."""
        done = self._starts.get(name)
        if done is not None and (await asyncio.wait({done}, timeout=timeout_s))[0]:
            done.exception()  # seen: whoever waited for the start has gone

    async def _rouse(self) -> None:
        """Given up where it does not say in time that it listens."""
        if self._listens is None or self._listens.done():
            self._listens = self._loop.create_future()
            self._send([b"P"], ())
        answered, _ = await asyncio.wait({self._listens}, timeout=ANSWER_S)
        if not answered and not self._gone:  # or another start has seen it
            log.error("the starter of sandboxes says nothing any more; it is killed, and another started")
            self._kill()
            self._lose()

    def ask_end(self, pid: int, told: StarterMessage) -> None:
        """Of a first process that has ended: ``told`` is called with its status, None where that is not known."""
        self._asked[pid] = told
        try:
            self._send([b"E", str(pid).encode()], ())
        except RuntimeUnavailable:
            self._tell(pid, None)

    def forget(self, pid: int) -> None:
        self._asked.pop(pid, None)

    def bury(self) -> None:
        """What ended without anybody's knowing of it is let go."""
        with contextlib.suppress(RuntimeUnavailable):
            self._send([b"B"], ())

    @property
    def gone(self) -> bool:
        return self._gone or self._process.returncode is not None

    async def close(self) -> None:
        """What it was starting is killed; what it has started goes on."""
        self._lose()
        ended = asyncio.ensure_future(self._process.communicate())
        if not (await asyncio.wait({ended}, timeout=ANSWER_S))[0]:
            self._kill()
            if not (await asyncio.wait({ended}, timeout=ANSWER_S))[0]:
                log.error("the starter of sandboxes, process %d, does not end; it is left", self._process.pid)
                ended.cancel()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def _send(self, fields: Sequence[bytes], descriptors: Sequence[int]) -> None:
        if self._gone:
            raise RuntimeUnavailable("the starter of sandboxes has ended")
        packet = b"\0".join(fields) + b"\0"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._host.sendmsg([packet], rights)
        except OSError as error:
            self._lose()
            raise RuntimeUnavailable(f"the starter of sandboxes does not listen: {error.strerror}") from None

    def _receive(self) -> None:
        while True:
            try:
                packet = self._host.recv(PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._lose()
                return
            self._take(packet.rstrip(b"\0").split(b"\0"))

    def _take(self, fields: Sequence[bytes]) -> None:
        match fields:
            case [b"S", name, status]:
                done = self._starts.pop(name.decode(), None)
                if done is not None and not done.done():
                    done.set_result(int(status))
            case [b"E", pid, status]:
                self._tell(int(pid), int(status) if int(status) >= 0 else None)
            case [b"P"] if self._listens is not None and not self._listens.done():
                self._listens.set_result(None)
            case _:
                pass

    def _tell(self, pid: int, status: int | None) -> None:
        told = self._asked.pop(pid, None)
        if told is not None:
            told(status)

    def _lose(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._loop.remove_reader(self._host)
        self._host.close()
        for future in self._starts.values():
            if not future.done():
                future.set_exception(RuntimeUnavailable("the starter of sandboxes has ended"))
                future.exception()  # seen: whoever waited for the start may have gone
        if self._listens is not None and not self._listens.done():
            self._listens.set_result(None)  # there is nobody to wait for
        for pid in list(self._asked):
            self._tell(pid, None)


def _brought_in(library: str) -> dict[str, str]:
    """Into a program, before its ``main``. What its libraries call is looked up once, and not anew in each fork."""
    return {"LD_PRELOAD": f"./{library}", "LD_BIND_NOW": "1"}
