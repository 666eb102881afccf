"""What makes sandboxes: ``oci`` and ``docker``, and what both have in common (``base``)."""
