"""Test reports, which are parsed as hostile input.

This room decides the outcome of each test by its id. Enter at ``parsers``. ``unittest_runner`` and ``shuffle_tests``
run in the sandbox. The page is farm/docs/architecture/reports.md.
"""
