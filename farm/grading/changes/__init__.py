"""Changes of the workspace: read from the agent's sandbox as data, and written into a grading sandbox.

``capture`` reads a change, ``apply`` writes it, ``protected_paths`` decides which paths are excluded.

The page is farm/docs/architecture/changes.md.
"""
