"""Validation: prove that doing nothing in a task earns 0, the gold solution 1, and cheats 0.

``validate`` validates one task, ``validate_set`` many.

farm/docs/architecture/task-validation.md explains it.
"""
