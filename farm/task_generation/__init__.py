"""Generators of tasks: release pairs, retrieval tasks, and faults put into code (``mutation``).

Enter at ``release_pair``, ``retrieval`` and ``mutation.generator``. ``task_directory`` writes what they make. The page
is farm/docs/architecture/task-generation.md.
"""
