"""Runtimes that create sandboxes: ``oci`` and ``docker``. ``base`` has the code that they share.

The page is sandboxes/docs/isolation.md.
"""
