"""Bytes of a sandbox as text that a policy may read: always valid Unicode, never longer in characters than in bytes.

What a command printed: terminal sequences (colour, cursor, titles) are taken out, CR LF becomes a line end, of a line
that a lone CR lets be overwritten the last state is shown, invalid UTF-8 becomes U+FFFD. In lines of files a lone CR
is a line end. Every other control character is shown by its picture: NUL as ``␀``, ESC as ``␛``.
A file's lines keep their terminal sequences, shown so.
"""

import codecs
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from sandboxes.interface import Capture

_TERMINAL = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|[PX^_][^\x1b]*\x1b\\"  # DCS, SOS, PM, APC
    r"|[ -/]+[0-~]"  # character sets
    r"|[0-OQ-WYZ\\`-~]"  # single functions
    r")"
)
_PICTURES = (
    {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}
    | {0x7F: "\u2421"}
    | dict.fromkeys(range(0x80, 0xA0), "\ufffd")
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LINE_END = re.compile(r"\r\n?")
_ERASE_LINE = "\x1b[2K"
_ERASE_REST = re.compile(r"(?:\x1b\[[0-9;]*m)*\x1b\[0?K")
_CRLF = re.compile(r"(?<!\r)\r+\n")


def visible(text: str) -> str:
    """``text`` with every control character but tab and newline shown by its picture."""
    # Translation is fast where all is ASCII, and seven times slower than a search where it is not.
    return text.translate(_PICTURES) if text.isascii() else _CONTROL.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    return _PICTURES[ord(found[0])]


def printed(data: bytes) -> str:
    """What a program printed."""
    return _readable(data.decode("utf-8", "replace"))


def _readable(text: str) -> str:
    return visible(_LINE_END.sub("\n", _TERMINAL.sub("", text)))


def _on_a_terminal(text: str) -> str:
    """Lines as a terminal leaves them where a CR took the cursor back: progress bars at their last."""
    if "\r" in text:
        lines = _CRLF.sub("\n", text).split("\n")
        text = "\n".join(_last_state(line) if "\r" in line else line for line in lines)
    return visible(_TERMINAL.sub("", text))


def _last_state(line: str) -> str:
    """What was written last lies over what was written before it, unless that was erased."""
    shown, length = list[str](), 0
    for written in reversed(line.split("\r")):
        _, erased, left = written.rpartition(_ERASE_LINE)
        plain = _TERMINAL.sub("", left)
        if len(plain) > length:
            shown.append(plain[length:])
            length = len(plain)
        if erased or _ERASE_REST.match(written):
            break
    return visible("".join(shown))


def captured(capture: Capture, spill: str | None) -> str:
    """Head and tail of a capped stream with what lies between them counted; characters cut in two are dropped."""
    if capture.whole:
        return _on_a_terminal((capture.head + capture.tail).decode("utf-8", "replace"))
    head = codecs.getincrementaldecoder("utf-8")("replace").decode(capture.head)
    start = next((i for i, byte in enumerate(capture.tail[:3]) if byte & 0xC0 != 0x80), min(3, len(capture.tail)))
    tail = capture.tail[start:].decode("utf-8", "replace")
    where = f"; the full output, 64 MiB at most, is in {shown_name(spill)}" if spill else ""
    return f"{_on_a_terminal(head)}\n[... {capture.elided:,} bytes elided{where} ...]\n{_on_a_terminal(tail)}"


def shown_name(name: str | bytes) -> str:
    """A file name on one line: bytes that are not UTF-8 as ``\\xNN``, control characters by their pictures."""
    text = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
    return shown_line(text).replace("\n", "␊").replace("\t", "␉")


def shown_line(line: str) -> str:
    """A line, or lines, of a file decoded with ``surrogateescape``: bytes that are not UTF-8 as ``\\xNN``."""
    return visible(line.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


def clipped(text: str, limit: int) -> str:
    """``text``, its middle taken out where it has more than ``limit`` characters (at least 100)."""
    if len(text) <= limit:
        return text
    keep = limit - 60
    head, tail = text[: keep - keep // 2], text[len(text) - keep // 2 :]
    return f"{head}\n[... {len(text) - keep:,} characters elided ...]\n{tail}"


def fitting(lines: Sequence[str], limit: int, *, beside: int = 1) -> int:
    """How many of the first ``lines``, each with ``beside`` characters more (its newline), fit in ``limit``."""
    lengths = list(accumulate(map(len, lines)))
    return bisect_right(range(len(lines)), limit, key=lambda at: lengths[at] + beside * (at + 1))
