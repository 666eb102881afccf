"""The indexed form of source files: chunks, and segments that can be memory-mapped.

Enter at ``segment``. The page is sandboxes/docs/code-search.md.
"""
