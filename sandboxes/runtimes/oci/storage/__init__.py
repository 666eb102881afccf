"""The disk of an owner's sandboxes: a directory for each, bounded, copied and removed at a constant cost.

sandboxes/docs/disk.md explains it.
"""
