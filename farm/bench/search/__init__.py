"""``farm bench search``: how well and how fast code is found, beside other rankers."""
