"""Tasks of any repository with tests: a fault is put in or a feature taken out, and the tests that then fail decide."""
