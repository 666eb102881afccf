"""The disk of an owner's sandboxes: a directory for each, with a limit, copied and removed at constant cost.

The page is sandboxes/docs/disk.md.
"""
