"""Core values and pure functions: tasks, changes, runs, rollouts. There is no I/O, and time is an argument.

This room decides what the words of the farm mean. Enter at ``task``, ``run`` and ``rollout``. The pages are
farm/docs/glossary.md and farm/docs/rollout-record.md.
"""
