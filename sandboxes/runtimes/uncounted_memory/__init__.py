"""Measure memory that no cgroup counts, and end the sandboxes that hold too much of it.

The page is sandboxes/docs/uncounted-memory.md.
"""
