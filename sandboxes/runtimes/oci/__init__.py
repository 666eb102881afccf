"""Sandboxes started by crun or runc on the layers of Docker's images. ``runtime`` is where to enter.

sandboxes/docs/runtime-oci.md explains it.
"""
