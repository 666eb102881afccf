"""Small helpers for Linux: kernel files, directory trees of any depth, child processes."""
