"""Log files under ``STATE_DIR/log``: one line a record, with time, level, node, run, rollout and turn.

Each file has one writer, and is kept when the farm goes down:

| file             | writer                                       |
|------------------|----------------------------------------------|
| `farm.log`       | the process that `farm up` starts            |
| `scheduler.log`  | the scheduler, on the head                   |
| `node-ID.log`    | the node agent                               |
| `gateway.log`    | the gateway, on the head                     |

`farm.out` is what `farm up --detach` and its libraries print.
"""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

MOST_BYTES = 16 * 1024 * 1024
"""The size at which a file is rotated."""

OLDER_FILES = 4
MOST_NODES = 10
"""The number of nodes whose logs are kept in one directory."""

_LIBRARIES = ("docker", "httpcore", "httpcore2", "httpx", "httpx2", "urllib3", "uvicorn")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])?")
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}

_episode: ContextVar[tuple[str, str]] = ContextVar("farm_episode", default=("", ""))
_turn: ContextVar[str] = ContextVar("farm_turn", default="")
_own_node = ""


def name_node(node_id: str) -> None:
    """Set the node of all lines of this process that name no other."""
    global _own_node
    _own_node = node_id


def name_episode(run_id: str, rollout_id: str) -> None:
    """Set the run and the rollout of all lines of this task, and of the tasks that it starts."""
    _episode.set((run_id, rollout_id))
    _turn.set("")


def name_turn(index: int | None) -> None:
    """Set the turn, counted from 0, of all lines of this task, and of the tasks that it starts. None: no turn."""
    _turn.set("" if index is None else str(index))


class LineFormatter(logging.Formatter):
    """Format a record as one line. Further lines of its text are indented, so that no text can look like a record.

    ``extra`` of a record may have ``node``, ``run``, ``rollout`` and ``turn``.
    """

    def format(self, record: logging.LogRecord) -> str:
        run, rollout = _episode.get()
        named = {"node": _own_node, "run": run, "rollout": rollout, "turn": _turn.get()}
        fields = " ".join(f"{name}={getattr(record, name, '') or value or '-'}" for name, value in named.items())
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        text = f"{fields} {record.name}: {super().format(record)}"
        clean = _ESCAPES.sub("", text).translate(_CONTROLS)
        return f"{time} {record.levelname} " + clean.replace("\n", "\n    ")


def open_log(path: Path, level: str) -> logging.Handler:
    """Write what this process logs from now on to ``path``. Return the handler. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = RotatingFileHandler(path, maxBytes=MOST_BYTES, backupCount=OLDER_FILES, encoding="utf-8")
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler


@contextmanager
def logged(path: Path, level: str) -> Iterator[None]:
    """Write what this process logs in the block to ``path``, and warnings also to stderr. Raises OSError."""
    root = logging.getLogger()
    before = root.level
    handlers = [open_log(path, level)]
    if not _is_stderr(path.with_suffix(".out")):
        shown = logging.StreamHandler(sys.stderr)
        shown.setFormatter(LineFormatter())
        shown.setLevel(logging.WARNING)
        root.addHandler(shown)
        handlers.append(shown)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(before)


def _is_stderr(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(2))
    return False


def node_log(directory: Path, node_id: str) -> Path:
    """Return the log file of a node."""
    return directory / f"node-{node_id.removeprefix('node-')}.log"


def remove_old_nodes(directory: Path, own: Path) -> None:
    """Remove log files of nodes that are not among the ``MOST_NODES`` latest ones; ``own`` is kept."""
    latest: dict[str, float] = {}
    for path in directory.glob("node-*.log*"):
        name = path.name.rpartition(".log")[0]
        with contextlib.suppress(FileNotFoundError):
            latest[name] = max(latest.get(name, 0.0), path.stat().st_mtime)
    latest.pop(own.stem, None)
    for name in sorted(latest, key=lambda one: latest[one], reverse=True)[MOST_NODES - 1 :]:
        for number in ("", *(f".{number}" for number in range(1, OLDER_FILES + 1))):
            (directory / f"{name}.log{number}").unlink(missing_ok=True)
