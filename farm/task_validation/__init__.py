"""Validation: prove that doing nothing in a task earns 0, the gold solution 1, and cheats 0.

This room decides whether a task is fit. Enter at ``validate`` for one task, at ``validate_set`` for many. The page is
farm/docs/architecture/task-validation.md.
"""
