"""``farm bench search``: the quality and speed of code search, compared with other rankers.

Enter at ``bench``. The page is sandboxes/docs/code-search.md.
"""
