"""``farm bench search``: the quality and speed of code search, compared with other rankers."""
