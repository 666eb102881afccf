"""How a command fails: one line that says what is wrong and what to do."""


class CliError(Exception):
    """The command cannot go on; exit code 1. The message is one line and names the remedy."""


class Interrupted(Exception):
    """A signal ended the command after it had taken back what it began; exit code 130. The message says what."""
