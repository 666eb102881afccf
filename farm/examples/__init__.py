"""Example programs to read and to start from. The page is farm/docs/learner.md."""
