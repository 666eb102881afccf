"""A change as text: a patch for people, its style by a linter, and lines that look like results made up.

farm/docs/architecture/rewards.md explains it.
"""
