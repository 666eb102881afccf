"""Cgroups of sandboxes, version 1 and 2."""
