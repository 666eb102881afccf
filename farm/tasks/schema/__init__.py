"""The schema of a task directory: ``task.toml``, the compose file and the steps, each value checked when it is read.

Enter at ``manifest``. The page is farm/docs/tasks.md.
"""
