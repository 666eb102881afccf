"""Test reports, which are parsed as hostile input.

``parsers`` returns outcomes by test id. ``unittest_runner`` and ``shuffle_tests`` run in the sandbox.

The page is farm/docs/architecture/reports.md.
"""
