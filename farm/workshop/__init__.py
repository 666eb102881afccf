"""Where tasks are made and proven fit."""
