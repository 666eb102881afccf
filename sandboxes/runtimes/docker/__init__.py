"""Sandboxes as Docker containers.

sandboxes/docs/runtime-docker.md explains it.
"""
