"""Control groups of sandboxes, in either version."""
