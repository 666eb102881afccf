"""What a task directory says: ``task.toml``, the compose file and the steps, each value checked when it is read.

``manifest`` is where to enter.
"""
