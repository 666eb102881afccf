"""What can go wrong with a search, apart from what sandboxes raise."""


class IndexingFailed(Exception):
    """These files cannot be made searchable; the message is one line."""


class BadIndex(Exception):
    """These bytes are no index."""
