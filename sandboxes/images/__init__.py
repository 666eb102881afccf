"""Docker images: built, pulled, looked at and removed.

``store`` is where to enter. ``confinement`` bounds the steps of a build, ``eviction`` makes room on the disk.

sandboxes/docs/images.md explains it.
"""
