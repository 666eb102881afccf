"""Self-summarisation: its settings, and the prompt that asks a policy for a summary."""

from dataclasses import dataclass

DEFAULT_QUERY = """\
Your context is almost full and will be replaced by a summary. Write this summary now, without a tool call. It is \
all that you keep of this conversation, apart from the task itself. Write what you have learned (files, functions, \
commands and their results), what you have changed and why, what you tried without success, and what remains to be \
done, in order. Give exact paths and names, and leave out everything that you do not need."""


@dataclass(frozen=True, slots=True)
class SummarySettings:
    """Settings of self-summarisation, in which the policy replaces its own context by a summary that it writes.

    ``trigger_tokens``: size of the context from which on a summary is requested. ``max_tokens`` bounds a summary.
    ``query`` is the message that requests it. ``max_summaries`` None: as many as the episode needs.
    """

    trigger_tokens: int
    max_tokens: int
    query: str = DEFAULT_QUERY
    max_summaries: int | None = None
