"""What keeps a farm from coming up, going down or being joined."""


class ClusterError(Exception):
    """One line that names the remedy."""
