"""Instructions of generated tasks, from how tests fail, without a model."""
