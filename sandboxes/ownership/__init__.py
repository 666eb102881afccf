"""Owners of sandboxes: locks that prove that an owner lives, labels, and records for its successor.

The page is sandboxes/docs/ownership.md.
"""
