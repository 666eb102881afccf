"""The write-ahead log of an episode, from which another process goes on if the episode's process is killed.

There is one file for each attempt. It holds the policy's replies before their calls run, the result of each call, and
the change before it is judged. It has to survive the process but not the machine, because no sandbox survives its
machine; so nothing waits for the disk. An entry is one write (``entries``). Its ``at_s`` is in seconds on the
episode's own clock, which stands still while no process runs the episode.

A new process first scans the journals of the old one, an entry at a time, and counts itself in each. It reads a journal
into memory when the episode goes on. So a journal that crashes its reader does so at most MAX_RESTARTS times, and a
node holds no more journals in memory than it runs episodes.

``writer`` writes a journal, ``state`` reads one, and ``directory`` holds those of a node.
"""

from farm.episode.journal.directory import JournalDirectory
from farm.episode.journal.entries import JournalError
from farm.episode.journal.state import MAX_RESTARTS, InterruptedEpisode, JournalState, RecordedTurn
from farm.episode.journal.writer import EpisodeJournal, TurnJournal

__all__ = [
    "MAX_RESTARTS",
    "EpisodeJournal",
    "InterruptedEpisode",
    "JournalDirectory",
    "JournalError",
    "JournalState",
    "RecordedTurn",
    "TurnJournal",
]
