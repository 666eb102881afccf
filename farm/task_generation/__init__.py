"""Generators of tasks: release pairs, retrieval tasks, and faults put into code (``mutation``).

Start at ``release_pair``, ``retrieval`` and ``mutation.generator``. ``task_directory`` writes what they make.

farm/docs/architecture/task-generation.md explains it.
"""
