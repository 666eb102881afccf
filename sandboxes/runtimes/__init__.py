"""What makes sandboxes: ``oci`` and ``docker``, and what both have in common (``base``).

sandboxes/docs/isolation.md explains it.
"""
