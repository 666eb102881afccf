"""Sandboxes as Docker containers. Enter at ``runtime``. The page is sandboxes/docs/runtime-docker.md."""
