"""The two seams of the package: a runtime makes sandboxes, a sandbox runs commands and holds files."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sandboxes.egress import EgressLog
from sandboxes.snapshot import Snapshot
from sandboxes.spec import SandboxSpec

MIB = 1024 * 1024
WALK_DIRECTORIES_MAX = 65_536
"""Directories cost a walk the most, and are no part of what it finds."""
WALK_FILES_MAX = 262_144
"""What is found is listed in this process, at some 5 µs a file."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A stream read with a cap: its first and last bytes, and how many between them were not kept."""

    head: bytes
    tail: bytes = b""
    elided: int = 0

    @property
    def whole(self) -> bool:
        return not self.elided


@dataclass(frozen=True, slots=True)
class ExecResult:
    """``exit_code`` is None when the command timed out; a signal's death is 128 + its number, as in a shell.

    ``stderr`` is empty where the call merged the two. ``shell_lost``: the session's shell ended with the command
    (``exit``, ``exec``, a kill or a time-out), so that the next command begins in a fresh one. ``spill`` is the path
    inside the sandbox of the full output where some was elided.
    """

    exit_code: int | None
    stdout: Capture
    stderr: Capture
    timed_out: bool
    duration_s: float
    shell_lost: bool = False
    spill: str | None = None

    @property
    def last_line(self) -> str:
        """Of standard output, as far as it is not blank, at most 200 characters; it may be anybody's."""
        lines = (self.stdout.tail or self.stdout.head).decode(errors="replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


@dataclass(frozen=True, slots=True)
class JobOutput:
    """What a job said since it was last asked. ``exit_code`` None: it runs still. ``duration_s`` is since it began.

    ``spill`` is the path inside the sandbox of all that was said since then, where some was elided.
    """

    output: Capture
    exit_code: int | None
    duration_s: float
    spill: str | None = None


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """``path`` is relative to the walked root (bytes that are not UTF-8 as surrogates), or as asked in ``stat``."""

    path: str
    kind: FileKind
    mode: int
    size: int
    mtime_ns: int


class Sandbox(Protocol):
    """One isolated place. Every call may raise SandboxGone; file calls may raise PathError.

    Calls may be made concurrently, except on one shell session. Paths are the sandbox's own; a relative one starts
    at the working directory of the spec.
    """

    @property
    def id(self) -> str: ...

    @property
    def spec(self) -> SandboxSpec: ...

    @property
    def image_digest(self) -> str: ...

    @property
    def workdir(self) -> str: ...

    @property
    def egress_log(self) -> EgressLog:
        """What it has asked of its proxy; grows while there is one."""
        ...

    async def ping(self) -> None:
        """Returns when it has answered."""
        ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float,
        output_limit: int = MIB,
        merge_stderr: bool = False,
        login: bool = False,
        call_id: str | None = None,
    ) -> ExecResult:
        """Run a program. At the time-out its whole process tree is killed, also what called setsid.

        ``login``: it finds what shells find, beside the image's and the spec's environment (``runtimes.login_env``).

        ``call_id`` is the caller's own name for the call. The same call repeated by the same name is not run again:
        it gets the answer of the first, which may run still, also after ``Runtime.adopt`` in another process. A
        sandbox remembers the last 256 answers, as many of them as 4 MiB hold; what it has forgotten it refuses with
        AnswerLost, of the last 4096. Another call by the same name is refused with SpecError.
        """
        ...

    async def shell(
        self,
        command: str,
        *,
        session: str = "main",
        timeout_s: float,
        output_limit: int = MIB,
        call_id: str | None = None,
    ) -> ExecResult:
        """Run a command in a shell that lives on: directory, variables, functions and jobs survive. Streams merged.

        ``call_id`` as for ``exec``.
        """
        ...

    async def restart_shell(self, session: str = "main") -> None: ...

    async def start_job(self, command: str, *, session: str = "main", call_id: str | None = None) -> int:
        """Run a command in the background, on a terminal of its own; the job's number.

        It begins as the session's shell stands: directory, variables, functions, options. It outlives it, also where a
        time-out kills it. At most 32 run at a time; the oldest that have ended are forgotten for new ones. Raises
        JobError where there is no room.
        """
        ...

    async def job_output(
        self, job: int, *, wait_s: float = 0.0, quiet_s: float = 0.0, call_id: str | None = None
    ) -> JobOutput:
        """What it said since the last call, once it has ended or ``wait_s`` are over; at most 28,000 bytes are kept.

        ``quiet_s``: also once it has said something, and then nothing for so long. Raises JobError for a job that is
        not known.
        """
        ...

    async def job_input(self, job: int, data: bytes, *, timeout_s: float = 5.0) -> int:
        """Type into its terminal, where ``\\x03`` interrupts and ``\\x04`` on an empty line ends the input.

        How many bytes were taken: fewer than there are where it does not read them in time. Raises JobError for a job
        that has ended or is not known.
        """
        ...

    async def end_job(self, job: int) -> None:
        """Kill its whole process tree, and of one that has ended what it left. Raises JobError for one not known."""
        ...

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 64 * MIB) -> bytes:
        """At most ``limit`` bytes of a regular file; never blocks on a FIFO or a device."""
        ...

    async def write_file(
        self, path: str, content: bytes, *, executable: bool | None = None, parents: bool = False, new: bool = False
    ) -> bool:
        """Replace a file's content in one step; whether there was one. ``executable`` None keeps its mode.

        A symlink at ``path`` is followed, as an editor would. ``new``: whatever is there is left, and refused with
        EEXIST or as what cannot be written.
        """
        ...

    async def write_link(self, path: str, target: str) -> None:
        """Put a symlink at ``path`` in place of whatever file is there; parents are made, and never followed links."""
        ...

    async def remove_path(self, path: str) -> None:
        """Remove a file, a symlink (not what it names) or a whole directory. Nothing there is no error."""
        ...

    async def stat(self, path: str) -> FileEntry:
        """Without following a symlink at the end of ``path``."""
        ...

    async def walk(self, root: str, *, prune: Sequence[str] = ()) -> list[FileEntry]:
        """Everything below ``root`` but directories, sorted by path, no symlink followed.

        A directory whose base name is in ``prune`` is not entered. Refused with E2BIG where more than
        ``WALK_DIRECTORIES_MAX`` would have to be, or more than ``WALK_FILES_MAX`` files were found.
        """
        ...

    async def kill_all(self) -> None:
        """Every process but the tool server is dead when this returns."""
        ...

    async def shut_egress(self) -> None:
        """Nothing inside reaches any host when this returns, nor ever again. Idempotent; raises nothing."""
        ...

    async def snapshot(self) -> Snapshot:
        """A copy of its files as they are at one moment; it stands still meanwhile, and goes on whatever happens.

        Copied is what lies in its file system, whoever owns it: neither processes, nor shells and what they know, nor
        what is in memory only (``/dev/shm``, ``/proc``). Also of a sandbox whose processes have ended, as long as it is
        not removed. Raises SnapshotError.
        """
        ...

    async def fork(self, *, boot_timeout_s: float = 60.0) -> "Sandbox":
        """Another sandbox of the same spec on a copy of its files, as by ``snapshot`` and ``Runtime.create``.

        The two share nothing afterwards. Where this one's egress is shut, so is the other's.
        """
        ...

    def assign(self, spec: SandboxSpec) -> None:
        """It goes by ``spec`` from now on, which asks for nothing but what was booted."""
        ...

    async def remove(self) -> None:
        """End it and all it holds. Idempotent; safe under cancellation."""
        ...


class Runtime(Protocol):
    """Makes sandboxes on this machine, and takes away what dead owners left."""

    @property
    def name(self) -> str: ...

    @property
    def degraded(self) -> tuple[str, ...]:
        """What its sandboxes go without on this machine, a line each."""
        ...

    async def create(self, spec: SandboxSpec, *, base: Snapshot | None = None, boot_timeout_s: float = 60.0) -> Sandbox:
        """A sandbox that has answered once. Raises SpecError, ImageError, BootError or RuntimeUnavailable.

        Its files are those of the image, or of ``base``: a snapshot by this runtime of a sandbox of the same image;
        SnapshotError where it does not start on those, say because the directory to work in was removed.
        Nothing is left behind when it raises or is cancelled.
        """
        ...

    def scope(
        self, spec: SandboxSpec, *, base: Snapshot | None = None, boot_timeout_s: float = 60.0
    ) -> AbstractAsyncContextManager[Sandbox]:
        """``create`` for ``async with``; removed at the end, whatever happened, shielded from a second cancel."""
        ...

    async def digest_of(self, image: str) -> str:
        """What the image's name means now. Raises ImageError where there is no such image."""
        ...

    async def release_images(self) -> None:
        """Let go of images that no sandbox is made of, where some are held to be at hand: then they can be removed."""
        ...

    def living(self) -> AsyncIterator[str]:
        """Ids of the sandboxes on this machine that this runtime's owner holds."""
        ...

    async def adopt(self) -> list[Sandbox]:
        """Take over the living sandboxes that a process of the same owner left when it died, each as it was, with what
        runs inside; what else it left is removed. To be called once, before anything is created.

        A command that was under way goes on; its answer is for whoever repeats the call by its ``call_id``.
        """
        ...

    async def reap(self) -> int:
        """Remove what no living owner claims, on the whole machine; how many sandboxes that were."""
        ...

    async def close(self) -> None:
        """Remove every sandbox of this owner and let go of the daemon."""
        ...
