"""Tests that show that results are made up: a sound program fails them or passes them for sure.

``test_plan`` puts them among the expected tests. ``control_run`` and ``contradiction`` use false versions of tests
(``false_tests``), ``canary_file`` has tests whose results are known. farm/docs/architecture/decoys.md explains it.
"""
