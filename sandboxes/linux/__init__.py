"""Access to Linux: kernel files, directory trees of any depth, and child processes. The page is
sandboxes/docs/README.md.
"""
