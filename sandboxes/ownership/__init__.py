"""Owners of sandboxes: locks that prove that an owner lives, labels, and records for its successor.

This room decides whose a sandbox is, and when its owner is dead. Enter at ``Owner``. The page is
sandboxes/docs/ownership.md.
"""
