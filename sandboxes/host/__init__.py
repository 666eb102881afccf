"""Limits and pressure of this host.

The page is sandboxes/docs/host-limits.md.
"""
