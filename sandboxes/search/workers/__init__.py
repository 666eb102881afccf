"""Unprivileged processes that parse hostile text for the index. Enter at ``pool``.

The page is sandboxes/docs/code-search.md.
"""
