"""The ``farm`` command: one sub-command a file. ``main`` is where to enter."""
