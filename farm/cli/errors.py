"""How a command fails: one line that says what is wrong and what to do; and how any text is shown to a person."""

_SHOWN = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
_SHOWN |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def shown(text: str) -> str:
    """``text`` with pictures in place of the control characters that a terminal would obey: it may be anybody's."""
    return text.translate(_SHOWN)


class CliError(Exception):
    """The command cannot go on; exit code 1. The message is one line and names the remedy."""


class Interrupted(Exception):
    """A signal ended the command after it had taken back what it began; exit code 130. The message says what."""
