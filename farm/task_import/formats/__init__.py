"""Formats of public data sets: each module reads a row into an ``ImportDraft``.

The page is farm/docs/task-import.md.
"""
