"""Errors of commands: one line with the fault and the remedy; and the safe display of text."""

_SHOWN = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
_SHOWN |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def shown(text: str) -> str:
    """Return ``text`` with visible pictures in place of control characters, which a terminal would execute."""
    return text.translate(_SHOWN)


class CliError(Exception):
    """Raised if the command cannot go on; exit code 1. The message is one line that names the remedy."""


class Interrupted(Exception):
    """Raised if a signal ended the command after it had undone its work; exit code 130. The message names the work."""
