"""The state directory. At most one farm runs from it: a lock proves that it runs, ``run/farm.json`` describes it."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from farm.cluster.errors import ClusterError

_POLL_S = 0.05
_STOP_S = 90.0


@dataclass(frozen=True, slots=True)
class FarmInfo:
    """The description of a running farm, or of a node that joined one.

    ``role`` is ``head`` or ``node``. ``url`` is the gateway's, or empty on a node. ``address`` is the address that
    further nodes join if ``open_to_others``. ``pid`` is the process that owns all others. Times are Unix seconds.
    ``drain_grace_s``: seconds that the episodes of a node have to end when the node leaves.
    """

    state_dir: Path
    role: str
    pid: int
    url: str
    address: str
    node_id: str
    started_at: float
    open_to_others: bool = False
    drain_grace_s: float = 0.0


@contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Hold the lock of a state directory. The kernel releases it when this process ends. Raises ClusterError."""
    run_dir = _run_dir(state_dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(run_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ClusterError(
            f"{error.filename}: {error.strerror}; choose a writable state_dir, with --state-dir or FARM_STATE_DIR"
        ) from None
    try:
        if not _lock(run_dir, lock):
            info = _read(state_dir)
            who = f"a farm runs from {state_dir} already" + (f", as process {info.pid}" if info else "")
            raise ClusterError(f"{who}; stop it with `farm down`, or choose another state_dir")
        _sweep(run_dir)
        (run_dir / "death").unlink(missing_ok=True)
        try:
            yield
        finally:
            _sweep(run_dir)
    finally:
        os.close(lock)


def sweep_farm(state_dir: Path) -> None:
    """Remove the files that a killed farm left. Raises ClusterError if a farm runs."""
    if _run_dir(state_dir).exists():
        with locked(state_dir):
            pass


def note_scratch(run_dir: Path, directory: Path) -> None:
    """Record a directory that must be removed with the farm."""
    (run_dir / "scratch").write_text(str(directory))


def sweep_scratch(run_dir: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree((run_dir / "scratch").read_text(), ignore_errors=True)
        (run_dir / "scratch").unlink()


def _sweep(run_dir: Path) -> None:
    sweep_scratch(run_dir)
    for name in ("farm.json", "gateway.json", "drain.json", "join-token"):
        (run_dir / name).unlink(missing_ok=True)


def write_farm_info(info: FarmInfo) -> None:
    """Write the description that ``running_farm`` reads. What a node joins is kept after its end."""
    joined = _run_dir(info.state_dir) / "joined"
    if info.role == "node":
        joined.write_text(info.address)
    else:
        joined.unlink(missing_ok=True)
    _write_json(_run_dir(info.state_dir) / "farm.json", {**asdict(info), "state_dir": str(info.state_dir)})


def _write_json(path: Path, found: Mapping[str, object]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(found, indent=2) + "\n")
    fresh.replace(path)


@dataclass(frozen=True, slots=True)
class GatewayState:
    """The state of the gateway's process.

    ``pid`` is None while the gateway is being restarted; ``trouble`` is the cause. With a ``pid``, ``trouble`` says
    that the gateway gives no answer and when it is ended. ``since`` is in Unix seconds.
    """

    pid: int | None
    trouble: str
    since: float


def record_gateway_state(state_dir: Path, pid: int | None, trouble: str) -> None:
    """Write the state of the gateway's process."""
    _write_json(_run_dir(state_dir) / "gateway.json", asdict(GatewayState(pid, trouble, time.time())))


def read_gateway_state(state_dir: Path) -> GatewayState | None:
    """Return the state of the gateway's process, or None if the farm here has no gateway."""
    with contextlib.suppress(FileNotFoundError):
        return GatewayState(**json.loads((_run_dir(state_dir) / "gateway.json").read_text()))
    return None


@dataclass(frozen=True, slots=True)
class DrainState:
    """The work that a draining node waits for, until ``until`` (Unix seconds).

    ``episodes`` and ``sandboxes`` (of learners) are None until the node agent has answered.
    """

    until: float
    episodes: int | None = None
    sandboxes: int | None = None


def record_drain_state(state_dir: Path, state: DrainState | None) -> None:
    """Write the work that the draining node waits for, or, if None, that it waits no more."""
    path = _run_dir(state_dir) / "drain.json"
    if state is None:
        path.unlink(missing_ok=True)
    else:
        _write_json(path, asdict(state))


def read_drain_state(state_dir: Path) -> DrainState | None:
    """Return the work that the node here waits for, or None if it does not drain."""
    with contextlib.suppress(FileNotFoundError):
        return DrainState(**json.loads((_run_dir(state_dir) / "drain.json").read_text()))
    return None


def running_farm(state_dir: Path) -> FarmInfo | None:
    """Return the farm that runs from a state directory, or None if none runs or it is not up yet."""
    return _read(state_dir) if _held(state_dir) else None


def record_crash(state_dir: Path, cause: str) -> None:
    """Record the cause of a crash until the next farm locks the state directory."""
    with contextlib.suppress(FileNotFoundError):  # the farm died before it made the directory
        (_run_dir(state_dir) / "death").write_text(cause + "\n")


def recorded_crash(state_dir: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return (_run_dir(state_dir) / "death").read_text().strip()
    return ""


def last_joined(state_dir: Path) -> str:
    """Return the address that the last farm of a state directory joined, or "" if it was no node."""
    with contextlib.suppress(FileNotFoundError):
        return (_run_dir(state_dir) / "joined").read_text()
    return ""


def last_crash(state_dir: Path) -> str:
    """Return the cause of the last farm's crash, or "" if it ended in order."""
    if noted := recorded_crash(state_dir):
        return noted
    left = _read(state_dir)
    return f"process {left.pid} and what watched it were killed, or the machine went down" if left else ""


def stop_farm(
    info: FarmInfo,
    *,
    timeout_s: float = _STOP_S,
    at_once: bool = False,
    on_wait: Callable[[DrainState | None], object] = lambda state: None,
) -> None:
    """End a farm or a node, and return when all of it is gone. Raises ClusterError if it does not end in time.

    A node drains first, for at most its ``drain_grace_s``, unless ``at_once``. A node that drains already is not asked
    again, because that would end its episodes. ``on_wait`` is called all the while with the work that the node waits
    for, or with None if it does not drain.
    """
    if at_once or read_drain_state(info.state_dir) is None:
        _signal(info, signal.SIGTERM)
    if at_once and info.drain_grace_s:
        _signal(info, signal.SIGINT)  # the second signal; two of one number could arrive as one
    timeout_s += 0.0 if at_once else info.drain_grace_s
    deadline = time.monotonic() + timeout_s
    while _held(info.state_dir):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the farm (process {info.pid}) has not stopped in {timeout_s:.0f} s; `kill -9 {info.pid}` ends it, "
                "and the next `farm up` removes what it leaves"
            )
        on_wait(read_drain_state(info.state_dir))
        time.sleep(_POLL_S)


def _signal(info: FarmInfo, number: signal.Signals) -> None:
    try:
        os.kill(info.pid, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise ClusterError(f"the farm (process {info.pid}) belongs to another user; stop it as that user") from None


def _held(state_dir: Path) -> bool:
    try:
        lock = os.open(_run_dir(state_dir) / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    except PermissionError:
        raise ClusterError(f"{state_dir} belongs to another user; ask as that user") from None
    except OSError as error:  # the path cannot be a directory
        remedy = "choose another with --state-dir or FARM_STATE_DIR"
        raise ClusterError(f"state_dir {state_dir}: {error.strerror}; {remedy}") from None
    try:
        return not _lock(_run_dir(state_dir), lock, only_look=True)
    finally:
        os.close(lock)


def _lock(run_dir: Path, lock: int, *, only_look: bool = False) -> bool:
    """Try to take the lock, or with ``only_look`` only test it. Return whether it was free.

    A test holds the lock for a moment. All callers come here one at a time, by the lock of the directory; otherwise one
    caller could mistake another's test for a farm.
    """
    place = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if only_look:
            fcntl.flock(lock, fcntl.LOCK_UN)
    except BlockingIOError:
        return False
    finally:
        os.close(place)
    return True


def _read(state_dir: Path) -> FarmInfo | None:
    try:
        found = json.loads((_run_dir(state_dir) / "farm.json").read_text())
    except FileNotFoundError:
        return None
    return FarmInfo(**{**found, "state_dir": Path(found["state_dir"])})


def _run_dir(state_dir: Path) -> Path:
    return state_dir / "run"
