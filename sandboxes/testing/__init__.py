"""Sandboxes in memory, for tests of code that uses sandboxes. Product code does not use them."""
