"""Who holds a sandbox, and whether that process lives: locks, labels, and records for a successor.

sandboxes/docs/ownership.md explains it.
"""
