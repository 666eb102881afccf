"""Docker images: build, pull, import, inspect, remove.

``store`` is the entry point. ``confinement`` limits the steps of a build; ``eviction`` frees space on the disk.

sandboxes/docs/images.md explains it.
"""
