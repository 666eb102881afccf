"""Instructions of generated tasks, written from the failures of tests without a language model.

The page is farm/docs/architecture/task-generation.md.
"""
