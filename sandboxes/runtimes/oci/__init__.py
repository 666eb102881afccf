"""Sandboxes started by crun or runc on the layers of Docker's images. Enter at ``runtime``.

The page is sandboxes/docs/runtime-oci.md.
"""
