"""Limits and pressure of this host: what its kernel allows, and how much is in use.

Enter at ``readings``, ``limits`` and ``pressure``. The page is sandboxes/docs/host-limits.md.
"""
