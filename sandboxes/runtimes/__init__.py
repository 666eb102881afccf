"""Runtimes that create sandboxes: ``oci`` and ``docker``. ``base`` has the code that they share.

This room decides how a sandbox starts, what it may call, and whose fault its end is. The page is
sandboxes/docs/isolation.md.
"""
