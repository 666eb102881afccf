"""The error of starting, joining and stopping a farm."""


class ClusterError(Exception):
    """Raised if a farm cannot start, stop or be joined. The message is one line that names the remedy."""
