"""Cgroups of sandboxes, version 1 and 2: limits, freezing, and removal beside running starts.

Enter at ``cgroups``. The page is sandboxes/docs/runtime-oci.md.
"""
