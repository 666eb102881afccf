"""Source distributions: downloaded from the package index once, cached by their SHA-256, and never built.

Enter at ``sdist``. The page is farm/docs/architecture/tasks.md.
"""
