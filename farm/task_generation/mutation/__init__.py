"""Tasks of any repository with tests: a fault is put in or a feature taken out, and the tests that then fail decide.

Enter at ``generator``. ``operators`` and ``features`` make the faults, ``trials`` runs them. The page is
farm/docs/architecture/task-generation.md.
"""
