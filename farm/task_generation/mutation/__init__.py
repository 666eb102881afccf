"""Tasks out of any repository with tests: a fault is put in, or a feature taken out; tests that then fail judge."""
