"""What tests report, read as hostile input.

``parsers`` gives outcomes by test id. ``unittest_runner`` and ``shuffle_tests`` run in the sandbox.

farm/docs/architecture/reports.md explains it.
"""
