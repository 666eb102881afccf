"""Writes the tripwire's findings into its FIFO. Runs in the sandbox, as part of ``audit_hook``."""

import os
import time
from itertools import count
from typing import Any

MAX_SEND_ATTEMPTS = 6000


def open_channel(settings: Any) -> Any:
    """Return a function that writes a line at once, and the FIFO's device and inode; None if the FIFO has no reader.

    The FIFO is opened write-only, so that code under test cannot read lines back from its descriptor. Each line begins
    with a line break, which ends any text that code under test wrote before. If code under test has filled the FIFO,
    the function waits for the reader.
    """
    open_file, write, fstat, getpid, sleep, text_of = os.open, os.write, os.fstat, os.getpid, time.sleep, str
    fifo, nonce = settings["fifo"], settings["nonce"]
    attempts = iter(range(MAX_SEND_ATTEMPTS))  # for all lines together, because waiting delays the tests
    lines_by_process: Any = {}  # process id → a counter of the lines that it wrote

    def open_fifo() -> int:
        return open_file(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    try:
        channel = [open_fifo()]
        identity = fstat(channel[0])[1:3]
    except OSError:
        return None

    def send(kind: str, path: str = "", line: int = 0, what: str = "") -> None:
        number = next(lines_by_process.setdefault(getpid(), count(1)))
        clean = " ".join(what.split())[:200] if kind != "goodbye" else text_of(number)
        text = "\t".join([nonce, text_of(getpid()), kind, path.replace("\t", " ")[-300:], text_of(line), clean])
        data = b"\n" + text.replace("\n", " ").encode("utf-8", "replace") + b"\n"
        for _ in attempts:
            try:
                if fstat(channel[0])[1:3] != identity:
                    raise OSError
                write(channel[0], data)
                return
            except BlockingIOError:
                sleep(0.001)
            except OSError:
                try:
                    channel[0] = open_fifo()
                except OSError:
                    return

    return send, identity
