"""The policy's work: taken out of its sandbox as data, and put into a sandbox for tests.

``capture`` reads a change, ``apply`` writes it, ``protected_paths`` says which paths of it are left out.

farm/docs/architecture/changes.md explains it.
"""
