"""Changes of the workspace: read from the agent's sandbox as data, and written into a grading sandbox.

This room decides which part of a change is judged. ``capture`` reads a change, ``apply`` writes it, ``protected_paths``
excludes paths. The page is farm/docs/architecture/changes.md.
"""
