"""The limits of this machine and how hard it is pressed.

sandboxes/docs/host-limits.md explains it.
"""
