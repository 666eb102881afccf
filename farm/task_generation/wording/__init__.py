"""Instructions of generated tasks, written from the failures of tests without a language model."""
