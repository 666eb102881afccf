"""Errors of code search, in addition to those of sandboxes."""


class IndexingFailed(Exception):
    """The files cannot be indexed. The message is one line."""


class BadIndex(Exception):
    """The bytes are not a valid index."""
