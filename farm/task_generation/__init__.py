"""New tasks out of packages: release pairs, retrieval tasks, and faults put into code (``mutation``).

``release_pair``, ``retrieval`` and ``mutation.generator`` are where to enter.

farm/docs/architecture/task-generation.md explains it.
"""
