"""Render bytes from a sandbox as text for a policy: always valid Unicode, never more characters than bytes.

Output of commands: terminal sequences (colour, cursor, titles) are removed, CR LF becomes LF, a line that a lone CR
overwrites shows its last state, and invalid UTF-8 becomes U+FFFD. In lines of files a lone CR is a line end. Every
other control character is shown as its control picture: NUL as ``␀``, ESC as ``␛``. Lines of files keep their terminal
sequences, with ESC shown as its picture.
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
    """Replace every control character except tab and newline by its control picture."""
    # Translation is fast for ASCII text, and seven times slower than a regular expression for other text.
    return text.translate(_PICTURES) if text.isascii() else _CONTROL.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    return _PICTURES[ord(found[0])]


def printed(data: bytes) -> str:
    """Render the output of a program."""
    return _without_terminal_codes(data.decode("utf-8", "replace"))


def _without_terminal_codes(text: str) -> str:
    return visible(_LINE_END.sub("\n", _TERMINAL.sub("", text)))


def _overwritten(text: str) -> str:
    """Render lines as a terminal shows them after each CR overwrote its line: a progress bar shows its last state."""
    if "\r" in text:
        lines = _CRLF.sub("\n", text).split("\n")
        text = "\n".join(_last_state(line) if "\r" in line else line for line in lines)
    return visible(_TERMINAL.sub("", text))


def _last_state(line: str) -> str:
    """Return the final content of a line: each later part overwrites the earlier parts unless it erased them."""
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
    """Render a size-limited stream: head, the number of elided bytes, tail. Characters cut in two are dropped.

    ``spill`` is the path of the file with the full output, if there is one.
    """
    if capture.whole:
        return _overwritten((capture.head + capture.tail).decode("utf-8", "replace"))
    head = codecs.getincrementaldecoder("utf-8")("replace").decode(capture.head)
    start = next((i for i, byte in enumerate(capture.tail[:3]) if byte & 0xC0 != 0x80), min(3, len(capture.tail)))
    tail = capture.tail[start:].decode("utf-8", "replace")
    where = f"; the full output, 64 MiB at most, is in {shown_name(spill)}" if spill else ""
    return f"{_overwritten(head)}\n[... {capture.elided:,} bytes elided{where} ...]\n{_overwritten(tail)}"


def shown_name(name: str | bytes) -> str:
    """Render a file name on one line: bytes that are not UTF-8 as ``\\xNN``, control characters as control pictures."""
    text = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
    return shown_line(text).replace("\n", "␊").replace("\t", "␉")


def shown_line(line: str) -> str:
    """Render lines of a file decoded with ``surrogateescape``: bytes that are not UTF-8 as ``\\xNN``."""
    return visible(line.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


def fitting(lines: Sequence[str], limit: int, *, beside: int = 1) -> int:
    """Return how many of the first ``lines`` fit in ``limit`` characters.

    ``beside`` is the number of extra characters of each line, such as its newline.
    """
    lengths = list(accumulate(map(len, lines)))
    return bisect_right(range(len(lines)), limit, key=lambda at: lengths[at] + beside * (at + 1))
