"""Memory that no control group counts: measured, and the sandbox that holds too much of it ended.

sandboxes/docs/uncounted-memory.md explains it.
"""
