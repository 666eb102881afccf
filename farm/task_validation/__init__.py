"""Proof that a task is fit: doing nothing is judged 0, the known solution 1, and cheats 0.

``validate`` judges one task, ``validate_set`` many.

farm/docs/architecture/task-validation.md explains it.
"""
